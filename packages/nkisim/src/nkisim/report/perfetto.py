"""A schedule in the trace-event format of Chrome, which ui.perfetto.dev reads.

A process is a core; its threads are the engines and as many lanes as transfers and exchanges need
to lie side by side. Arrows join the instructions of the critical path. Times are us.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from nkisim.enums import Engine
from nkisim.report import lanes
from nkisim.timing.schedule import ENGINES, Schedule
from nkisim.trace import Access, Instruction

Event = dict[str, Any]
# thread numbers of the lanes, past those of the engines
_LANES = 100


def write(schedule: Schedule, path: Path) -> None:
    """Write `schedule` to `path`, one event a line."""
    threads = [_threads(schedule, core) for core in range(len(schedule.cores))]
    with path.open("w", encoding="utf-8") as file:
        file.write('{"displayTimeUnit": "ns", "traceEvents": [\n')
        for number, event in enumerate(_events(schedule, threads)):
            file.write((",\n" if number else "") + json.dumps(event))
        file.write("\n]}\n")


def _events(schedule: Schedule, threads: list[list[int]]) -> Iterator[Event]:
    critical = {(step.core, step.index): step.ns for step in schedule.critical}
    for core, trace in enumerate(schedule.trace.cores):
        yield from _names(core, f"rank {trace.rank} core {trace.core}", threads[core])
        timed = schedule.cores[core]
        start, end = timed.start.tolist(), timed.end.tolist()
        for k, instruction in enumerate(trace.instructions):
            args = _args(instruction)
            if (core, k) in critical:
                args["on critical path (us)"] = critical[core, k] / 1000
            yield {
                "ph": "X", "name": instruction.name or instruction.op, "cat": instruction.op,
                "pid": core, "tid": threads[core][k],
                "ts": start[k] / 1000, "dur": (end[k] - start[k]) / 1000, "args": args,
            }  # fmt: skip
    yield from _arrows(schedule, threads)


def _names(core: int, name: str, threads: list[int]) -> Iterator[Event]:
    yield {"ph": "M", "name": "process_name", "pid": core, "tid": 0, "args": {"name": name}}
    for thread in sorted(set(threads)):
        label = f"DMA {thread - _LANES}" if thread >= _LANES else ENGINES[thread].name
        about = {"pid": core, "tid": thread}
        yield {"ph": "M", "name": "thread_name", **about, "args": {"name": label}}
        yield {"ph": "M", "name": "thread_sort_index", **about, "args": {"sort_index": thread}}


def _threads(schedule: Schedule, core: int) -> list[int]:
    """The thread of each instruction of a core: its engine, or a lane that is free."""
    timed = schedule.cores[core]
    instructions = schedule.trace.cores[core].instructions
    threads = [ENGINES.index(instruction.engine) for instruction in instructions]
    apart = [i.index for i in instructions if i.engine is Engine.dma or i.meeting is not None]
    spans = [(float(timed.start[k]), float(timed.end[k])) for k in apart]
    for k, lane in zip(apart, lanes.assign(spans), strict=True):
        threads[k] = _LANES + lane
    return threads


def _args(instruction: Instruction) -> Event:
    args: Event = {"index": instruction.index, "op": instruction.op, "at": instruction.location}
    for side, operands in (("writes", instruction.writes), ("reads", instruction.reads)):
        for number, access in enumerate(operands):
            args[f"{side}[{number}]"] = _operand(access)
    for name, value in (instruction.details or {}).items():
        args[name] = value if isinstance(value, int | float | str | bool) else str(value)
    return args


def _operand(access: Access) -> str:
    place = access.place
    where = f"{place.region.value} {place.name} {list(place.shape)} {place.dtype}"
    if not place.on_chip:
        return f"{where}: {access.elements} elements in bytes {access.lo}:{access.hi}"
    return (
        f"{where}: partitions {access.p0}:{access.p1}, {access.elements} elements each "
        f"in bytes {access.lo}:{access.hi}"
    )


def _arrows(schedule: Schedule, threads: list[list[int]]) -> Iterator[Event]:
    for number, (one, two) in enumerate(
        zip(schedule.critical, schedule.critical[1:], strict=False)
    ):
        head = {"cat": "critical path", "name": "critical path", "id": number}
        before, after = schedule.cores[one.core], schedule.cores[two.core]
        begins = float(after.start[two.index])
        # an arrow leaves from within the instruction that it leaves from
        leaves = min(float(before.end[one.index]), max(begins, float(before.start[one.index])))
        yield head | {
            "ph": "s", "pid": one.core, "tid": threads[one.core][one.index], "ts": leaves / 1000,
        }  # fmt: skip
        yield head | {
            "ph": "f", "bp": "e", "pid": two.core, "tid": threads[two.core][two.index],
            "ts": max(begins, leaves) / 1000,
        }  # fmt: skip
