"""One rank of the embedded engine: ``python -m wantrn.serving.engines.local.rank OPTIONS FD``.

The first rank hears the engine's process by the socket FD, and tells the others what to do.
"""

from __future__ import annotations

import os
import sys
from dataclasses import replace

import torch
import torch.distributed as dist

from wantrn.model.device import find_device
from wantrn.model.errors import CheckpointError, RequestError
from wantrn.model.info import read_model_info
from wantrn.model.pipeline import WanPipeline
from wantrn.parallel import Groups
from wantrn.parallel.launch import join_world, rank_of_environment
from wantrn.serving.cli import status_of
from wantrn.serving.engines.local.conductor import Conductor, Order
from wantrn.serving.engines.local.inbox import Inbox
from wantrn.serving.engines.local.messages import Ended
from wantrn.serving.engines.local.options import LocalOptions
from wantrn.serving.engines.local.runs import Runs
from wantrn.serving.engines.protocol import Ready
from wantrn.serving.warm_up import warm_up


def main() -> int:
    options, descriptor = LocalOptions.from_json(sys.argv[1]), int(sys.argv[2])
    place = rank_of_environment()
    if place is None:
        raise RuntimeError("this is started by the engine, and not by itself")
    inbox = None
    if place.rank == 0:
        inbox = Inbox(descriptor)
    else:
        os.close(descriptor)
    return status_of("wantrn serve", lambda: _serve(options, inbox), says_stopped=False)


def _serve(options: LocalOptions, inbox: Inbox | None) -> int:
    """Make videos until told to end. ``inbox`` is None on all ranks but the first."""
    if options.threads is not None:
        torch.set_num_threads(options.threads)
    device = find_device(options.device)
    backend = "gloo" if device.type == "cpu" else f"cpu:gloo,{device.type}:{device.type}"
    with join_world(backend=backend):
        groups = Groups.build(options.ranks.degrees())
        try:
            pipeline = _load(options, groups, device)
        except (CheckpointError, RequestError) as error:
            if inbox is not None:
                inbox.send(Ended(str(error)))
            raise
        warm_up(pipeline, options.warm_up, tells=inbox is not None)
        runs = Runs(pipeline, None if inbox is None else inbox.send)
        conductor = None if inbox is None else Conductor(inbox, runs)
        if inbox is not None:
            inbox.send(Ready())
        while (order := _agree(conductor, groups)).what != "end":
            _carry_out(order, runs)
        runs.close()
    return 0


def _load(options: LocalOptions, groups: Groups, device: torch.device) -> WanPipeline:
    dtype = read_model_info(options.model).choose_dtype(options.dtype)
    execution = replace(options.ranks.execution(groups), device=device)
    return WanPipeline.load(options.model, dtype, execution)


def _agree(conductor: Conductor | None, groups: Groups) -> Order:
    """What the first rank's conductor says, on all ranks."""
    order = None if conductor is None else conductor.next()
    if groups.world.size > 1:
        box = [order]
        dist.broadcast_object_list(box, src=0)
        order = box[0]
    assert order is not None
    return order


def _carry_out(order: Order, runs: Runs) -> None:
    if order.what == "begin":
        assert order.work is not None
        runs.begin(order.work)
    elif order.what == "step":
        runs.step(order.id)
    elif order.what == "finish":
        runs.finish(order.id)
    elif order.what == "drop":
        runs.drop(order.id)


if __name__ == "__main__":
    sys.exit(main())
