"""`ramet doctor`: what this machine and installation can do, with a remedy for whatever is missing."""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import platform
import sys
from typing import Any

from ramet.config.machine import probe

#: Installed with ramet; a missing or broken one is the first thing to know.
LIBRARIES = ("numpy", "msgspec", "pyzmq", "fastapi", "uvicorn", "tokenizers", "jinja2", "huggingface_hub", "llguidance")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print the facts as JSON")


def run(args: argparse.Namespace) -> int:
    facts, troubles = examine()
    if args.json:
        print(json.dumps({"facts": facts, "troubles": troubles}, indent=2))
    else:
        width = max(map(len, facts))
        for name, value in facts.items():
            print(f"{name:<{width}}  {value}")
        for trouble in troubles:
            print(f"! {trouble}")
    return 1 if troubles else 0


def examine() -> tuple[dict[str, Any], list[str]]:
    """Facts by name, and sentences about what will not work."""
    from ramet import __version__

    machine = probe()
    facts: dict[str, Any] = {
        "ramet": __version__,
        "python": f"{platform.python_version()} ({sys.executable})",
        "system": f"{platform.system()} {platform.machine()}",
        "usable cores": machine.cores,
        "available memory": f"{machine.available_bytes / 1e9:.1f} GB",
    }
    troubles: list[str] = []
    try:
        from ramet._native import cpu_info

        cpu = cpu_info()
        facts["cpu features"] = " ".join(cpu["features"])
        facts["kernel tiers"] = f"{cpu['tier']} chosen of {', '.join(cpu['tiers'])}"
    except ImportError as error:
        troubles.append(
            f"the native library does not load ({error}); reinstall with `pip install --force-reinstall ramet`"
        )
    for name in LIBRARIES:
        try:
            facts[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            troubles.append(f"{name} is not installed; `pip install {name}`")
    from ramet.weights import default_model

    stored = default_model.stored_path()
    facts["default model"] = str(stored) if stored else "not on this disk yet; `ramet serve` fetches it (98 MB)"
    return facts, troubles
