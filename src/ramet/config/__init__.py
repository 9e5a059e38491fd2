"""Configuration: what exists (tree), how it is written (flags), what was left open (resolve), facts (machine)."""

from ramet.config.resolve import Machine, ModelFacts, Resolved, build, layer, resolve
from ramet.config.tree import (
    ApiSection,
    CacheSection,
    Config,
    ExecutorSection,
    LogSection,
    ModelSection,
    SchedulerSection,
    ServerSection,
    flatten,
    options,
)

__all__ = [
    "ApiSection",
    "CacheSection",
    "Config",
    "ExecutorSection",
    "LogSection",
    "Machine",
    "ModelFacts",
    "ModelSection",
    "Resolved",
    "SchedulerSection",
    "ServerSection",
    "build",
    "flatten",
    "layer",
    "options",
    "resolve",
]
