"""One call of a collective on one core: its operands, who takes part, and the meeting."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from nkisim.alu import resolve
from nkisim.collective_math import check_reduction
from nkisim.collective_meeting import Compute, Cores, Entry, Operands, is_shared
from nkisim.collective_operands import checked_channel, tensor_list
from nkisim.core import Core, current, position
from nkisim.enums import Engine, MemoryRegion
from nkisim.errors import NkiValidationError
from nkisim.meeting import Description
from nkisim.replica_group import ReplicaGroup
from nkisim.tensor import NkiTensor
from nkisim.trace import Instruction, Meeting

# an all_reduce on SBUF fails on the device below this
_SBUF_REDUCE_ELEMENTS = 512
_ALLOWED = frozenset({MemoryRegion.sbuf, MemoryRegion.private_hbm, MemoryRegion.shared_hbm})
# those that take several tensors at a time, in HBM
_LISTS = frozenset({"all_reduce", "all_gather", "reduce_scatter", "all_to_all"})


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
        self.details: dict[str, Any] = {}
        self._channels: tuple[int, ...] = (0,)
        self._check_buffers()
        self.in_sbuf = srcs[0].buffer is MemoryRegion.sbuf
        self._facts: dict[str, Any] = {"group": self.group}

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
        if self.in_sbuf and self.srcs[0].ndim != 2:
            self.broken(f"srcs is {self.srcs[0]!r}; in SBUF it must have 2 dimensions")

    def check_channels(self, channel_ids: Any, channels: int) -> None:
        if not isinstance(channel_ids, (list, tuple)):
            raise TypeError(f"{self.op}: channel_ids is {channel_ids!r}; it must be a list")
        ids = tuple(checked_channel(self.op, "channel_ids", channel) for channel in channel_ids)
        if len(ids) != channels or len(set(ids)) < channels:
            self.broken(
                f"channel_ids is {list(channel_ids)!r} for the tensors of {channels} channels; "
                "there must be as many, all different"
            )
        self._channels = ids
        self.fact(channels=ids)

    def check_hbm(self, name: str, tensor: NkiTensor) -> None:
        """What holds for each HBM tensor of a collective."""
        core, place = self.core, tensor.storage.place
        if core.run.lnc == 2 and tensor.buffer is not MemoryRegion.shared_hbm:
            self.broken(
                f"{name} is {tensor!r}; both cores of a rank issue the collective, on shared HBM",
                "collective_buffers",
            )
        if place.kind == "input":
            self.broken(
                f"{name} is {tensor!r}, an argument of the kernel; copy it to a tensor of its own "
                "first",
                "collective_buffers",
            )
        elif not place.given_name:
            self.broken(
                f"{name} is {tensor!r} without a name; HBM tensors of a collective need name=",
                "collective_buffers",
            )
        core.run.exchanged.add(place)

    def _check_buffers(self) -> None:
        if len(self.srcs) != len(self.dsts) or not self.srcs:
            raise NkiValidationError(
                f"{self.op}: srcs has {len(self.srcs)} tensors and dsts {len(self.dsts)}; there "
                "must be as many, and at least one"
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
            for name, tensors in (("srcs", self.srcs), ("dsts", self.dsts)):
                if len({tensor.buffer for tensor in tensors}) > 1:
                    self.broken(
                        f"{name} are in private and in shared HBM; all must be in one of them",
                        "collective_buffers",
                    )
                for tensor in tensors:
                    self.check_hbm(f"an operand of {name}", tensor)

    # Issue

    def run(self, compute: Callable[[list[Any], Call, int], list[Any]]) -> Instruction:
        """Issue it; `compute` makes of the sources of all ranks what each rank receives."""

        def of_all(ranks: list[list[Any]]) -> list[list[Any]]:
            columns = [
                compute([sent[index] for sent in ranks], self, index)
                for index in range(len(self.srcs))
            ]
            return [list(row) for row in zip(*columns, strict=True)]

        return self.meet(Operands(self.srcs, self.dsts), of_all, self.srcs, self.dsts)

    def meet(
        self,
        operands: Operands,
        compute: Compute,
        reads: Sequence[NkiTensor],
        writes: Sequence[NkiTensor],
    ) -> Instruction:
        """Record it, wait for the others, and hand out what `compute` makes of what all send."""
        core, run = self.core, self.core.run
        instruction = self._issue(reads, writes)
        numbers = [core.number] if self.in_sbuf else list(range(run.lnc))
        cores = _cores(self.group, numbers, run.lnc)
        key = self._key(instruction, cores)
        co_issued = len(numbers) > 1
        if run.watches:
            run.hazards.collective(core, instruction, co_issued)
        where = position()

        def once(entries: dict[int, Entry]) -> None:
            here = {
                rank: [entries[id] for id in _cores([rank], numbers, run.lnc)]
                for rank in self.group
                if rank in run.here
            }
            came = Cores(self.op, self.group, here)
            came.check_shared()
            if core.numerics:
                # the collectives of the same cores are in the same order on all ranks
                came.move(compute, str(numbers), self._description())

        run.communicator.meet(
            core.id,
            ("collective", *key),
            _cores([rank for rank in self.group if rank in run.here], numbers, run.lnc),
            self._description(),
            where,
            Entry(core, where, instruction, operands, reads, writes),
            once,
        )
        if co_issued and run.watches:
            run.hazards.met(core, instruction)
        return instruction

    def _issue(self, reads: Sequence[NkiTensor], writes: Sequence[NkiTensor]) -> Instruction:
        """Record it. What both cores of a rank share is looked at when both are there, since until
        then the other may still write to it."""
        alone = self.core.run.lnc == 1
        instruction = self.core.issue(
            self.op,
            Engine.gpsimd,
            [tensor for tensor in writes if alone or not is_shared(tensor)],
            [tensor for tensor in reads if alone or not is_shared(tensor)],
            self.name,
            {"channels": self._channels, **self.details},
            True,
        )
        instruction.writes = tuple(tensor.access() for tensor in writes)
        instruction.reads = tuple(tensor.access() for tensor in reads)
        return instruction

    def _key(self, instruction: Instruction, cores: tuple[int, ...]) -> tuple[Any, ...]:
        """What is equal for all who mean the same meeting: the n-th of these cores on a channel."""
        meetings = self.core.meetings
        stream = ("collective", cores, self._channels)
        count = meetings.get(stream, 0)
        meetings[stream] = count + 1
        key = (*stream[1:], count)
        size = sum(tensor.access().bytes for tensor in self.srcs)
        instruction.meeting = Meeting(self.op, key, cores, len(self.group), size)
        return key

    def _description(self) -> Description:
        return Description.of(
            self.op,
            srcs=tuple(tensor.shape for tensor in self.srcs),
            dtypes=tuple(str.__str__(tensor.dtype) for tensor in self.srcs),
            memory="SBUF" if self.in_sbuf else "HBM",
            **self._facts,
        )


def _cores(ranks: Sequence[int], numbers: Sequence[int], lnc: int) -> tuple[int, ...]:
    """The cores of these numbers of some ranks."""
    return tuple(sorted(rank * lnc + number for rank in ranks for number in numbers))


def begin(
    op: str,
    srcs: Any,
    dsts: Any,
    replica_group: Any,
    priority: Any,
    name: str | None,
    **facts: Any,
) -> Call:
    """A call with its common arguments checked; `reduce` among `facts` is how it reduces."""
    sources, targets = tensor_list(op, "srcs", srcs), tensor_list(op, "dsts", dsts)
    call = Call(op, sources, targets, replica_group)
    call.name = name
    if priority is not None:
        call.core.require_generation(f"{op}: priority", 4)
        if isinstance(priority, bool) or priority not in (0, 1, 2, 3):
            call.broken(f"priority is {priority!r}; it must be 0, 1, 2 or 3")
        call.details["priority"] = priority
    if "reduce" in facts:
        _begin_reduction(call, facts["reduce"])
        facts["reduce"] = call.reduction
    call.fact(**facts)
    return call


def _begin_reduction(call: Call, op: Any) -> None:
    call.reduction = resolve(op, f"{call.op}: op").name
    for src in call.srcs:
        check_reduction(call.reduction, src.dtype)
    if call.in_sbuf and call.op == "all_reduce":
        elements = call.srcs[0].access().elements
        if elements < _SBUF_REDUCE_ELEMENTS:
            call.broken(
                f"srcs is {call.srcs[0]!r} with {elements} elements of each partition; in SBUF "
                f"there must be at least {_SBUF_REDUCE_ELEMENTS}"
            )


def _names(regions: set[MemoryRegion]) -> str:
    return " and ".join(sorted(region.value for region in regions))
