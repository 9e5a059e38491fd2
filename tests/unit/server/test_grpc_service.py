"""The gRPC service over the scripted engine: the same answers and errors as the native routes, as messages."""

from __future__ import annotations

import asyncio
import json
import math
import sys
from pathlib import Path
from typing import Any

import pytest

from ramet.errors import ConfigError, ExecutorError
from ramet.executor.scripted import Script
from ramet.server.grpc.messages import SERVICE, message_class, shortest
from ramet.server.grpc.service import Service
from ramet.server.native_format import NativeRequest, SamplingTypes
from ramet.server.serve import _rpc_server
from support import toy
from support.grpc_call import Client, Refused, shown
from support.server import Server, paced, running

CHECKPOINTS = Path(__file__).parents[2] / "reference" / "embeddings"

#: Meta information that depends on the clock or was drawn.
VOLATILE = {"id", "e2e_latency", "response_sent_to_client_ts"}

SAMPLING: dict[str, Any] = {"max_new_tokens": 5, "temperature": 0.7, "top_p": 0.9, "sampling_seed": 3}


def client(server: Server, **metadata: str) -> Client:
    return Client(Service(server.context), **metadata)


def stable(meta: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in meta.items() if key not in VOLATILE}


@pytest.mark.parametrize(
    ("method", "prompt"), [("TextGenerate", {"text": "go"}), ("Generate", {"input_ids": toy.ids("Hi", " there")})]
)
@pytest.mark.parametrize(
    "more",
    [
        {},
        {"return_logprob": True, "top_logprobs_num": 2, "logprob_start_len": 0, "token_ids_logprob": [5, 6]},
        {"return_logprob": True, "return_text_in_logprobs": True, "return_prompt_token_ids": True},
    ],
)
async def test_an_answer_is_that_of_generate(
    model: Path, method: str, prompt: dict[str, Any], more: dict[str, Any]
) -> None:
    async with running(model) as server:
        body = {**prompt, "sampling_params": SAMPLING, **more}
        over_http = (await server.client.post("/generate", body)).json
        await server.client.post("/flush_cache")
        answer = await client(server)(method, body)
        assert answer["text"] == over_http["text"]
        assert answer["output_ids"] == over_http["output_ids"]
        assert answer.get("prompt_token_ids") == over_http.get("prompt_token_ids")
        assert answer["finished"] is True
        assert stable(answer["meta_info"]) == stable(over_http["meta_info"])


async def test_a_stream_has_what_is_new_and_adds_up(model: Path) -> None:
    async with running(model, Script(step_s=0.01)) as server:
        body = {"text": "go", "sampling_params": {**SAMPLING, "n": 2}, "return_logprob": True}
        whole = await client(server).open("TextGenerate", body).finish()
        pieces = await client(server).open("TextGenerate", {**body, "stream": True}).finish()
        for index, answer in enumerate(whole):
            mine = [piece for piece in pieces if piece.get("index", 0) == index]
            assert len(mine) > 1
            assert "".join(piece.get("text", "") for piece in mine) == answer["text"]
            assert [i for piece in mine for i in piece.get("output_ids", ())] == answer["output_ids"]
            parts = [p for piece in mine for p in piece["meta_info"]["output_token_logprobs"]]
            assert parts == answer["meta_info"]["output_token_logprobs"]
            assert [piece.get("finished", False) for piece in mine] == [False] * (len(mine) - 1) + [True]
            assert mine[-1]["meta_info"]["completion_tokens"] == answer["meta_info"]["completion_tokens"] == 5


async def test_each_message_is_one_step_when_the_reader_keeps_up(model: Path) -> None:
    async with running(model, paced(toy.ids("sun", "moon", "star"))) as server:
        body = {"text": "go", "sampling_params": {"max_new_tokens": 3}, "stream": True}
        pieces = await client(server).open("TextGenerate", body).finish()
        assert [piece["text"] for piece in pieces] == ["sun", "moon", "star"]
        assert [piece["meta_info"]["finish_reason"] for piece in pieces] == [
            None,
            None,
            {"type": "length", "length": 3},
        ]


