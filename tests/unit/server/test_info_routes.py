"""Information, tokenizing, keys, metrics, and the OpenAPI document."""

from __future__ import annotations

from pathlib import Path

import pytest

from ramet.config import ApiSection, ServerSection
from ramet.executor.scripted import Script
from ramet.server.app import create_app
from ramet.server.context import Context
from support import toy
from support.asgi import Client
from support.server import running


async def test_before_the_engine_is_there_everything_is_503() -> None:
    client = Client(create_app(Context(server=ServerSection(), api=ApiSection())))
    for path in ("/health", "/health_generate", "/ready"):
        answer = await client.get(path)
        assert (answer.status, answer.body) == (503, b"")
    assert (await client.get("/v1/models")).status == 503
    assert (await client.post("/generate", {"text": "x"})).status == 503
    assert (await client.get("/metrics")).status == 200


async def test_draining_fails_health_and_still_answers(model: Path) -> None:
    async with running(model) as server:
        server.context.draining = True
        assert (await server.client.get("/health")).status == 503
        assert (await server.client.post("/generate", {"text": "x"})).status == 200


async def test_model_and_server_info(model: Path) -> None:
    async with running(model) as server:
        for path in ("/model_info", "/get_model_info"):
            info = (await server.client.get(path)).json
            assert info["served_model_name"] == "toy"
            assert info["is_generation"] is True
            assert info["architectures"] == ["LlamaForCausalLM"]
        for path in ("/server_info", "/get_server_info"):
            info = (await server.client.get(path)).json
            assert info["max_total_num_tokens"] == 1024
            assert info["internal_states"][0]["max_total_num_tokens"] == 1024
        assert (await server.client.get("/")).status == 200


async def test_models(model: Path) -> None:
    async with running(model, served_model_name="org/toy") as server:
        listed = (await server.client.get("/v1/models")).json
        assert [card["id"] for card in listed["data"]] == ["org/toy"]
        assert listed["data"][0]["max_model_len"] == toy.CONTEXT
        assert (await server.client.get("/v1/models/org/toy")).json["id"] == "org/toy"
        missing = await server.client.get("/v1/models/other")
        assert (missing.status, missing.json["error"]["code"]) == (404, "model_not_found")


async def test_tokenize_and_back(model: Path) -> None:
    async with running(model) as server:
        for prefix in ("", "/v1"):
            one = (await server.client.post(f"{prefix}/tokenize", {"prompt": "menu x"})).json
            assert one == {"tokens": toy.ids("menu ", "x"), "count": 2, "max_model_len": toy.CONTEXT}
            many = (await server.client.post(f"{prefix}/tokenize", {"prompt": ["a", "bc"]})).json
            assert (many["tokens"], many["count"]) == ([[97], [98, 99]], [1, 2])
            text = (await server.client.post(f"{prefix}/detokenize", {"tokens": [97, toy.EOS]})).json
            assert text == {"text": "a"}
            kept = {"tokens": [[97, toy.EOS], []], "skip_special_tokens": False}
            assert (await server.client.post(f"{prefix}/detokenize", kept)).json == {"text": ["a<eos>", ""]}
        for body in ({}, {"prompt": "a", "messages": []}):
            assert (await server.client.post("/tokenize", body)).status == 400
        assert (await server.client.post("/detokenize", {"tokens": [10**6]})).json["param"] == "tokens"


@pytest.mark.parametrize("admin", [None, "boss"])
async def test_keys(model: Path, admin: str | None) -> None:
    async with running(model, Script(tokens=[97]), api_key="clé", admin_api_key=admin) as server:

        async def status(method: str, path: str, key: str | None) -> int:
            headers = {} if key is None else {"authorization": f"bearer {key}"}
            return (await server.client.open(method, path, {"text": "x"}, headers=headers).finish()).status

        for path in ("/health", "/metrics", "/ready"):
            assert await status("GET", path, None) == 200
        assert await status("OPTIONS", "/generate", None) != 401
        for key, expected in ((None, 401), ("wrong", 401), ("", 401)):
            assert await status("POST", "/generate", key) == expected
            assert await status("GET", "/v1/models", key) == expected
        assert await status("POST", "/generate", "clé") == 200
        refused = await server.client.post("/generate", {"text": "x"})
        assert refused.json == {"error": "Unauthorized"}
        assert await status("POST", "/flush_cache", "boss") == (200 if admin else 401)


async def test_ascii_keys_open_the_routes(model: Path) -> None:
    async with running(model, api_key="k", admin_api_key="boss") as server:
        for path, key, expected in (
            ("/v1/models", "k", 200),
            ("/v1/models", "boss", 401),
            ("/flush_cache", "k", 401),
            ("/flush_cache", "boss", 200),
        ):
            answer = await server.client.get(path, headers={"authorization": f"Bearer {key}"})
            assert answer.status == expected, (path, key)


async def test_m02_no_secret_is_shown(model: Path) -> None:
    from ramet.config import build
    from ramet.launch import public_settings

    settings = public_settings(build({"api_key": "hunter2", "admin_api_key": "swordfish"}))
    assert "api_key" not in settings
    assert "hunter2" not in str(settings)


async def test_cross_origin_requests_are_allowed(model: Path) -> None:
    async with running(model) as server:
        headers = {"origin": "http://page", "access-control-request-method": "POST"}
        preflight = await server.client.open("OPTIONS", "/v1/chat/completions", headers=headers).finish()
        assert preflight.status == 200
        plain = await server.client.get("/v1/models", headers={"origin": "http://page"})
        assert plain.headers["access-control-allow-origin"] in ("*", "http://page")


async def test_metrics_have_the_names_that_dashboards_query(model: Path) -> None:
    async with running(model, Script(tokens=[97])) as server:
        for _ in range(2):
            await server.client.post("/generate", {"text": "x" * 20, "sampling_params": {"max_new_tokens": 3}})
        text = (await server.client.get("/metrics")).body.decode()
        values = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
        label = '{model_name="toy"}'
        assert float(values["sglang:generation_tokens_total" + label]) == 6
        assert float(values["sglang:prompt_tokens_total" + label]) == 40
        assert float(values["sglang:cached_tokens_total" + label]) > 0
        assert float(values["sglang:num_running_reqs" + label]) == 0
        for name in ("num_queue_reqs", "token_usage", "gen_throughput", "cache_hit_rate"):
            assert f"sglang:{name}{label}" in values
        for name in ("time_to_first_token_seconds", "e2e_request_latency_seconds", "inter_token_latency_seconds"):
            assert float(values[f"sglang:{name}_count"]) == 2


async def test_the_openapi_document_describes_the_bodies(model: Path) -> None:
    async with running(model) as server:
        document = (await server.client.get("/openapi.json")).json
        schema = document["paths"]["/v1/chat/completions"]["post"]["requestBody"]["content"]["application/json"][
            "schema"
        ]
        name = schema["$ref"].rsplit("/", 1)[1]
        assert "messages" in document["components"]["schemas"][name]["properties"]
        assert {"/generate", "/v1/completions", "/health", "/flush_cache"} <= document["paths"].keys()
        ids = [operation["operationId"] for item in document["paths"].values() for operation in item.values()]
        assert len(ids) == len(set(ids))
