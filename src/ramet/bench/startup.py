"""What a user waits for and pays before the first request: import, start of a server, its memory.

Each number stands beside the most that ramet promises for it with the default model on disk, on two cores.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from ramet.errors import RametError

IMPORT_MOST_S = 0.3
HEALTH_MOST_S = 2.5
RESIDENT_MOST_MB = 600
POOL_TOKENS = 32768

_IMPORT = "import time; began = time.perf_counter(); import ramet; print(time.perf_counter() - began)"
#: Between two probes of a starting server: short beside the second that a start takes.
_PROBE_S = 0.01
_GIVE_UP_S = 60.0


def measure(flags: Sequence[str], repeats: int) -> Iterator[dict[str, Any]]:
    """JSON-ready rows; `flags` are further ones for `ramet serve`. The first of each kind only warms up the disk."""
    imports = [import_s() for _ in range(repeats + 1)][1:]
    yield {"measure": "import_s", **_spread(imports), "most": IMPORT_MOST_S}
    starts = [start(flags) for _ in range(repeats + 1)][1:]
    yield {"measure": "health_s", **_spread([health_s for health_s, _ in starts]), "most": HEALTH_MOST_S}
    resident = [resident_mb for _, resident_mb in starts]
    yield {"measure": "resident_mb", **_spread(resident), "most": RESIDENT_MOST_MB, "pool_tokens": POOL_TOKENS}


def _spread(values: list[float]) -> dict[str, Any]:
    return {"median": round(statistics.median(values), 3), "all": [round(value, 3) for value in values]}


def import_s() -> float:
    """Seconds that `import ramet` takes in a new interpreter."""
    done = subprocess.run([sys.executable, "-c", _IMPORT], capture_output=True, text=True, check=True)
    return float(done.stdout)


def start(flags: Sequence[str]) -> tuple[float, float]:
    """(seconds from the start of `ramet serve` to its first 200 on /health, megabytes resident then)."""
    command = [
        sys.executable,
        "-m",
        "ramet.cli",
        "serve",
        "--port",
        "0",
        "--max-total-tokens",
        str(POOL_TOKENS),
        *flags,
    ]
    began_s = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            url = _url(process)
            while not _healthy(f"{url}/health"):
                if process.poll() is not None or time.perf_counter() - began_s > _GIVE_UP_S:
                    raise RametError("the server does not answer /health")
                time.sleep(_PROBE_S)
            return time.perf_counter() - began_s, sum(map(resident_mb, family(process.pid)))
        finally:
            process.terminate()
            process.communicate()


def _url(process: subprocess.Popen[str]) -> str:
    """Where the server listens, which it says once it serves."""
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("Listening on "):
            return line.split()[-1]
    assert process.stderr is not None
    raise RametError(f"the server did not start: {process.stderr.read().strip()[-2000:]}")


def _healthy(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return bool(answer.status == 200)
    except urllib.error.URLError:
        return False


def family(pid: int) -> list[int]:
    """A process and all its descendants."""
    found = [pid]
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in (task / "children").read_text(encoding="ascii").split():
            found += family(int(child))
    return found


def resident_mb(pid: int) -> float:
    """Resident memory; what processes share counts in each."""
    pages = int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6
