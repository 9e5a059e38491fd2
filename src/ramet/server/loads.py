"""`GET /v1/loads`: how busy the engine is, for routers; one entry, since there is one engine."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

import ramet
from ramet.errors import RequestError
from ramet.server.context import Context
from ramet.server.info import engine_state
from ramet.server.responses import json_response

SECTIONS = ("core", "memory", "spec", "lora", "disagg", "queues", "all")


class Loads:
    """The route."""

    def __init__(self, context: Context) -> None:
        self._context = context

    async def loads(self, request: Request) -> Response:
        """`?include=`: some of core, memory, queues (and spec, lora, disagg, which are empty here), by commas; default
        all. `?format=prometheus`: the same as gauges. `?dp_rank=`: only 0 exists."""
        query = request.query_params
        wanted = {name.strip() for name in query.get("include", "all").split(",")}
        unknown = sorted(wanted - set(SECTIONS))
        if unknown:
            raise RequestError(
                f"include: {', '.join(unknown)[:80]!a} is none of {', '.join(SECTIONS)}.", field="include"
            )
        form = query.get("format", "json")
        if form not in ("json", "prometheus"):
            raise RequestError(f"format must be json or prometheus, not {form[:80]!a}.", field="format")
        rank = query.get("dp_rank", "0")
        if not rank.isascii() or not rank.isdigit():
            raise RequestError(f"dp_rank must be a number, not {rank[:80]!a}.", field="dp_rank")
        now = datetime.datetime.now(datetime.timezone.utc).isoformat()
        loads = []
        if int(rank[:19]) == 0:
            loads.append({"timestamp": now, **load_of(await engine_state(self._context), wanted)})
        if form == "prometheus":
            return PlainTextResponse(prometheus(loads), media_type="text/plain; version=0.0.4; charset=utf-8")
        return json_response(
            {
                "timestamp": now,
                "version": ramet.__version__,
                "accelerator": "cpu",
                "num_accelerators": 1,
                "loads": loads,
            }
        )


def load_of(state: Mapping[str, Any], wanted: set[str]) -> dict[str, Any]:
    """One entry from the engine's `server_info`; the flat part is always there."""
    used, waiting = state["num_used_tokens"], state["num_waiting_tokens"]
    rows = state["max_running_requests"]
    load: dict[str, Any] = {
        "dp_rank": 0,
        "num_running_reqs": state["num_running_reqs"],
        "num_waiting_reqs": state["num_queue_reqs"] + state["num_grammar_queue_reqs"],
        "num_waiting_uncached_tokens": waiting,  # at most: what the cache will give is known when they start
        "num_used_tokens": used,
        "num_total_tokens": used + waiting,
        "max_total_num_tokens": state["max_total_num_tokens"],
        "max_running_requests": rows,
        "token_usage": state["token_usage"],
        "gen_throughput": state["gen_throughput"],
        "cache_hit_rate": state["cache_hit_rate"],
        "utilization": max(state["num_running_reqs"] / rows, state["token_usage"]),
    }
    if wanted & {"memory", "all"}:
        load["memory"] = {"token_capacity": state["max_total_num_tokens"]}
    if wanted & {"queues", "all"}:
        load["queues"] = {
            "waiting": state["num_queue_reqs"],
            "grammar": state["num_grammar_queue_reqs"],
            "paused": state["num_queue_reqs"] if state["paused"] else 0,
            "retracted": state["num_retracted_reqs"],
        }
    return load


def prometheus(loads: list[dict[str, Any]]) -> str:
    """Gauges `sglang_<key>`; keys of objects carry the object's name in front."""
    lines: list[str] = []
    for load in loads:
        flat = {key: value for key, value in load.items() if isinstance(value, int | float) and key != "dp_rank"}
        for name, part in load.items():
            if isinstance(part, dict):
                flat.update({f"{name}_{key}": value for key, value in part.items()})
        for key, value in flat.items():
            lines += [f"# TYPE sglang_{key} gauge", f'sglang_{key}{{dp_rank="{load["dp_rank"]}"}} {value}']
    return "".join(f"{line}\n" for line in lines)