@pytest.mark.parametrize(
    ("sampling", "text", "finish"),
    [
        ({"stop": ["nmo"]}, "su", {"type": "stop", "matched": "nmo"}),
        ({"stop": ["nmo"], "no_stop_trim": True}, "sunmo", {"type": "stop", "matched": "nmo"}),
        ({"stop_token_ids": toy.ids("star")}, "sunmoon", {"type": "stop", "matched": toy.piece("star")}),
        ({"stop_regex": ["o+n"]}, "sunmoon", {"type": "stop", "matched": "o+n"}),
        ({"max_new_tokens": 0}, "", {"type": "length", "length": 0}),
    ],
)
async def test_what_ends_a_generation(model: Path, sampling: dict[str, Any], text: str, finish: Any) -> None:
    async with running(model, Script(tokens=toy.ids("sun", "moon", "star", "dust"))) as server:
        answer = await client(server)("TextGenerate", {"text": "go", "sampling_params": sampling})
        assert answer.get("text", "") == text
        assert answer["meta_info"]["finish_reason"] == finish


@pytest.mark.parametrize(
    ("constraint", "allowed"),
    [
        ({"regex": "[ab]{3}"}, lambda text: len(text) == 3 and set(text) <= set("ab")),
        ({"ebnf": 'root ::= "gh" | "ok"'}, lambda text: text in ("gh", "ok")),
        ({"json_schema": '{"type": "boolean"}'}, lambda text: isinstance(json.loads(text), bool)),
    ],
)
async def test_constraints_hold(model: Path, constraint: dict[str, str], allowed: Any) -> None:
    async with running(model) as server:
        answer = await client(server)("TextGenerate", {"text": "go", "sampling_params": constraint})
        assert allowed(answer["text"])


async def test_a_processor_gets_its_parameters(model: Path) -> None:
    async with running(model, executor="reference") as server:
        sampling = {"max_new_tokens": 4, "custom_params": json.dumps({"token_ids": toy.ids("dust")})}
        body = {"text": "go", "sampling_params": sampling, "custom_logit_processor": "allowed_tokens"}
        assert (await client(server)("TextGenerate", body))["text"] == "dust" * 4
        for wrong, words in (("{", "not valid JSON"), ("[1]", "custom_params"), ('{"token_ids": 1}', "token_ids")):
            refused = {**body, "sampling_params": {"custom_params": wrong}}
            code, details = await client(server).refused("TextGenerate", refused)
            assert code == "INVALID_ARGUMENT"
            assert words in details


async def test_a_deadline_ends_the_generation(model: Path) -> None:
    async with running(model, Script(tokens=toy.ids("a"), step_s=0.02)) as server:
        body = {"text": "go", "timeout_s": 0.2, "sampling_params": {"max_new_tokens": 200}, "stream": True}
        call = client(server).open("TextGenerate", body)
        with pytest.raises(Refused, match="UNAVAILABLE: The request's deadline has passed"):
            await call.finish()
        last = shown(call.written[-1])
        assert last["finished"] is True
        assert last["meta_info"]["finish_reason"]["status_code"] == 503
        assert await client(server).refused("TextGenerate", {**body, "stream": False}) == (
            "UNAVAILABLE",
            last["meta_info"]["finish_reason"]["message"],
        )


async def test_a_bias_reaches_the_sampler(model: Path) -> None:
    async with running(model, executor="reference") as server:
        wanted = toy.piece("sun")
        sampling = {"max_new_tokens": 3, "temperature": 0, "logit_bias": {wanted: 1000.0}}
        body = {"text": "go", "sampling_params": {**sampling, "logit_bias": {str(wanted): 1000.0}}}
        over_http = (await server.client.post("/generate", body)).json
        answer = await client(server)("TextGenerate", {"text": "go", "sampling_params": sampling})
        assert answer["output_ids"] == over_http["output_ids"]


