"""The default model in a real process, as a user gets it. Fetches 98 MB once."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest

from support.process import Process

pytestmark = pytest.mark.slow

#: Asked "What is the capital of France?" the model says "L'Étoile", under llama.cpp as well.
ASK: Any = [{"role": "user", "content": "Name the capital of France."}]


@pytest.fixture(scope="module")
def server() -> Iterator[Process]:
    process = Process("--max-total-tokens", "32768")
    process.wait_for("Listening on", within_s=110)  # the first start fetches the model
    process.url = process.lines[-1].rsplit(" ", 1)[1]
    yield process
    process.signal(signal.SIGINT)
    assert process.end() == 0


@pytest.fixture
def client(server: Process) -> Iterator[openai.OpenAI]:
    transport: Any = httpx.Client(trust_env=False)
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", http_client=transport, max_retries=0) as client:
        yield client


def test_the_capital_of_france(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model="default", messages=ASK, temperature=0, max_tokens=32)
    assert "Paris" in (answer.choices[0].message.content or "")


def test_a_stream_says_what_a_whole_answer_says(client: openai.OpenAI) -> None:
    options: Any = {"temperature": 0, "max_tokens": 32}
    whole = client.chat.completions.create(model="default", messages=ASK, **options)
    chunks = list(client.chat.completions.create(model="default", messages=ASK, stream=True, **options))
    parts = [chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices]
    assert len(parts) > 3
    assert "".join(parts) == whole.choices[0].message.content


def test_drawn_answers_are_the_same_beside_neighbours(server: Process) -> None:
    """With the real weights, too: alone, then among 15 others that share its prefix, from a warm cache."""
    one = {"temperature": 0.8, "top_p": 0.95, "sampling_seed": 7, "max_new_tokens": 24, "ignore_eos": True}
    text = "Once upon a time, in a small town by the sea, there lived"
    with httpx.Client(base_url=server.url, timeout=60, trust_env=False) as client:
        client.post("/flush_cache").raise_for_status()
        alone = client.post("/generate", json={"text": text, "sampling_params": one, "return_logprob": True}).json()
        others = [{**one, "sampling_seed": 100 + index} for index in range(15)]
        texts = [text, *(text + " a" * index for index in range(15))]
        body = {"text": texts, "sampling_params": [one, *others], "return_logprob": True}
        beside = client.post("/generate", json=body).json()[0]
    assert beside["output_ids"] == alone["output_ids"]
    assert beside["meta_info"]["output_token_logprobs"] == alone["meta_info"]["output_token_logprobs"]


def test_a_client_that_leaves_frees_the_engine(server: Process) -> None:
    body = {"text": "Count:", "stream": True, "sampling_params": {"max_new_tokens": 1500, "ignore_eos": True}}
    with httpx.Client(base_url=server.url, timeout=60, trust_env=False) as client:
        with client.stream("POST", "/generate", json=body) as response:
            next(response.iter_lines())
        until = time.monotonic() + 2
        while (info := client.get("/server_info").json())["num_running_reqs"] or info["token_usage"]:
            assert time.monotonic() < until, info
            time.sleep(0.02)
