"""One call of a collective on one core: its operands, who takes part, and the meeting."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from nkisim.alu import resolve
from nkisim.collective_math import check_reduction
from nkisim.core import Core, current, position
from nkisim.enums import Engine, MemoryRegion
from nkisim.errors import NkiValidationError
from nkisim.meeting import Description
from nkisim.replica_group import ReplicaGroup
from nkisim.tensor import NkiTensor
from nkisim.trace import Instruction, Meeting

_MAX_CHANNELS = 4
# an all_reduce on SBUF fails on the device below this
_SBUF_REDUCE_ELEMENTS = 512
_ALLOWED = frozenset({MemoryRegion.sbuf, MemoryRegion.private_hbm, MemoryRegion.shared_hbm})
_LISTS = frozenset({"all_reduce", "all_gather", "reduce_scatter"})


class Call:
    """A collective about to be issued.

    Attributes:
        op: its name
        core: the core that calls
        srcs, dsts: its tensors
        group: the ranks that exchange data, in order
        in_sbuf: whether the operands are in SBUF
        reduction: how it reduces, "" where it does not
    """

    def __init__(
        self, op: str, srcs: list[NkiTensor], dsts: list[NkiTensor], replica_group: Any
    ) -> None:
        self.op = op
        self.core: Core = current(f"ncc.{op}")
        self.srcs = srcs
        self.dsts = dsts
        self.group = ReplicaGroup(replica_group).group_of(self.core.rank, self.core.run.ranks)
        self.reduction = ""
        self.name: str | None = None
        self._channels: tuple[int, ...] = (0,)
        self._facts: dict[str, Any] = {"group": self.group}
        self._check_buffers()
        self.in_sbuf = bool(srcs) and srcs[0].buffer is MemoryRegion.sbuf

    # Checks

    def broken(self, message: str, rule: str = "constraint") -> None:
        """Report the breach of a rule."""
        self.core.violation(rule, f"{self.op}: {message}")

    def fact(self, **facts: Any) -> None:
        """Something on which all ranks must agree."""
        self._facts.update(facts)

    def pairs(self) -> Iterator[tuple[NkiTensor, NkiTensor]]:
        return zip(self.srcs, self.dsts, strict=True)

    def one_each(self) -> tuple[NkiTensor, NkiTensor]:
        """The only source and the only destination."""
        if len(self.srcs) != 1:
            raise NkiValidationError(f"{self.op}: srcs has {len(self.srcs)} tensors; it takes one")
        return self.srcs[0], self.dsts[0]

    def same_shapes(self) -> None:
        """Sources and destinations of equal shape."""
        for src, dst in self.pairs():
            self.check_like("dst", dst, src)

    def check_like(self, name: str, tensor: NkiTensor, like: NkiTensor) -> None:
        if tensor.shape != like.shape or tensor.dtype is not like.dtype:
            self.broken(f"{name} is {tensor!r}; it must have the shape and dtype of {like!r}")

    def expect_shape(self, dst: NkiTensor, shape: tuple[int, ...]) -> None:
        if dst.shape != shape:
            self.broken(
                f"dst is {dst!r}; over {len(self.group)} ranks its shape must be {list(shape)}"
            )

    def hbm_only(self) -> None:
        if self.in_sbuf:
            self.broken(f"srcs is {self.srcs!r}; it must be in HBM")

    def check_dim(self, dim: Any, allowed: Sequence[int]) -> None:
        if isinstance(dim, bool) or dim not in allowed:
            where = "SBUF" if self.in_sbuf else "HBM"
            self.broken(f"collective_dim is {dim!r}; in {where} it must be one of {list(allowed)}")

    def check_channels(self, channel_ids: Sequence[int], channels: int) -> None:
        ids = tuple(int(channel) for channel in channel_ids)
        if len(ids) != channels or not 1 <= channels <= _MAX_CHANNELS or len(set(ids)) < channels:
            self.broken(
                f"channel_ids is {list(channel_ids)!r} for {channels} tensors; there must be as many, "
                f"all different, and at most {_MAX_CHANNELS}"
            )
        self._channels = ids
        self.fact(channels=ids)

    def _check_buffers(self) -> None:
        if len(self.srcs) != len(self.dsts) or not self.srcs:
            raise NkiValidationError(
                f"{self.op}: srcs has {len(self.srcs)} tensors and dsts {len(self.dsts)}; there must be "
                "as many, and at least one"
            )
        operands = [*self.srcs, *self.dsts]
        regions = {tensor.buffer for tensor in operands}
        if not regions <= _ALLOWED:
            self.broken(f"an operand is in {_names(regions - _ALLOWED)}; SBUF and HBM are allowed")
        if MemoryRegion.sbuf in regions and len(regions) > 1:
            self.broken(f"operands are in {_names(regions)}; all must be in SBUF, or all in HBM")
        several = len(self.srcs) > 1 and "implicit" not in self.op
        if several and (self.op not in _LISTS or MemoryRegion.sbuf in regions):
            self.broken(f"srcs has {len(self.srcs)} tensors; here it takes one")
        for tensor in operands:
            if tensor.dynamic is not None:
                self.broken(f"an operand is {tensor!r}, which has a dynamic index")
        for src, dst in self.pairs():
            if src.dtype is not dst.dtype:
                self.broken(f"dst is {dst.dtype}, src {src.dtype}; they must agree")
        if MemoryRegion.sbuf not in regions:
            self._check_hbm(operands)

    def _check_hbm(self, operands: list[NkiTensor]) -> None:
        if len({tensor.buffer for tensor in self.srcs}) > 1:
            self.broken("srcs are in private and in shared HBM; all must be in one of them",
                        "collective_buffers")  # fmt: skip
        for tensor in operands:
            place = tensor.storage.place
            if self.core.run.lnc == 2 and tensor.buffer is not MemoryRegion.shared_hbm:
                self.broken(
                    f"an operand is {tensor!r}; both cores of a rank issue the collective, on shared HBM",
                    "collective_buffers",
                )
            if place.kind == "input":
                self.broken(
                    f"an operand is {tensor!r}, an argument of the kernel; copy it to a tensor of its "
                    "own first",
                    "collective_buffers",
                )
            elif place.name == f"{place.region.value}#{place.serial}":
                self.broken(
                    f"an operand is {tensor!r} without a name; HBM tensors of a collective need name=",
                    "collective_buffers",
                )
            self.core.run.exchanged.add(place)

    # Issue

    def run(self, compute: Callable[[list[Any], Call, int], list[Any]]) -> Instruction:
        """Issue it; `compute` makes of the sources of all ranks what each rank receives."""

        def action(ranks: list[Any]) -> None:
            for index in range(len(self.srcs)):
                sources = [np.array(entry[0][index].values()) for entry in ranks]
                results = compute(sources, self, index)
                for entry, result in zip(ranks, results, strict=True):
                    entry[1][index].assign(result)

        return self.meet((self.srcs, self.dsts), action, tuple(self.srcs), tuple(self.dsts))

    def meet(
        self,
        payload: Any,
        action: Callable[[list[Any]], None],
        reads: tuple[NkiTensor, ...],
        writes: tuple[NkiTensor, ...],
    ) -> Instruction:
        """Record it, wait for the others, and let `action` work on the payloads of the ranks."""
        core = self.core
        run = core.run
        instruction = core.issue(
            self.op, Engine.gpsimd, writes, reads, self.name, {"channels": self._channels}, True
        )
        numbers = [core.number] if self.in_sbuf else list(range(run.lnc))
        cores = tuple(sorted(rank * run.lnc + number for rank in self.group for number in numbers))
        counter = ("collective", self.group, self.in_sbuf, self._channels)
        count = core.meetings.get(counter, 0)
        core.meetings[counter] = count + 1
        key = (self.group, core.number if self.in_sbuf else None, self._channels, count)
        size = sum(tensor.access().bytes for tensor in self.srcs)
        instruction.meeting = Meeting(self.op, key, cores, len(self.group), size)
        co_issued = run.lnc == 2 and not self.in_sbuf
        if run.watches:
            run.hazards.collective(core, instruction, co_issued)
        description = Description.of(
            self.op,
            srcs=tuple(tensor.shape for tensor in self.srcs),
            dtypes=tuple(str(tensor.dtype) for tensor in self.srcs),
            **self._facts,
        )
        # of the cores of a rank, the first speaks for it
        leaders = [rank * run.lnc + numbers[0] for rank in self.group]

        def once(payloads: dict[int, Any]) -> None:
            if core.numerics:
                action([payloads[leader] for leader in leaders])

        run.communicator.meet(
            core.id, ("collective", *key), cores, description, position(), payload, once
        )
        if co_issued and run.watches:
            run.hazards.met(core, instruction)
        return instruction


def begin(
    op: str,
    srcs: Any,
    dsts: Any,
    replica_group: Any,
    priority: Any,
    name: str | None,
    **facts: Any,
) -> Call:
    """A call with its common arguments checked."""
    call = Call(op, tensors(srcs), tensors(dsts), replica_group)
    call.name = name
    if priority is not None and (isinstance(priority, bool) or priority not in (0, 1, 2, 3)):
        call.broken(f"priority is {priority!r}; it must be 0, 1, 2 or 3")
    reduction = facts.pop("op", None)
    if reduction is not None:
        call.reduction = resolve(reduction, f"{op}: op").name
        for src in call.srcs:
            check_reduction(call.reduction, src.dtype)
        call.fact(op=call.reduction)
        if call.in_sbuf and op == "all_reduce":
            elements = call.srcs[0].access().elements
            if elements < _SBUF_REDUCE_ELEMENTS:
                call.broken(
                    f"srcs is {call.srcs[0]!r} with {elements} elements of each partition; in SBUF "
                    f"there must be at least {_SBUF_REDUCE_ELEMENTS}"
                )
    call.fact(**facts)
    return call


def tensors(operands: Any) -> list[Any]:
    """A tensor, or a list of them, as a list."""
    return [operands] if isinstance(operands, NkiTensor) else list(operands)


def single(op: str, argument: str, operands: Any) -> NkiTensor:
    """The one tensor of a channel."""
    entries = tensors(operands)
    if len(entries) != 1:
        raise NkiValidationError(f"{op}: a channel of {argument} has {len(entries)} tensors; one is allowed")
    only: NkiTensor = entries[0]
    return only


def _names(regions: set[MemoryRegion]) -> str:
    return " and ".join(sorted(region.value for region in regions))