BAD: list[tuple[str, dict[str, Any] | bytes, str]] = [
    ("TextGenerate", {}, "prompt"),
    ("Generate", {}, "input_ids"),
    ("Generate", {"input_ids": [-1]}, "token id -1"),
    ("Generate", {"input_ids": [toy.VOCAB_SIZE]}, "outside the vocabulary"),
    ("Generate", {"input_ids": [1] * toy.CONTEXT}, "context length"),
    ("TextGenerate", {"text": "x", "sampling_params": {"temperature": math.nan}}, "temperature"),
    ("TextGenerate", {"text": "x", "sampling_params": {"temperature": -1}}, "temperature"),
    ("TextGenerate", {"text": "x", "sampling_params": {"top_p": 0}}, "top_p"),
    ("TextGenerate", {"text": "x", "sampling_params": {"logit_bias": {5: math.inf}}}, "logit_bias"),
    ("TextGenerate", {"text": "x", "sampling_params": {"n": 0}}, "n must be"),
    ("TextGenerate", {"text": "x", "sampling_params": {"n": 2**31 - 1}}, "n 2147483647"),
    ("TextGenerate", {"text": "x", "sampling_params": {"max_new_tokens": 2**31 - 1}}, "maximum context length"),
    ("TextGenerate", {"text": "x", "sampling_params": {"regex": "("}}, "regex"),
    ("TextGenerate", {"text": "x", "sampling_params": {"regex": "a", "ebnf": 'root ::= "a"'}}, "Only one of"),
    ("TextGenerate", {"text": "x", "sampling_params": {"stop": ["a"] * 100}}, "stop"),
    ("TextGenerate", {"text": "x", "top_logprobs_num": -1}, "top_logprobs_num"),
    ("TextGenerate", {"text": "x", "lora_path": "mine"}, "lora_path is not supported"),
    ("Generate", {"input_ids": [5], "disaggregated_params": {"bootstrap_room": 1}}, "disaggregated_params"),
    ("TextGenerate", b"\x0a\xff\xff", "not a valid ramet.v1.TextGenerateRequest"),
    ("TextGenerate", b"\x0a\x02\xff\xfe", "not a valid"),  # text that is not UTF-8
    ("Embed", {"input_ids": [5]}, "generates text"),
]


@pytest.mark.parametrize(("method", "request_", "words"), BAD)
@pytest.mark.parametrize("stream", [False, True])
async def test_a_bad_request_is_named(
    model: Path, method: str, request_: dict[str, Any] | bytes, words: str, stream: bool
) -> None:
    async with running(model) as server:
        if stream and method != "Embed" and isinstance(request_, dict):
            request_ = {**request_, "stream": True}
        code, details = await client(server).refused(method, request_)
        assert code == "INVALID_ARGUMENT"
        assert words in details
        assert server.frontend.num_live == 0


async def test_a_live_id_cannot_be_had_twice(model: Path) -> None:
    async with running(model, Script(tokens=toy.ids("a"), step_s=0.02)) as server:
        ask = client(server)
        body = {"text": "x", "rid": "mine", "stream": True}
        first = ask.open("TextGenerate", body)
        await first.arrived.wait()
        assert await ask.refused("TextGenerate", body) == ("ALREADY_EXISTS", "Duplicate request ID detected: mine")
        assert (await ask("Abort", {"rid": "mine"})) == {"success": True}
        last = (await first.finish())[-1]
        assert last["finished"] is True
        assert last["meta_info"]["finish_reason"]["type"] == "abort"
        assert (await ask("Abort")) == {}


async def test_abort_all_ends_everything(model: Path) -> None:
    async with running(model, Script(tokens=toy.ids("a"), step_s=0.02)) as server:
        ask = client(server)
        calls = [ask.open("TextGenerate", {"text": "x", "stream": True}) for _ in range(3)]
        for call in calls:
            await call.arrived.wait()
        assert await ask("Abort", {"abort_all": True}) == {"success": True}
        for call in calls:
            assert (await call.finish())[-1]["meta_info"]["finish_reason"]["type"] == "abort"
        await server.idle()


