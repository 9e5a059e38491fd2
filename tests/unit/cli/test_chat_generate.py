"""`ramet chat` and `ramet generate` on a source of answers from a list, and the two real sources on fake transports."""

from __future__ import annotations

import argparse
import copy
import http.client
import io
import json
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

import ramet
from ramet.cli import chat, common, generate
from ramet.cli.chat import Chat
from ramet.cli.source import Local, Messages, Piece, Remote
from ramet.errors import ConfigError, EngineDeadError, RequestError

END = Piece("", "stop", prompt_tokens=10, completion_tokens=5, cached_tokens=4)


class FakeSource:
    """Plays `answers` in turn. An exception in an answer is raised there. Keeps what it was asked."""

    def __init__(self, *answers: list[Piece | BaseException]) -> None:
        self.answers = list(answers)
        self.asked: list[tuple[Any, dict[str, Any]]] = []
        self.closed = 0

    def generate(self, prompt: str, sampling: dict[str, Any]) -> Generator[Piece, None, None]:
        return self._play(prompt, sampling)

    def chat(self, messages: Messages, sampling: dict[str, Any]) -> Generator[Piece, None, None]:
        return self._play(copy.deepcopy(messages), sampling)

    def _play(self, question: Any, sampling: dict[str, Any]) -> Generator[Piece, None, None]:
        self.asked.append((question, sampling))
        try:
            for piece in self.answers.pop(0):
                if isinstance(piece, BaseException):
                    raise piece
                yield piece
        finally:
            self.closed += 1


def typed(*lines: str | BaseException) -> Callable[[str], str]:
    """An `input` whose user types these lines and then closes the terminal."""
    waiting: Iterator[str | BaseException] = iter(lines)

    def read(prompt: str) -> str:
        line = next(waiting, EOFError())
        if isinstance(line, BaseException):
            raise line
        return line

    return read


def converse(source: FakeSource, *lines: str | BaseException, **options: Any) -> tuple[Chat, str]:
    out = io.StringIO()
    ticks = iter(range(1000))
    conversation = Chat(source, {"top_k": 1}, read=typed(*lines), out=out, clock=lambda: float(next(ticks)), **options)
    conversation.loop()
    return conversation, out.getvalue()


def test_several_turns_with_what_was_said_before() -> None:
    source = FakeSource([Piece("Par"), Piece("is"), END], [Piece("Rome"), END])
    conversation, printed = converse(source, "France?", "  ", "Italy?", system="Be brief.")
    assert source.asked[0] == (
        [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "France?"}],
        {"top_k": 1},
    )
    assert [m["content"] for m in source.asked[1][0]] == ["Be brief.", "France?", "Paris", "Italy?"]
    assert [m["role"] for m in conversation.messages] == ["system", "user", "assistant", "user", "assistant"]
    # Asked at 0 s, pieces at 1, 2 and 3 s: four tokens in the two seconds after the first.
    assert "Paris\n5 tokens, 2.0 tokens/s, first after 1.00 s, 4 of 10 prompt tokens cached\n" in printed


def test_speed_counts_the_tokens_after_the_first_piece() -> None:
    source = FakeSource([Piece("Pa", completion_tokens=4), Piece("ris", "stop", 10, 10, 0)])
    _, printed = converse(source, "a")
    assert "10 tokens, 6.0 tokens/s, first after 1.00 s, 0 of 10 prompt tokens cached\n" in printed


def test_reset_keeps_only_the_system_message() -> None:
    source = FakeSource([Piece("one"), END], [Piece("two"), END])
    conversation, _ = converse(source, "a", "/reset", "b", system="s")
    assert [m["content"] for m in source.asked[1][0]] == ["s", "b"]
    assert len(conversation.messages) == 3


def test_exit_ends_and_unknown_commands_do_not_reach_the_model() -> None:
    source = FakeSource([END])
    _, printed = converse(source, "/help", "/exit", "never read")
    assert source.asked == []
    assert "/help is not a command" in printed


