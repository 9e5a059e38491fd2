"""The official client's embeddings, from a real process, are those of transformers."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import openai
import pytest

from support.process import Process

CHECKPOINTS = Path(__file__).parents[1] / "reference" / "embeddings"


def golden(name: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((CHECKPOINTS / name / "golden.json").read_text(encoding="utf-8"))["cases"]
    return found


@pytest.fixture(scope="module", params=["bert", "qwen3"])
def server(request: pytest.FixtureRequest) -> Iterator[tuple[str, Process]]:
    process = Process("--model-path", str(CHECKPOINTS / request.param), "--kv-cache-dtype", "f32")
    process.ready().close()
    yield request.param, process
    process.signal(signal.SIGTERM)
    assert process.end() == 0


def client(process: Process) -> openai.OpenAI:
    transport: Any = httpx.Client(trust_env=False)
    return openai.OpenAI(base_url=f"{process.url}/v1", api_key="none", http_client=transport, max_retries=0)


def test_vectors(server: tuple[str, Process]) -> None:
    name, process = server
    cases = golden(name)
    with client(process) as api:
        texts = [case["text"] for case in cases]
        for encoding in (openai.omit, "float"):  # the client asks for base64 unless told otherwise
            form: Any = encoding
            answer = api.embeddings.create(model=name, input=texts, encoding_format=form)
            found = [entry.embedding for entry in answer.data]
            np.testing.assert_allclose(found, [case["vector"] for case in cases], rtol=0, atol=1e-5)
            assert answer.usage.prompt_tokens == answer.usage.total_tokens == sum(len(case["ids"]) for case in cases)
            assert [entry.index for entry in answer.data] == list(range(len(cases)))
        ids = api.embeddings.create(model=name, input=[case["ids"] for case in cases])
        assert [entry.embedding for entry in ids.data] == found
        one = api.embeddings.create(model=name, input=cases[0]["text"])
        assert one.data[0].embedding == found[0]


def test_refusals_are_the_clients_own_kind(server: tuple[str, Process]) -> None:
    name, process = server
    with client(process) as api:
        empty: list[str] = []
        for wrong in ("", " ", empty):
            bad: Any = wrong
            with pytest.raises(openai.BadRequestError, match="input"):
                api.embeddings.create(model=name, input=bad)
        with pytest.raises(openai.BadRequestError, match="dimensions"):
            api.embeddings.create(model=name, input="a", dimensions=0)
        with pytest.raises(openai.BadRequestError, match="/v1/embeddings"):
            api.chat.completions.create(model=name, messages=[{"role": "user", "content": "hi"}])
        if name == "qwen3":
            vector = api.embeddings.create(model=name, input="a", dimensions=5).data[0].embedding
            assert len(vector) == 5
            assert abs(sum(x * x for x in vector) - 1) < 1e-5
