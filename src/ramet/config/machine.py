"""What this process may use of the machine: cores by affinity and cgroup quota, memory by cgroup limit."""

from __future__ import annotations

import os
from pathlib import Path

from ramet.config.resolve import Machine


def probe() -> Machine:
    """Cores and memory usable now."""
    return Machine(cores=usable_cores(), available_bytes=available_bytes())


def usable_cores(cgroup: Path = Path("/sys/fs/cgroup")) -> int:
    """Cores in the affinity mask, or fewer when a cgroup v2 quota allows less."""
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
    else:
        cores = os.cpu_count() or 1
    quota = _read_words(cgroup / "cpu.max")
    if len(quota) == 2 and quota[0].isdigit() and int(quota[1]) > 0:
        cores = min(cores, max(1, int(quota[0]) // int(quota[1])))
    return cores


def available_bytes(meminfo: Path = Path("/proc/meminfo"), cgroup: Path = Path("/sys/fs/cgroup")) -> int:
    """MemAvailable, or what the cgroup leaves if that is less; total physical memory where neither is known."""
    available = 0
    for line in _read_lines(meminfo):
        if line.startswith("MemAvailable:"):
            available = int(line.split()[1]) * 1024
    if not available:
        available = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit, used = _read_words(cgroup / "memory.max"), _read_words(cgroup / "memory.current")
    if limit and limit[0].isdigit() and used and used[0].isdigit():
        available = min(available, max(int(limit[0]) - int(used[0]), 0))
    return available


def _read_lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:  # not Linux, or no such controller: the caller has another source
        return []


def _read_words(path: Path) -> list[str]:
    lines = _read_lines(path)
    return lines[0].split() if lines else []