def test_interrupt_stops_the_answer_and_not_the_program() -> None:
    source = FakeSource([Piece("half"), KeyboardInterrupt()], [Piece("next"), END])
    conversation, printed = converse(source, "a", KeyboardInterrupt(), "b")
    assert "half\nStopped.\n" in printed
    assert [m["content"] for m in conversation.messages] == ["a", "half", "b", "next"]
    assert source.closed == 2


def test_a_refused_question_is_forgotten() -> None:
    source = FakeSource([RequestError("prompt of 9000 tokens is too long")], [Piece("ok"), END])
    conversation, printed = converse(source, "a", "b")
    assert "Refused: prompt of 9000 tokens is too long" in printed
    assert [m["content"] for m in conversation.messages] == ["b", "ok"]


def test_a_dead_engine_ends_the_program() -> None:
    with pytest.raises(EngineDeadError):
        converse(FakeSource([EngineDeadError("gone")]), "a")


def arguments(command: Any, *given: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    return parser.parse_args(given)


class FakeEngine:
    """`ramet.Engine` as far as the commands use it."""

    opened: list[dict[str, Any]] = []

    def __init__(self, **options: Any) -> None:
        FakeEngine.opened.append(options)

    def __enter__(self) -> FakeEngine:
        return self

    def __exit__(self, *error: object) -> None:
        return None

    def generate(self, prompt: str, sampling: dict[str, Any], stream: bool) -> Iterator[dict[str, Any]]:
        assert stream
        finish = {"type": "length", "length": 2}
        meta = {"prompt_tokens": 3, "completion_tokens": 2, "cached_tokens": 1}
        yield {"text": prompt[:1], "meta_info": {"finish_reason": None, **meta}}
        yield {"text": prompt[:1] + "é", "meta_info": {"finish_reason": finish, **meta}}

    def chat(self, messages: Messages, sampling: dict[str, Any], stream: bool) -> Iterator[dict[str, Any]]:
        return self.generate(messages[-1]["content"], sampling, stream)


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> type[FakeEngine]:
    FakeEngine.opened = []
    monkeypatch.setitem(vars(ramet), "Engine", FakeEngine)  # it is made on first use: look nothing up
    return FakeEngine


def test_generate_streams_to_standard_output(engine: type[FakeEngine], capsys: pytest.CaptureFixture[str]) -> None:
    args = arguments(generate, "Hello", "--threads", "1", "--temperature", "0", "--model-path", "m.gguf")
    assert generate.run(args) == 0
    assert capsys.readouterr().out == "Hé\n"
    assert engine.opened == [{"threads": 1, "model_path": "m.gguf"}]


def test_generate_json(engine: type[FakeEngine], capsys: pytest.CaptureFixture[str]) -> None:
    assert generate.run(arguments(generate, "Hello", "--json")) == 0
    assert json.loads(capsys.readouterr().out) == {
        "text": "Hé",
        "finish_reason": "length",
        "prompt_tokens": 3,
        "completion_tokens": 2,
        "cached_tokens": 1,
    }


def test_generate_from_standard_input(
    engine: type[FakeEngine], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("Zoo"))
    generate.run(arguments(generate, "-"))
    assert capsys.readouterr().out == "Zé\n"


def test_model_without_url_is_the_model_to_load_as_for_serve(engine: type[FakeEngine]) -> None:
    generate.run(arguments(generate, "Hello", "--model", "here"))
    assert engine.opened == [{"model_path": "here"}]
    with pytest.raises(ConfigError, match="name two models"):
        generate.run(arguments(generate, "Hello", "--model", "here", "--model-path", "there"))


@pytest.mark.parametrize(
    "flags", [("--url", "http://host", "--threads", "2"), ("--url", "http://host", "--model-path", "x")]
)
def test_flags_of_an_engine_are_not_ignored_beside_a_server(flags: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError, match="is the server's to choose"):
        generate.run(arguments(generate, "Hello", *flags))


def test_a_key_without_a_server_is_not_ignored(engine: type[FakeEngine]) -> None:
    with pytest.raises(ConfigError, match="say which with --url"):
        generate.run(arguments(generate, "Hello", "--api-key", "k"))


def test_generate_many(engine: type[FakeEngine], capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "prompts").write_text("one\n\ntwo\n")
    generate.run(arguments(generate, "--prompts", str(tmp_path / "prompts")))
    captured = capsys.readouterr()
    assert [json.loads(line)["prompt"] for line in captured.out.splitlines()] == ["one", "two"]
    assert "2/2 prompts" in captured.err


def test_generate_many_keeps_order_and_ends_early_on_an_error() -> None:
    class Failing(FakeSource):
        def generate(self, prompt: str, sampling: dict[str, Any]) -> Generator[Piece, None, None]:
            if prompt == "bad":
                raise RequestError("refused")
            return super().generate(prompt, sampling)

    source, out = Failing([Piece("x"), END], [Piece("x"), END]), io.StringIO()
    with pytest.raises(RequestError, match="refused"):
        generate.generate_all(source, ["one", "two", "bad"], {}, out)
    assert [json.loads(line)["prompt"] for line in out.getvalue().splitlines()] == ["one", "two"]


@pytest.mark.parametrize("given", [[], ["a", "--prompts", "b"], ["--prompts", "no such file"]])
def test_generate_needs_one_source_of_prompts(engine: type[FakeEngine], given: list[str]) -> None:
    with pytest.raises(ConfigError):
        generate.run(arguments(generate, *given))


def test_a_bad_flag_is_refused_before_a_model_is_loaded(engine: type[FakeEngine]) -> None:
    with pytest.raises(RequestError, match=r"^--top-p must be"):
        generate.run(arguments(generate, "a", "--top-p", "7"))
    assert engine.opened == []


def test_chat_command(
    engine: type[FakeEngine], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("Yes\n/exit\n"))
    assert chat.run(arguments(chat, "--system", "x")) == 0
    assert "Yé\n2 tokens" in capsys.readouterr().out


def test_an_aborted_answer_is_an_error() -> None:
    class Aborting(FakeEngine):
        def generate(self, prompt: str, sampling: dict[str, Any], stream: bool) -> Iterator[dict[str, Any]]:
            yield {"text": "", "meta_info": {"finish_reason": {"type": "abort", "message": "too long"}}}

    with pytest.raises(RequestError, match="too long"):
        list(Local(Aborting()).generate("a", {}))


class FakeConnection:
    """An HTTP connection that answers with `status` and `body`, or refuses."""

    status = 200
    body = b""
    refuses: OSError | None = None
    asked: list[tuple[str, Any, dict[str, str]]] = []
    closed = 0

    def __init__(self, host: str, port: int | None, timeout: float) -> None:
        self.host = (host, port)

    def request(self, method: str, path: str, body: str, headers: dict[str, str]) -> None:
        if self.refuses:
            raise self.refuses
        FakeConnection.asked.append((path, json.loads(body), headers))

    def getresponse(self) -> FakeConnection:
        return self

    def read(self) -> bytes:
        return self.body

    def __iter__(self) -> Iterator[bytes]:
        return iter(self.body.splitlines(keepends=True))

    def close(self) -> None:
        FakeConnection.closed += 1


@pytest.fixture
def connection(monkeypatch: pytest.MonkeyPatch) -> type[FakeConnection]:
    monkeypatch.setattr(http.client, "HTTPConnection", FakeConnection)
    for name, value in {"status": 200, "body": b"", "refuses": None, "asked": [], "closed": 0}.items():
        monkeypatch.setattr(FakeConnection, name, value)
    return FakeConnection


def events(*data: Any) -> bytes:
    return b": keep-alive\n\n" + b"".join(f"data: {json.dumps(d)}\n\n".encode() for d in data)


USAGE = {
    "choices": [],
    "usage": {"prompt_tokens": 7, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 3}},
}


