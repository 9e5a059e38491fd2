"""`GET /metrics`: Prometheus text, with the names that SGLang's dashboards query."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.responses import Response

from ramet.errors import RametError
from ramet.server.context import Context
from ramet.text.generation import Choice

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry, Histogram
    from prometheus_client.metrics_core import Metric

_FIRST_TOKEN_BUCKETS = (0.1, 0.2, 0.4, 0.6, 0.8, 1, 2, 4, 6, 8, 10, 20, 40, 60, 80, 100, 200, 400)
_LATENCY_BUCKETS = (*_FIRST_TOKEN_BUCKETS, 600, 1200, 1800, 2400)
_INTER_TOKEN_BUCKETS = (
    *(0.002, 0.004, 0.006, 0.008, 0.01, 0.015, 0.02, 0.025, 0.03, 0.035, 0.04, 0.06, 0.08, 0.1, 0.2, 0.4, 0.6, 0.8),
    *(1, 2, 4, 6, 8),
)

#: Gauge, which is also the key of the engine's `server_info` -> meaning.
_GAUGES = {
    "num_running_reqs": "Requests that hold a row.",
    "num_queue_reqs": "Requests that wait for one.",
    "num_used_tokens": "Token slots in use by requests and cached prefixes.",
    "token_usage": "Share of the token slots that running requests hold.",
    "max_total_num_tokens": "Token slots of the KV pool.",
    "page_size": "Token slots in a page.",
    "gen_throughput": "Generated tokens per second, lately.",
    "cache_hit_rate": "Share of prompt tokens found in the prefix cache, since the start.",
}

_HISTOGRAMS = (
    ("time_to_first_token_seconds", "From arrival to the first token.", _FIRST_TOKEN_BUCKETS),
    ("e2e_request_latency_seconds", "From arrival to the last token.", _LATENCY_BUCKETS),
    ("inter_token_latency_seconds", "Mean time between two tokens of a request.", _INTER_TOKEN_BUCKETS),
)

#: Finished requests whose times wait for a scrape.
MAX_NOTED = 10_000


class Metrics:
    """The route, and the collector behind it. prometheus-client is imported at the first scrape: it costs 0.1 s."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._engine: Mapping[str, Any] = {}
        self._registry: CollectorRegistry | None = None
        self._histograms: list[Histogram] = []
        self._noted: list[tuple[float | None, ...]] = []
        context.on_finish.append(self.observe)

    async def scrape(self, request: Request) -> Response:
        from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

        registry = self._count()
        frontend = self._context.frontend
        self._engine = {}
        if frontend is not None and frontend.dead is None:
            try:
                self._engine = await asyncio.wait_for(frontend.call("server_info"), 2.0)
            except (RametError, asyncio.TimeoutError):
                self._engine = {}  # a scrape shows what can be had; health tells the rest
        return Response(generate_latest(registry), headers={"content-type": CONTENT_TYPE_LATEST})

    def observe(self, choice: Choice) -> None:
        """Called with each finished request: only notes its times, so that no request waits for an import."""
        if choice.first_token_s is None or choice.finished_s is None:
            return
        tokens = len(choice.output_ids) + choice.waiting_tokens
        gap = (choice.finished_s - choice.first_token_s) / (tokens - 1) if tokens > 1 else None
        self._noted.append((choice.first_token_s - choice.arrived_s, choice.finished_s - choice.arrived_s, gap))
        if len(self._noted) >= MAX_NOTED:
            self._count()

    def _count(self) -> CollectorRegistry:
        """Move what was noted into the histograms."""
        from prometheus_client import CollectorRegistry, Histogram

        if self._registry is None:
            self._registry = CollectorRegistry()
            self._registry.register(self)
            self._histograms = [
                Histogram(f"sglang:{name}", words, registry=self._registry, buckets=buckets)
                for name, words, buckets in _HISTOGRAMS
            ]
        noted, self._noted = self._noted, []
        for times in noted:
            for histogram, time_s in zip(self._histograms, times, strict=True):
                if time_s is not None:
                    histogram.observe(time_s)
        return self._registry

    def collect(self) -> Iterator[Metric]:
        """prometheus-client's collector protocol."""
        from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily

        model = self._context.card.served_name if self._context.card else ""
        labels = ["model_name"]

        def counter(name: str, words: str, value: float) -> Metric:
            family = CounterMetricFamily(f"sglang:{name}", words, labels=labels)
            family.add_metric([model], value)
            return family

        frontend = self._context.frontend
        if frontend is not None:
            stats = frontend.stats
            yield counter("num_requests", "Requests that have ended.", stats.requests)
            yield counter("num_aborted_requests", "Requests that were aborted.", stats.aborted)
            yield counter("prompt_tokens", "Prompt tokens of ended requests.", stats.prompt_tokens)
            yield counter("generation_tokens", "Generated tokens of ended requests.", stats.completion_tokens)
            yield counter("cached_tokens", "Prompt tokens found in the prefix cache.", stats.cached_tokens)
        for name, words in _GAUGES.items():
            if name in self._engine:
                gauge = GaugeMetricFamily(f"sglang:{name}", words, labels=labels)
                gauge.add_metric([model], self._engine[name])
                yield gauge
