"""Configuration: `tree` (what exists), `flags` (how it is written), `resolve` (what was left open), `machine` (facts)."""

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
