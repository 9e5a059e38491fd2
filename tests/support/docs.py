"""The pages that people read, and what on them can be run or checked: fenced commands, code spans, links."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
#: Pages about working on ramet: what they name must exist, but their commands are the project's chores.
CHORES = (ROOT / "CONTRIBUTING.md", ROOT / "ARCHITECTURE.md")

_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_SPAN = re.compile(r"`([^`\n]+)`")
_LINK = re.compile(r"\]\(([^)#\s]+)[^)]*\)")


@dataclass(frozen=True, slots=True)
class Command:
    """A shell command or a whole block of Python."""

    page: str
    line: int
    language: str  # sh or python
    text: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def commands(page: Path) -> list[Command]:
    """All of a page, in its order. A fence without a language holds shell commands."""
    text = page.read_text(encoding="utf-8")
    name = page.relative_to(ROOT).as_posix()
    found = []
    for fence in _FENCE.finditer(text):
        language, body = fence[1] or "sh", fence[2]
        line = text.count("\n", 0, fence.start(2)) + 1
        if language == "sh":
            found += [Command(name, line + at, "sh", command) for at, command in shell_commands(body)]
        else:
            found.append(Command(name, line, language, body))
    return found


def shell_commands(body: str) -> list[tuple[int, str]]:
    """Line in the block and text of each command; a command goes on after a backslash and inside quotes."""
    found: list[tuple[int, str]] = []
    begun = ""
    for at, line in enumerate(body.splitlines()):
        if not begun:
            line, start = re.sub(r"\s+# .*", "", line), at
        begun += line
        if begun.endswith("\\") or begun.count("'") % 2:
            begun += "\n"
        elif begun:
            found.append((start, begun))
            begun = ""
    assert not begun, f"a command without an end: {begun}"
    return found


def spans(page: Path) -> list[str]:
    """What stands between single backticks, outside fences."""
    return _SPAN.findall(_FENCE.sub("", page.read_text(encoding="utf-8")))


def links(page: Path) -> list[str]:
    """Targets of links inside the repository."""
    return [target for target in _LINK.findall(page.read_text(encoding="utf-8")) if "://" not in target]
