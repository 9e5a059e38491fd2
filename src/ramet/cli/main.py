"""`ramet COMMAND …`: finds the command's module, which has `add_arguments(parser)` and `run(args) -> int`.

Only the chosen command's module is imported, so that `ramet --help` and `ramet doctor` stay instant.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence

from ramet.cli.parser import Parser, did_you_mean
from ramet.errors import RametError

#: Command -> what it does, in the order shown. The module is `ramet.cli.<command>`.
COMMANDS = {
    "serve": "Serve a model over HTTP.",
    "chat": "Talk to a model in the terminal.",
    "generate": "Complete a prompt, or a file of them, and print the text.",
    "bench": "Measure speed, alone or beside other engines.",
    "doctor": "Show what this machine and installation can do.",
}


def parser_for(command: str) -> Parser:
    """The argument parser of one command."""
    module = importlib.import_module(f"ramet.cli.{command}")
    parser = Parser(prog=f"ramet {command}", description=COMMANDS[command])
    module.add_arguments(parser)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of the `ramet` script; returns the exit status."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if arguments[:1] in (["--version"], ["version"]):
        from ramet import __version__

        print(f"ramet {__version__}")
        return 0
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(usage())
        return 0 if arguments else 2
    command, *rest = arguments
    if command not in COMMANDS:
        print(f"ramet: unknown command {command!r}{did_you_mean(command, COMMANDS)}\n\n{usage()}", file=sys.stderr)
        return 2
    args = parser_for(command).parse_args(rest)
    try:
        status: int = importlib.import_module(f"ramet.cli.{command}").run(args)
        sys.stdout.flush()  # here, where a reader that has gone can be handled
    except RametError as error:
        print(f"ramet {command}: {error.message}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # `ramet doctor | head`: whoever read has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # so that flushing at exit does not fail again
        return 141
    return status


def usage() -> str:
    """What `ramet --help` prints."""
    lines = ["usage: ramet COMMAND [options]", ""]
    lines += [f"  {name:<10} {text}" for name, text in COMMANDS.items()]
    lines += ["", "ramet COMMAND --help shows a command's options; ramet --version the version."]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
