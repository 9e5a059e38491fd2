"""Writes the generated reference pages, or compares them with what is there (`--check`)."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

from ramet.config.flags import reference_page
from ramet.plan.ops import operations_page
from ramet.server.errors import errors_page

PAGES: dict[str, Callable[[], str]] = {
    "flags.md": reference_page,
    "operations.md": operations_page,
    "errors.md": errors_page,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; fail if a page is not current")
    check: bool = parser.parse_args().check
    folder = Path(__file__).resolve().parent.parent / "docs" / "reference"
    stale = []
    for name, render in PAGES.items():
        path, text = folder / name, render().rstrip() + "\n"
        if path.exists() and path.read_text(encoding="utf-8") == text:
            continue
        if check:
            stale.append(str(path.relative_to(folder.parent.parent)))
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
    if stale:
        print(f"not current: {', '.join(stale)}; run scripts/docs", file=sys.stderr)
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