def test_remote_chat(connection: type[FakeConnection]) -> None:
    connection.body = events(
        {"choices": [{"delta": {"role": "assistant", "content": ""}}]},
        {"choices": [{"delta": {"content": "Pa"}}]},
        {"choices": [{"delta": {"content": "ris"}, "finish_reason": "stop"}]},
        USAGE,
    ) + b"data: [DONE]\n\n"  # fmt: skip
    remote = Remote("http://host:30000/base/", api_key="k", model="m")
    pieces = list(
        remote.chat([{"role": "user", "content": "?"}], {"max_new_tokens": None, "sampling_seed": 5, "top_k": 2})
    )
    assert pieces == [Piece("Pa"), Piece("ris"), Piece("", "stop", 7, 2, 3)]
    ((path, body, headers),) = connection.asked
    assert path == "/base/v1/chat/completions"
    assert body == {
        "model": "m", "messages": [{"role": "user", "content": "?"}], "seed": 5, "top_k": 2,
        "stream": True, "stream_options": {"include_usage": True},
    }  # fmt: skip
    assert headers["Authorization"] == "Bearer k"
    assert connection.closed == 1


def test_remote_generate(connection: type[FakeConnection]) -> None:
    connection.body = events({"choices": [{"text": "x", "finish_reason": "length"}]}, USAGE) + b"data: [DONE]\n\n"
    assert list(Remote("localhost:1").generate("p", {})) == [Piece("x"), Piece("", "length", 7, 2, 3)]
    assert connection.asked[0][0] == "/v1/completions"
    assert connection.asked[0][1]["max_tokens"] == 128


