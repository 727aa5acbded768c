"""Starts the ranks of the embedded engine, and sees that they end together:
``python -m wantrn.serving.engines.local.launcher OPTIONS SOCKET REPORT``.

A process between the engine's and the ranks: supervision needs a main thread and signals of its
own. SOCKET is for the first rank. To REPORT, a pipe, goes a line about the rank that failed first.
"""

from __future__ import annotations

import os
import sys

from wantrn.parallel.launch import run_local
from wantrn.serving.engines.local.options import LocalOptions

GRACE_SECONDS = 1.0
"""How long ranks have to end by themselves. They keep nothing that would need to be saved."""


def main() -> int:
    options, socket, pipe = LocalOptions.from_json(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])

    def report(line: str) -> None:
        os.write(pipe, line.encode())

    return run_local(
        options.ranks.degrees().world,
        [sys.executable, "-m", "wantrn.serving.engines.local.rank", sys.argv[1], str(socket)],
        grace=GRACE_SECONDS,
        pass_fds=[socket],
        report=report,
    )


if __name__ == "__main__":
    sys.exit(main())