@pytest.mark.parametrize("stream", [False, True])
async def test_a_cancelled_call_frees_its_pages(model: Path, stream: bool) -> None:
    async with running(model, Script(tokens=toy.ids("a"), step_s=0.02)) as server:
        sampling = {"n": 2, "max_new_tokens": 200}
        call = client(server).open("TextGenerate", {"text": "x", "stream": stream, "sampling_params": sampling})
        while (await server.info())["num_running_reqs"] < 2:
            await asyncio.sleep(0.005)
        assert call.task is not None
        call.task.cancel()
        info = await server.idle(1.0)
        assert info["totals"]["aborted"] == 2
        assert server.frontend.num_live == 0


async def test_unknown_fields_are_told_or_refused(model: Path) -> None:
    kind = message_class(SERVICE.methods_by_name["TextGenerate"].input_type)
    newer = b"\xc0\x3e\x01"  # field 1000, a varint
    inside = kind(text="x", sampling_params={"n": 1}).sampling_params.SerializeToString() + newer
    raw = kind(text="x").SerializeToString() + newer + b"\x12" + bytes([len(inside)]) + inside
    known = {"text": "x", "routing_key": "r", "routed_dp_rank": 1, "trace_headers": {"a": "b"}}
    async with running(model) as server:
        call = client(server).open("TextGenerate", raw)
        await call.finish()
        told = "unknown fields were ignored: field 1000, field sampling_params.1000"
        assert call.sent_metadata == {"x-ramet-warning": told}
        call = client(server).open("TextGenerate", known)
        await call.finish()
        assert call.sent_metadata == {}
    async with running(model, strict=True) as server:
        code, details = await client(server).refused("TextGenerate", raw)
        assert (code, details) == ("INVALID_ARGUMENT", "Unknown fields: field 1000, field sampling_params.1000.")
        await client(server)("TextGenerate", known)


async def test_what_gave_way_is_in_the_metadata(model: Path) -> None:
    async with running(model) as server:
        call = client(server).open("Generate", {"input_ids": [5] * (toy.CONTEXT - 3)})
        await call.finish()
        assert "max tokens reduced from 128 to 3" in call.sent_metadata["x-ramet-warning"]


async def test_keys(model: Path) -> None:
    async with running(model, api_key="sesame", admin_api_key="boss") as server:
        ask = client(server)
        refusal = ("UNAUTHENTICATED", "Unauthorized")
        body = {"text": "x", "sampling_params": {"max_new_tokens": 1}}
        assert await ask.refused("TextGenerate", body) == refusal
        assert await ask.refused("GetServerInfo", authorization="Bearer wrong") == refusal
        await ask("TextGenerate", body, authorization="Bearer sesame")
        await ask("TextGenerate", body, **{"x-api-key": "sesame"})
        assert await ask("HealthCheck") == {"healthy": True}
        assert await ask.refused("Abort", {"rid": "x"}, authorization="Bearer sesame") == refusal
        await ask("Abort", {"rid": "x"}, authorization="Bearer boss")


async def test_facts_are_those_of_http(model: Path) -> None:
    async with running(model) as server:
        info = await client(server)("GetModelInfo")
        over_http = (await server.client.get("/model_info")).json
        assert json.loads(info["json_info"]) == over_http
        assert info["model_path"] == over_http["model_path"]
        facts = json.loads((await client(server)("GetServerInfo"))["json_info"])
        assert facts.keys() == (await server.client.get("/server_info")).json.keys()


async def test_without_an_engine_calls_are_unavailable(model: Path) -> None:
    async with running(model) as server:
        frontend, server.context.frontend = server.context.frontend, None
        assert await client(server)("HealthCheck") == {}
        code, details = await client(server).refused("TextGenerate", {"text": "x"})
        assert (code, details) == ("UNAVAILABLE", "The server is starting.")
        server.context.frontend = frontend


