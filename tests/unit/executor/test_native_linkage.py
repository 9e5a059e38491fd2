"""The linkage trap: no tier file may offer the linker a function that other code could end up calling."""

from __future__ import annotations

import platform
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
COMPILER = shutil.which("c++") or shutil.which("g++")
TIERS = ("scalar", "avx2", "avx512") if platform.machine() in ("x86_64", "AMD64") else ("scalar",)


def tier_flags(tier: str) -> list[str]:
    """The tier's own flags, as CMakeLists.txt sets them."""
    if tier == "scalar":
        return []
    found = re.search(rf"set\(RAMET_{tier.upper()}_FLAGS ([^)]*)\)", (ROOT / "CMakeLists.txt").read_text())
    assert found, f"CMakeLists.txt sets no flags for {tier}"
    return found[1].split()


@pytest.mark.skipif(COMPILER is None or shutil.which("nm") is None, reason="needs a C++ compiler and nm")
@pytest.mark.parametrize("tier", TIERS)
def test_a_tier_file_exports_its_table_and_nothing_else(tier: str, tmp_path: Path) -> None:
    """At -O0, where inlining hides nothing. native/kernels/tier_scalar.cc says what happens otherwise."""
    target = tmp_path / "tier.o"
    source = ROOT / "native" / "kernels" / f"tier_{tier}.cc"
    command = [
        str(COMPILER),
        "-std=c++20",
        "-O0",
        "-fPIC",
        *tier_flags(tier),
        f"-I{ROOT / 'native'}",
        "-c",
        str(source),
    ]
    subprocess.run([*command, "-o", str(target)], check=True, timeout=100)
    lines = subprocess.run(["nm", "-C", str(target)], check=True, capture_output=True, text=True).stdout.splitlines()
    symbols = [line.split(maxsplit=2)[-2:] for line in lines if not line.startswith(" ")]
    exported = [name for kind, name in symbols if kind.isupper() and kind != "U"]
    weak = [name for kind, name in symbols if kind in "vVwWu"]
    assert weak == []
    assert exported == [f"ramet::k{tier.capitalize()}Kernels"]