def test_leaving_an_answer_hangs_up(connection: type[FakeConnection]) -> None:
    connection.body = events(*[{"choices": [{"text": "x"}]}] * 5)
    pieces = Remote("localhost:1").generate("p", {})
    next(pieces)
    pieces.close()
    assert connection.closed == 1


@pytest.mark.parametrize(
    ("status", "body", "message"),
    [
        (400, b'{"error": {"message": "top_p must be"}}', "top_p must be"),
        (400, b'{"object": "error", "message": "bad prompt"}', "bad prompt"),
        (401, b'{"error": "Unauthorized"}', "Unauthorized"),
        (502, b"<html>", "the server answered 502: <html>"),
        (200, events({"error": {"message": "aborted"}}), "aborted"),
    ],
)
def test_remote_refusals_carry_the_servers_words(
    connection: type[FakeConnection], status: int, body: bytes, message: str
) -> None:
    connection.status, connection.body = status, body
    with pytest.raises(RequestError) as caught:
        list(Remote("localhost:1").generate("p", {}))
    assert caught.value.message == message


def test_a_server_that_is_not_there_or_goes_away(connection: type[FakeConnection]) -> None:
    connection.body = events({"choices": [{"text": "x"}]})
    with pytest.raises(EngineDeadError, match="in the middle"):
        list(Remote("localhost:1").generate("p", {}))
    connection.refuses = ConnectionRefusedError("refused")
    with pytest.raises(ConfigError, match="ramet serve"):
        list(Remote("localhost:1").generate("p", {}))


@pytest.mark.parametrize("url", ["ftp://x", "http://", ""])
def test_urls_that_cannot_be(url: str) -> None:
    with pytest.raises(ConfigError, match="--url"):
        Remote(url)


def test_every_flag_is_a_parameter() -> None:
    parser = argparse.ArgumentParser()
    common.add_sampling_arguments(parser)
    values = {"max_new_tokens": "3", "sampling_seed": "4", "top_k": "5"}
    given = [
        part for name in common.SAMPLING_FLAGS for part in (f"--{name.replace('_', '-')}", values.get(name, "0.5"))
    ]
    sampling = common.given_sampling(parser.parse_args([*given, "--stop", "a", "--stop", "b"]))
    assert sampling.keys() == {*common.SAMPLING_FLAGS, "stop"}
    assert sampling["stop"] == ["a", "b"]
