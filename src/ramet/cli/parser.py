"""An argument parser whose errors are two lines: what is wrong, and the flag that was probably meant."""

from __future__ import annotations

import argparse
import difflib
import re
from collections.abc import Iterable
from typing import NoReturn

#: What vLLM and llama.cpp call a flag, and what it is called here; SGLang's names are ramet's.
OTHER_NAMES = {
    "-m": "--model-path",
    "-c": "--context-length",
    "-t": "--threads",
    "-n": "--max-new-tokens",
    "-p": "a prompt without a flag",
    "-np": "--max-running-requests",
    "-b": "--chunked-prefill-size",
    "--ctx-size": "--context-length",
    "--n-predict": "--max-new-tokens",
    "--max-tokens": "--max-new-tokens",
    "--parallel": "--max-running-requests",
    "--batch-size": "--chunked-prefill-size",
    "--alias": "--served-model-name",
    "--seed": "--random-seed, or --sampling-seed for one answer",
    "--jinja": "nothing: templates are always used",
    "--max-model-len": "--context-length",
    "--max-num-seqs": "--max-running-requests",
    "--max-num-batched-tokens": "--chunked-prefill-size",
    "--gpu-memory-utilization": "--mem-fraction-static",
    "--block-size": "--page-size",
    "--tokenizer": "--tokenizer-path",
    "--no-enable-prefix-caching": "--disable-radix-cache",
    "--enable-prefix-caching": "nothing: it is on unless --disable-radix-cache is given",
    "--enable-auto-tool-choice": "nothing: --tool-call-parser is auto",
}


class Parser(argparse.ArgumentParser):
    """argparse prints all of a command's flags before an error, which for `serve` fill the screen."""

    def parse_args(self, args: list[str] | None = None, namespace: None = None) -> argparse.Namespace:  # type: ignore[override]
        """As argparse's, with a suggestion for each argument that is not known."""
        known, unknown = self.parse_known_args(args, namespace)
        if unknown:
            self.error("; ".join(self._unknown(unknown)))
        return known

    def error(self, message: str) -> NoReturn:
        """Exit with 2, as argparse does."""
        self.exit(2, f"{self.prog}: {message}\nTry `{self.prog} --help`.\n")

    def _unknown(self, arguments: list[str]) -> list[str]:
        ours = self.flags()
        flags = [argument.split("=")[0] for argument in arguments if re.match(r"--?[A-Za-z]", argument)]
        if not flags:
            hint = "; a model is named with --model-path" if "--model-path" in ours else ""
            return [f"unexpected argument {arguments[0]!r}{hint}"]
        return [f"unknown flag {flag}{_hint(flag, ours)}" for flag in flags]

    def flags(self) -> set[str]:
        """All that it takes, also below a subcommand, whose unknown arguments are left to the parser above."""
        found = set(self._option_string_actions)
        for action in self._actions:
            if isinstance(action, argparse._SubParsersAction):
                found.update(*(below.flags() for below in action.choices.values()))
        return found


def _hint(flag: str, ours: set[str]) -> str:
    other = OTHER_NAMES.get(flag)
    if other is not None and (not other.startswith("--") or other.split(",")[0] in ours):
        return f"; here it is {other}"
    return did_you_mean(flag, ours)


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """'; did you mean …?', or nothing where nothing is like it."""
    near = difflib.get_close_matches(word, sorted(known), n=1, cutoff=0.7)
    return f"; did you mean {near[0]}?" if near else ""
