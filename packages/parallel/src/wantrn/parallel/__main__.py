"""The command ``python -m wantrn.parallel``: pictures of how ranks share the work.

Its exit status is 0, or 2 where what was asked for cannot be; one line says why.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import NoReturn

import wantrn.parallel
from wantrn.parallel.degrees import Degrees
from wantrn.parallel.layout import Layout
from wantrn.parallel.mesh import TRN2, trn2_layout
from wantrn.parallel.picture import Picture


class _Parser(argparse.ArgumentParser):
    """One line for an error, without the usage before it."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: error: {message}\n")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command with ``argv`` (by default the process's) and return its exit status.

    ``SystemExit`` comes out of arguments that cannot be (2), ``--help`` and ``--version`` (0).
    """
    parser = _Parser(
        prog="wantrn.parallel", description="How ranks share the work.", allow_abbrev=False
    )
    parser.add_argument("--version", action="version", version=wantrn.parallel.__version__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND", parser_class=_Parser)
    layout = commands.add_parser(
        "layout",
        help="show the ranks of a run",
        description="Show the ranks of a run.",
        allow_abbrev=False,
    )
    _add_options(layout)
    options = parser.parse_args(argv)
    try:
        picture = _picture(options)
    except ValueError as error:
        layout.error(str(error))
    sys.stdout.write(str(picture))
    return 0


def _add_options(parser: argparse.ArgumentParser) -> None:
    for name, text in (
        ("tp", "ranks that share heads and the width of the feed-forward layers"),
        ("ring", "ranks that share tokens; keys and values go round"),
        ("ulysses", "ranks that share tokens, and swap them for heads in attention"),
        ("cfg", "ranks that share the two branches of guidance"),
        ("dp", "ranks that work on different videos"),
    ):
        parser.add_argument(f"--{name}", type=int, default=1, metavar="N", help=text)
    parser.add_argument(
        "--sequence-sharding",
        action="store_true",
        help="share tokens over tp too, between attention and feed-forward layers",
    )
    parser.add_argument(
        "--mesh",
        choices=["trn2"],
        help="follow the links between the chips of a machine (default: count the ranks)",
    )
    parser.add_argument("--heads", type=int, metavar="N", help="of the model: show who has which")
    parser.add_argument("--tokens", type=int, metavar="S", help="of a sequence: show who has which")


def _picture(options: argparse.Namespace) -> Picture:
    degrees = Degrees(
        tp=options.tp,
        ring=options.ring,
        ulysses=options.ulysses,
        cfg=options.cfg,
        dp=options.dp,
        sequence_sharding=options.sequence_sharding,
    )
    if options.mesh is None:
        return Picture(degrees, Layout.arithmetic(degrees), options.heads, options.tokens)
    return Picture(degrees, trn2_layout(degrees), options.heads, options.tokens, TRN2)


if __name__ == "__main__":
    sys.exit(main())
