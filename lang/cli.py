"""The command ``furcate``: run, draw, check and map programs, and list models.

Exit codes: 0 done; 1 the program failed, a row failed, or ``check`` found an error; 2 the command line names something
that is not there; 130 interrupted.
"""

from __future__ import annotations

import argparse
import sys
import traceback
from collections.abc import Sequence
from importlib.metadata import version

from .cli_commands import COMMANDS
from .cli_errors import FAILED, INTERRUPTED, OK, USAGE, UsageError, describe

FORMATS = ("mermaid", "text", "dot", "json", "html")

_EPILOG = """exit codes: 0 done; 1 the program or a row failed, or check found an error; 2 usage; 130 interrupted.
PROGRAM is FILE.py:NAME or MODULE:NAME; :NAME may be left out where there is only one program."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line ``argv`` (default: the process's own) and return its exit code."""
    parser = _parser()
    try:
        args = parser.parse_args(argv)
    except SystemExit as stop:  # argparse has printed the reason, or the help
        return stop.code if isinstance(stop.code, int) else USAGE
    try:
        return COMMANDS[args.command](args)
    except UsageError as error:
        sys.stderr.write(f"furcate {args.command}: {error}\n")
        return USAGE
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        return INTERRUPTED
    except BrokenPipeError:  # the reader of our output (head, less) has gone: not a failure
        sys.stderr.close()
        return OK
    except Exception as error:
        sys.stderr.write(traceback.format_exc() if args.debug else describe(error))
        return FAILED


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="furcate",
        description="Programs that fork: run them, see their graph, check them.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="print the version and leave")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    run = _command(commands, "run", "run a program once and print its value")
    run.add_argument("program", metavar="PROGRAM")
    run.add_argument(
        "--arg",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="an argument of the program: JSON or plain text; NAME=@FILE reads the value from a file",
    )
    _settings(run)
    run.add_argument("--json", action="store_true", help="print value, usage, seed and engine counters as JSON")
    run.add_argument(
        "--show",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="also print the graph, the text of every branch and the cache figures (default: on a terminal)",
    )

    graph = _command(commands, "graph", "print a program's graph; needs no model and no arguments")
    graph.add_argument("program", metavar="PROGRAM")
    graph.add_argument("--format", choices=FORMATS, default="mermaid", help="default: %(default)s")

    check = _command(commands, "check", "find mistakes in programs without running them")
    check.add_argument("program", nargs="+", metavar="PROGRAM", help="FILE.py alone checks every program in it")
    check.add_argument("--json", action="store_true", help="print the findings as a JSON list")
    check.add_argument("--model", metavar="NAME", help="also check against this model's limits")

    rows = _command(commands, "map", "run a program on every row of a JSON Lines file")
    rows.add_argument("program", metavar="PROGRAM")
    rows.add_argument("rows", metavar="ROWS.jsonl", help="one JSON value a line; an object is keyword arguments")
    rows.add_argument("-o", "--out", metavar="FILE", help="write results row by row (default: print the values)")
    rows.add_argument("--resume", action="store_true", help="keep the rows that are already in --out")
    rows.add_argument(
        "--on-error",
        choices=("keep", "raise"),
        default="keep",
        help="keep: report failed rows at the end; raise: stop at the first (default: %(default)s)",
    )
    _settings(rows)

    models = _command(commands, "models", "list the models that can be named")
    models.add_argument("--json", action="store_true", help="print the list as JSON")
    return parser


def _command(
    commands: argparse._SubParsersAction[argparse.ArgumentParser], name: str, text: str
) -> argparse.ArgumentParser:
    parser = commands.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".", allow_abbrev=False)
    parser.add_argument("--debug", action="store_true", help="show the whole traceback of an error")
    return parser


def _settings(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", metavar="NAME", help="default: $FURCATE_MODEL, else the embedded model")
    parser.add_argument(
        "--seed", type=int, metavar="N", help="seed of every draw (default: $FURCATE_SEED, else random)"
    )
    parser.add_argument("--temperature", type=float, metavar="T", help="temperature where the program gives none")
    parser.add_argument("--timeout", type=float, metavar="SECONDS", help="give up after this long")


class _Version(argparse.Action):
    """Print the installed version, looked up only when it is asked for."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        sys.stdout.write(f"furcate {version('furcate')}\n")
        parser.exit()
