"""Ranks that compute nothing, for tests of how they are asked and watched."""

from __future__ import annotations

import os
import signal
import time
from multiprocessing.connection import Connection
from typing import Any

from wantrn.serving.engines.omni.rank_process import (
    Answer,
    Call,
    Outcome,
    Raised,
    Returned,
    Up,
    receive,
    send,
)
from wantrn.serving.engines.protocol import Decoding

FOR_EVER = 600.0


def answer_plainly(rank: int, config: Any, connection: Connection) -> None:
    """Be up, and do what each call's method says, until told to end."""
    send(connection, Up())
    while isinstance(call := receive(connection), Call):
        if rank == 0:
            send(connection, Decoding("told"))
        send(connection, do(call.method, rank))


def fail_to_start(rank: int, config: Any, connection: Connection) -> None:
    """Be up, but for the second rank."""
    send(connection, Raised("ValueError: no such weights", "") if rank == 1 else Up())
    time.sleep(FOR_EVER)


def do(method: str, rank: int) -> Answer:
    alone = rank == 1
    if method == "all fail" or (method in ("one fails", "one is missed") and alone):
        return Raised("ValueError: a shape", "its trace")
    if method == "one is killed" and alone:
        os.kill(os.getpid(), signal.SIGKILL)
    if method == "one ends" and alone:
        os._exit(3)
    if method in ("one is missed", "one is killed", "one ends", "for ever") or (
        method == "one request is missed" and not alone
    ):
        time.sleep(FOR_EVER)
    failed = method == "one request fails" or (method == "one request is missed" and alone)
    steps = 2 if method == "one is ahead" and alone else 1
    return Returned(f"rank {rank}", (Outcome("a", steps, False, failed),))
