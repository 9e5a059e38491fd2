# Each target is one script, so that people and CI run the same thing.
.PHONY: serve test check install docs

serve: ## make .venv, build, fetch the default model once, serve on 127.0.0.1:30000 (ARGS="--port 8000 …")
	scripts/serve $(ARGS)

test: ## install what the tests need and run the fast set
	scripts/install
	scripts/test

check: ## lint, types, generated pages
	scripts/check

install:
	scripts/install

docs:
	scripts/docs
