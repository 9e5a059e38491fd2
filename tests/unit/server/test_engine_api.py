"""The offline engine: results, streams, errors, life and death."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import ramet
from ramet.errors import CheckpointError, ConfigError, EngineDeadError, RequestError
from support import toy

SCRIPT = ",".join(map(str, [*toy.ids("Hi", " there", "ok"), toy.EOS]))
OPTIONS: dict[str, Any] = {"load_format": "dummy", "executor": "scripted", "max_total_tokens": 512}


@pytest.fixture(scope="module")
def engine(model: Path) -> Iterator[ramet.Engine]:
    with ramet.Engine(str(model), scripted_tokens=SCRIPT, **OPTIONS) as engine:
        yield engine


def test_one_prompt_gives_a_dict_and_a_list_a_list(engine: ramet.Engine) -> None:
    one = engine.generate("go", {"max_new_tokens": 8})
    assert one["text"] == "Hi thereok"
    assert one["meta_info"]["finish_reason"] == {"type": "stop", "matched": toy.EOS}
    assert [answer["text"] for answer in engine.generate(["go", "on"], {"max_new_tokens": 1})] == ["Hi", "Hi"]
    assert [answer["text"] for answer in engine.generate(["go"])] == ["Hi thereok"]
    assert engine.generate(input_ids=[1, 2], sampling_params={"max_new_tokens": 1})["output_ids"] == toy.ids("Hi")
    each = engine.generate(["a", "b"], [{"max_new_tokens": 1}, {"max_new_tokens": 2}])
    assert [answer["text"] for answer in each] == ["Hi", "Hi there"]


def test_progress_is_a_bar_of_finished_answers_when_asked(
    engine: ramet.Engine, capsys: pytest.CaptureFixture[str]
) -> None:
    answers = engine.generate(["a", "b"], {"n": 2, "max_new_tokens": 1}, progress=True)
    assert [answer["text"] for answer in answers] == ["Hi"] * 4
    assert capsys.readouterr().err.startswith("Generating  100%  4/4 answers")
    engine.generate(["a", "b"], {"max_new_tokens": 1})
    assert capsys.readouterr().err == ""
    with pytest.raises(RequestError, match="progress is for whole answers"):
        engine.generate("a", stream=True, progress=True)


def test_params_may_be_an_object(engine: ramet.Engine) -> None:
    assert engine.generate("go", ramet.SamplingParams(max_new_tokens=2))["text"] == "Hi there"
    assert engine.generate("go", ramet.SamplingParams(stop=(" there",)))["text"] == "Hi"
    with pytest.raises(RequestError, match="top_p"):
        engine.generate("go", ramet.SamplingParams(top_p=2.0))


def test_streams_are_cumulative(engine: ramet.Engine) -> None:
    texts = [chunk["text"] for chunk in engine.generate("go", stream=True)]
    assert texts[-1] == "Hi thereok"
    assert all(texts[-1].startswith(text) for text in texts)


def test_a_stream_that_is_dropped_ends_its_request(engine: ramet.Engine) -> None:
    stream = engine.generate("go", {"ignore_eos": True, "max_new_tokens": 200}, stream=True)
    next(stream)
    stream.close()
    assert engine.flush_cache(timeout=5)


async def test_it_works_where_a_loop_is_running(engine: ramet.Engine) -> None:
    assert engine.generate("go", {"max_new_tokens": 1})["text"] == "Hi"
    assert (await engine.async_generate("go", {"max_new_tokens": 1}))["text"] == "Hi"
    several = await asyncio.gather(*(engine.async_generate("go") for _ in range(4)))
    assert [answer["text"] for answer in several] == ["Hi thereok"] * 4
    last = None
    async for chunk in await engine.async_generate("go", stream=True):
        last = chunk["text"]
    assert last == "Hi thereok"


def test_chat(engine: ramet.Engine) -> None:
    answer = engine.chat([{"role": "user", "content": "go"}], {"temperature": 0})
    assert answer["text"] == "Hi thereok"
    assert answer["meta_info"]["prompt_tokens"] == len("<bos><turn>") - 9 + len("user:go") + 1 + 1 + len("assistant:")
    streamed = list(engine.chat([{"role": "user", "content": "go"}], stream=True))
    assert streamed[-1]["text"] == "Hi thereok"


def test_logprobs(engine: ramet.Engine) -> None:
    meta = engine.generate("go", {"max_new_tokens": 2}, return_logprob=True, top_logprobs_num=1)["meta_info"]
    assert [triple[1] for triple in meta["output_token_logprobs"]] == toy.ids("Hi", " there")


def test_text_and_ids(engine: ramet.Engine) -> None:
    assert engine.encode("menu x") == toy.ids("menu ", "x")
    assert engine.decode(toy.ids("menu ", "x")) == "menu x"


def test_information(engine: ramet.Engine) -> None:
    assert engine.get_server_info()["max_total_num_tokens"] == 512
    assert engine.get_model_info()["max_model_len"] == toy.CONTEXT


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"prompt": ""},
        {"prompt": []},
        {"input_ids": []},
        {"input_ids": [toy.VOCAB_SIZE]},
        {"prompt": 5},
        {"prompt": "x" * 300},
        {"prompt": "x", "sampling_params": {"temperature": float("nan")}},
        {"prompt": "x", "sampling_params": {"max_tokens": 3}},
        {"prompt": "x", "sampling_params": "hot"},
        {"prompt": "x", "sampling_params": {"stop_regex": "^a"}},
        {"prompt": "x", "priority": 1 << 63},
        {"prompt": "half a \ud83d character"},
        {"prompt": "x", "rid": "\ud83d"},
        {"prompt": "x", "cache_salt": "\ud83d"},
        {"prompt": ["a", "b"], "sampling_params": [{}]},
    ],
)
def test_what_cannot_be_done_is_raised_by_the_call(engine: ramet.Engine, arguments: dict[str, Any]) -> None:
    for stream in (False, True):
        with pytest.raises(RequestError):
            engine.generate(**arguments, stream=stream)
    assert engine.generate("go", {"max_new_tokens": 1})["text"] == "Hi"


def test_c13_auto_truncate_is_honoured_offline(model: Path) -> None:
    with ramet.Engine(str(model), context_length=64, allow_auto_truncate=True, **OPTIONS) as engine:
        answer = engine.generate("x" * 60, {"max_new_tokens": 10, "ignore_eos": True})
        assert answer["meta_info"]["completion_tokens"] == 4


def test_m07_used_twice_in_a_row_and_closed_for_good(model: Path) -> None:
    threads = set(threading.enumerate())
    for _ in range(2):
        with ramet.Engine(str(model), scripted_tokens=SCRIPT, **OPTIONS) as engine:
            assert engine.generate("go", {"max_new_tokens": 1})["text"] == "Hi"
        engine.shutdown()
        with pytest.raises(EngineDeadError):
            engine.generate("go")
    assert set(threading.enumerate()) <= threads


def test_m07_a_failed_start_leaves_nothing_behind(model: Path, tmp_path: Path) -> None:
    threads = set(threading.enumerate())
    broken = toy.write(tmp_path / "broken")
    (broken / "tokenizer.json").write_text("{}")
    with pytest.raises(CheckpointError):
        ramet.Engine(str(broken), **OPTIONS)
    with pytest.raises(ConfigError):
        ramet.Engine(str(model), **OPTIONS, scripted_tokens="no")
    with pytest.raises(ConfigError, match="contxt_length"):
        ramet.Engine(str(model), contxt_length=5)
    with pytest.raises(ConfigError):
        ramet.Engine(str(tmp_path / "nowhere"))
    assert set(threading.enumerate()) <= threads


def test_m07_forgetting_to_close_does_not_hang_the_exit(model: Path) -> None:
    program = (
        "import ramet, sys\n"
        f"engine = ramet.Engine(sys.argv[1], **{OPTIONS!r})\n"
        "print(len(engine.generate('go', {'max_new_tokens': 2, 'ignore_eos': True})['output_ids']))\n"
        "stream = engine.generate('go', {'max_new_tokens': 200, 'ignore_eos': True}, stream=True)\n"
        "next(stream)\n"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program, str(model)],
        env=child_environment(),
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "2\n", "")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_is_refused_instead_of_waiting_for_threads_that_it_has_not(model: Path) -> None:
    code = (
        "import os, sys, ramet, ramet.errors\n"
        f"engine = ramet.Engine({str(model)!r}, load_format='dummy', executor='scripted')\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    try:\n"
        "        engine.generate('x')\n"
        "    except ramet.errors.EngineDeadError:\n"
        "        sys.exit(7)\n"  # with the handlers of the exit, which shut engines down
        "assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7\n"
        "engine.generate('x', {'max_new_tokens': 1})\n"
    )
    subprocess.run([sys.executable, "-c", code], env=child_environment(), check=True, timeout=20)


def test_import_is_light() -> None:
    program = (
        "import sys, ramet\n"
        "heavy = {'fastapi', 'uvicorn', 'starlette', 'tokenizers', 'jinja2', 'numpy', 'msgspec'} & sys.modules.keys()\n"
        "print(sorted(heavy), ramet.SamplingParams.__name__, bool(ramet.__version__))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], env=child_environment(), capture_output=True, text=True, check=True, timeout=30
    )
    assert done.stdout == "[] SamplingParams True\n"


def child_environment() -> dict[str, str]:
    """A child finds the same package as this process."""
    import os

    root = str(Path(ramet.__file__).parent.parent)
    return {**os.environ, "PYTHONPATH": root}
