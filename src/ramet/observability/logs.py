"""One form of log line for every process: `[date time] event=… key=value`, as SGLang's users grep it."""

from __future__ import annotations

import logging


def configure(level: str) -> None:
    """Send ramet's log lines of at least this level to standard error."""
    logging.basicConfig(level=level.upper(), format="[%(asctime)s] %(message)s", datefmt="%Y-%m-%d %H:%M:%S")
