"""The configuration: layers, origins, derived values, and errors that name the flag and the fix."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import pytest

from ramet.config import Config, Machine, ModelFacts, Resolved, build, flatten, layer, options, resolve
from ramet.config.flags import add_flags, given_flags, read_config_file, reference_page
from ramet.config.machine import available_bytes, usable_cores
from ramet.errors import ConfigError

GB = 1 << 30
SMALL = ModelFacts(name="smol", context_length=8192, kv_floats_per_token=11_520, weight_bytes=98_362_432)
LAPTOP = Machine(cores=2, available_bytes=20 * GB)


def resolved(machine: Machine = LAPTOP, **values: Any) -> Resolved:
    return resolve(*layer(("flag", values)), machine, SMALL)


def parse(*argv: str) -> dict[str, Any]:
    parser = argparse.ArgumentParser()
    add_flags(parser)
    return given_flags(parser.parse_args(argv))


def test_what_depends_on_machine_and_model_is_decided() -> None:
    values = flatten(resolved().config)
    decided = {name for name, origin in resolved().origins.items() if origin.startswith("derived: ")}
    assert decided == {
        "model_path", "served_model_name", "context_length", "kv_cache_dtype", "page_size", "threads",
        "max_running_requests", "chunked_prefill_size", "engine_process", "mem_fraction_static", "max_total_tokens",
    }  # fmt: skip
    assert all(values[name] is not None for name in decided)


def test_later_layers_win_and_origins_are_kept() -> None:
    config, origins = layer(("file c.yaml", {"port": 1, "page_size": 32}), ("flag", {"port": 2}))
    assert (config.server.port, config.cache.page_size) == (2, 32)
    assert (origins["port"], origins["page_size"], origins["host"]) == ("flag", "file c.yaml", "default")


def test_derived_values_say_why() -> None:
    result = resolved()
    assert result.config.cache.max_total_tokens == 65_536
    assert result.origins["max_total_tokens"].startswith("derived: ")
    assert "capped at 65536" in result.origins["max_total_tokens"]


def test_the_pool_follows_memory_dtype_and_page_size() -> None:
    tight = Machine(cores=1, available_bytes=1 * GB)
    half = resolved(tight, page_size=64).config.cache.max_total_tokens
    full = resolved(tight, page_size=64, kv_cache_dtype="f32").config.cache.max_total_tokens
    assert half is not None
    assert full is not None
    assert half % 64 == 0
    assert half == (int(GB * 0.4) - SMALL.weight_bytes) // (11_520 * 2) // 64 * 64
    assert full == (int(GB * 0.4) - SMALL.weight_bytes) // (11_520 * 4) // 64 * 64


def test_no_memory_for_the_pool_names_the_fraction_that_would_do() -> None:
    with pytest.raises(ConfigError, match=r"--mem-fraction-static 0.4 allows; at least 0\.9"):
        resolved(Machine(cores=1, available_bytes=105_000_000))


def test_whole_prompt_chunks_become_the_context_length() -> None:
    assert resolved(chunked_prefill_size=-1, context_length=4096).config.scheduler.chunked_prefill_size == 4096


def test_a_pool_in_tokens_is_rounded_to_pages_and_refused_below_one() -> None:
    assert resolved(max_total_tokens=100, page_size=16).config.cache.max_total_tokens == 96
    with pytest.raises(ConfigError, match="less than one page of 16"):
        resolved(max_total_tokens=15)


def test_context_beyond_the_model_is_refused_with_the_limit() -> None:
    with pytest.raises(ConfigError, match="8192 tokens"):
        resolved(context_length=8193)


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("port", 70_000, "--port must be at most 65535"),
        ("port", "80", "--port must be a whole number"),
        ("port", True, "--port must be a whole number"),
        ("page_size", 24, "--page-size must be a power of two"),
        ("chunked_prefill_size", 0, "--chunked-prefill-size must be -1"),
        ("schedule_policy", "best", "--schedule-policy must be one of fcfs, lpm"),
        ("mem_fraction_static", float("nan"), "--mem-fraction-static must be at least"),
        ("host", None, "--host needs a value"),
        ("max_runing_requests", 3, "unknown option 'max_runing_requests'"),
    ],
)
def test_wrong_values_name_the_flag(name: str, value: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        build({name: value})


def test_flags_are_the_tree() -> None:
    assert parse() == {}
    given = parse("--model", "m.gguf", "--no-enable-metrics", "--schedule-conservativeness", "2", "--strict")
    assert given == {
        "model_path": "m.gguf", "enable_metrics": False, "schedule_conservativeness": 2.0, "strict": True
    }  # fmt: skip
    assert build(given).model.model_path == "m.gguf"


def test_config_files(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("model: x\npage-size: 32\n")
    (tmp_path / "b.json").write_text('{"port": 5}')
    assert read_config_file(tmp_path / "a.yaml") == {"model_path": "x", "page_size": 32}
    assert read_config_file(tmp_path / "b.json") == {"port": 5}
    (tmp_path / "empty.yaml").write_text("")
    assert read_config_file(tmp_path / "empty.yaml") == {}


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("c.yaml", "a: [", "not valid YAML"),
        ("c.json", "{", "not valid JSON"),
        ("c.yaml", "- 1", "must hold a mapping"),
    ],
)
def test_broken_config_files_are_refused(tmp_path: Path, name: str, text: str, words: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(ConfigError, match=words):
        read_config_file(tmp_path / name)
    with pytest.raises(ConfigError, match="No such file"):
        read_config_file(tmp_path / "absent.yaml")
    (tmp_path / name).write_bytes(b"\xff\xfea: 1")
    with pytest.raises(ConfigError, match=r"--config .*utf-8"):
        read_config_file(tmp_path / name)


def test_secrets_are_not_shown() -> None:
    shown = {flag: value for flag, value, _ in resolved(api_key="hunter2").describe()}
    assert shown["--api-key"] == "(set)"
    assert "hunter2" not in str(shown)


def test_the_reference_page_lists_every_flag() -> None:
    page = reference_page()
    assert all(f"| `{opt.flag}` |" in page for opt in options().values())


def test_the_default_tree_is_valid() -> None:
    assert build({name: opt.default for name, opt in options().items()}) == Config()


def test_machine_honours_cgroup_limits(tmp_path: Path) -> None:
    (tmp_path / "cpu.max").write_text("100000 100000\n")
    (tmp_path / "memory.max").write_text("1000\n")
    (tmp_path / "memory.current").write_text("400\n")
    (tmp_path / "meminfo").write_text("MemTotal: 9 kB\nMemAvailable:       8 kB\n")
    assert usable_cores(tmp_path) == 1
    assert available_bytes(tmp_path / "meminfo", tmp_path) == 600
    (tmp_path / "memory.max").write_text("max\n")
    assert available_bytes(tmp_path / "meminfo", tmp_path) == 8192
    assert available_bytes(tmp_path / "absent", tmp_path / "absent") > 0