async def test_an_engine_that_dies_fails_the_stream(model: Path) -> None:
    async with running(model, Script(tokens=toy.ids("a"), step_s=0.02)) as server:
        call = client(server).open("TextGenerate", {"text": "x", "stream": True})
        await call.arrived.wait()
        await server.frontend.stop(message="gone")
        with pytest.raises(Refused, match="UNAVAILABLE: gone"):
            await call.finish()


@pytest.mark.parametrize("words", ["Müller’s " * 900, "\ud800"])
async def test_a_long_or_broken_message_fits_a_header(model: Path, monkeypatch: Any, words: str) -> None:
    async with running(model) as server:

        def fail(*args: Any, **kwargs: Any) -> Any:
            raise ExecutorError(words)

        monkeypatch.setattr(server.frontend, "generate", fail)
        code, details = await client(server).refused("TextGenerate", {"text": "x"})
        assert code == "INTERNAL"
        assert 0 < len(details.encode()) <= 2000


async def test_a_bug_of_ours_is_logged_and_says_nothing(
    model: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with running(model) as server:
        monkeypatch.setattr(server.frontend, "generate", lambda *args, **kwargs: 1 / 0)
        refusal = await client(server).refused("TextGenerate", {"text": "x"})
        assert refusal == ("INTERNAL", "Internal server error.")
        assert "ZeroDivisionError" in caplog.text


@pytest.mark.parametrize(("method", "prompt"), [("TextEmbed", {"text": "ab gh"}), ("Embed", {"input_ids": [5, 6, 7]})])
async def test_an_embedding_is_that_of_encode(method: str, prompt: dict[str, Any]) -> None:
    async with running(CHECKPOINTS / "bert", chunked_prefill_size=-1) as server:
        over_http = (await server.client.post("/encode", prompt)).json
        await server.client.post("/flush_cache")
        answer = await client(server)(method, {**prompt, "rid": "mine"})
        assert answer["embedding"] == over_http["embedding"]
        assert answer["meta_info"]["id"] == "mine"
        assert stable(answer["meta_info"]) == stable(over_http["meta_info"])
        code, details = await client(server).refused(method, {**prompt, "dimensions": 3})
        assert code == "INVALID_ARGUMENT"
        assert "dimensions" in details
        assert (await client(server).refused("Embed"))[0] == "INVALID_ARGUMENT"
        assert "generates no text" in (await client(server).refused("TextGenerate", {"text": "x"}))[1]


@pytest.mark.parametrize("value", [0.7, 0.1, 1.0, 1e-6, 0.95, -1.5, 3.4e38, 0.0])
def test_a_float_is_read_as_it_was_written(value: float) -> None:
    kind = message_class(SERVICE.methods_by_name["TextGenerate"].input_type)
    sent = kind(sampling_params={"temperature": value}).SerializeToString()
    assert shortest(kind.FromString(sent).sampling_params.temperature) == value


@pytest.mark.parametrize("method", ["TextGenerate", "Generate"])
def test_the_proto_has_every_field_of_generate(method: str) -> None:
    request = SERVICE.methods_by_name[method].input_type
    sampling = request.fields_by_name["sampling_params"].message_type
    prompts_and_harmless = {"text", "input_ids", "log_metrics"}
    for kind, descriptor in ((NativeRequest, request), (SamplingTypes, sampling)):
        missing = {*kind.__struct_fields__} - {field.name for field in descriptor.fields} - prompts_and_harmless
        assert not missing, f"add to {descriptor.name} in ramet.proto, then run scripts/proto: {missing}"


def test_without_grpcio_the_flag_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("ramet.server.grpc")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "grpc", None)
    with pytest.raises(ConfigError, match=r"pip install 'ramet\[grpc\]'") as caught:
        _rpc_server(object())  # type: ignore[arg-type]
    assert caught.value.field == "grpc_port"
