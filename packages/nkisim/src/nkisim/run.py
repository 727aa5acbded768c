"""One execution of a kernel on every core of every rank."""

from __future__ import annotations

import contextlib
import gc
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from nkisim import host
from nkisim.communicator import Communicator
from nkisim.core import Core, enter, kernel_position, leave
from nkisim.core_threads import run_threads
from nkisim.dtypes import DType
from nkisim.enums import MemoryRegion
from nkisim.errors import NkiMismatchError, NkiValidationError
from nkisim.settings import Settings
from nkisim.storage import Storage, poisoned
from nkisim.tensor import NkiTensor
from nkisim.trace import Place, Trace
from nkisim.views import contiguous_strides
from nkisim.watch import Watch

# positional arguments and keyword arguments
Arguments = tuple[tuple[Any, ...], dict[str, Any]]


class Run:
    """What the cores of one execution share.

    Attributes:
        settings: how it is simulated
        ranks, lnc: how many ranks, and cores of each
        grid: whether the kernel was launched with brackets, as `kernel[1]`
        communicator: where cores meet
        warned: which warnings were shown
        exchanged: the HBM tensors that collectives have used
        hazards: the race detectors
        watches: whether there is anyone to race with
    """

    def __init__(self, settings: Settings, ranks: int, lnc: int, grid: bool) -> None:
        self.settings = settings
        self.ranks = ranks
        self.lnc = lnc
        self.grid = grid
        self.warned: dict[Any, Any] = {}
        self.exchanged: set[Place] = set()
        self.communicator = Communicator(ranks * lnc, lnc, settings.stall_seconds)
        self._lock = threading.Lock()
        self._serial = 0
        self._shared: dict[tuple[int, int], NkiTensor] = {}
        self.places: list[Place] = []
        self.cores = [Core(self, rank, number) for rank in range(ranks) for number in range(lnc)]
        self.hazards = Watch(ranks, lnc)
        # one core by itself cannot race with anyone
        self.watches = ranks * lnc > 1

    def next_serial(self) -> int:
        """A number that no other tensor of the run has."""
        with self._lock:
            self._serial += 1
            return self._serial

    def shared_tensor(
        self, core: Core, shape: tuple[int, ...], dtype: DType, name: str
    ) -> NkiTensor:
        """The shared HBM tensor that is this core's next: cores of a rank allocate the same ones.

        Raises:
            NkiMismatchError: another core of the rank allocated another shape, dtype or name there.
        """
        key = (core.rank, core.shared_allocations)
        core.shared_allocations += 1
        serial = self.next_serial()
        with self._lock:
            found = self._shared.get(key)
            if found is None:
                found = self._new_shared(core, shape, dtype, name, serial)
                self._shared[key] = found
                return found
        place = found.storage.place
        if (place.shape, place.dtype) != (shape, dtype) or (name and name != place.name):
            raise NkiMismatchError(
                f"core {core.number} of rank {core.rank} allocates shared HBM tensor number "
                f"{key[1]} as {name!r} {list(shape)} {dtype}; its other core allocated {place}: "
                "the cores of a rank must allocate the same ones in the same order"
            )
        return found

    def _new_shared(
        self, core: Core, shape: tuple[int, ...], dtype: DType, name: str, serial: int
    ) -> NkiTensor:
        size = dtype.itemsize
        for extent in shape:
            size *= extent
        region = MemoryRegion.shared_hbm
        owner = core.id if self.lnc == 1 else None
        place = Place(
            serial, region, name or f"{region.value}#{serial}", shape, dtype, 1, size, owner
        )
        place.code, place.line = kernel_position(sys._getframe(1))
        self.places.append(place)
        storage = Storage(place, poisoned(size) if core.numerics else None, 0, 0)
        return NkiTensor(storage, dtype, shape, contiguous_strides(shape), 0)

    def execute(self, function: Callable[..., Any], arguments: Sequence[Arguments]) -> list[Any]:
        """Run `function` on all cores; the results of each rank, as arrays.

        `arguments` has one entry for each rank.
        """
        prepared = [
            _Prepared(self, rank, function, *entry) for rank, entry in enumerate(arguments)
        ]
        with _few_collections():
            results = self._run_cores(function, prepared)
        for entry in prepared:
            entry.finish()
        converted = []
        for rank, entry in enumerate(prepared):
            returned = results[rank * self.lnc]
            converted.append(_to_host(self.cores[rank * self.lnc], returned, entry.as_torch))
        return converted

    def _run_cores(self, function: Callable[..., Any], prepared: list[_Prepared]) -> list[Any]:
        def body(core: Core) -> Any:
            entry = prepared[core.rank]
            token = enter(core)
            try:
                # infinities and NaN are values here, as on the chip
                with np.errstate(all="ignore"):
                    return function(*entry.args, **entry.kwargs)
            finally:
                leave(token)

        if len(self.cores) == 1:
            return [body(self.cores[0])]

        def bound(core: Core) -> Callable[[], Any]:
            return lambda: body(core)

        for core in self.cores:
            self.communicator.follow(core.id, core)
        return run_threads([bound(core) for core in self.cores], self.communicator)

    def trace(self) -> Trace:
        """What the cores did, without any data."""
        return Trace(
            self.settings.target, self.ranks, self.lnc, [core.trace for core in self.cores]
        )


@contextlib.contextmanager
def _few_collections() -> Iterator[None]:
    """Look for reference cycles less often while a kernel runs.

    A trace is a million small objects that live to the end and form no cycles; looking through them
    again and again took a third of the time of a run without numerics.
    """
    before = gc.get_threshold()
    gc.set_threshold(max(before[0], 200_000), 50, 1000)
    try:
        yield
    finally:
        gc.set_threshold(*before)


class _Prepared:
    """The arguments of one rank, with arrays replaced by tensors."""

    def __init__(
        self,
        run: Run,
        rank: int,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> None:
        self._run = run
        self._rank = rank
        self._arguments: list[host.Argument] = []
        self.as_torch = host.contains_torch((args, kwargs))
        names = _parameter_names(function, len(args))
        self.args = tuple(
            self._convert(value, name) for value, name in zip(args, names, strict=True)
        )
        self.kwargs = {name: self._convert(value, name) for name, value in kwargs.items()}

    def _convert(self, value: Any, name: str) -> Any:
        if host.is_array(value):
            return self._tensor(value, name)
        if isinstance(value, list):
            return [self._convert(item, f"{name}[{i}]") for i, item in enumerate(value)]
        if type(value) is tuple:
            return tuple(self._convert(item, f"{name}[{i}]") for i, item in enumerate(value))
        if type(value) is dict:
            return {key: self._convert(item, f"{name}[{key!r}]") for key, item in value.items()}
        return value

    def _tensor(self, value: Any, name: str) -> NkiTensor:
        run = self._run
        shape, dtype = host.shape_and_dtype(value, name, run.settings.target)
        size = dtype.itemsize
        for extent in shape:
            size *= extent
        owner = self._rank * run.lnc if run.lnc == 1 else None
        region = host.argument_region(run.lnc)
        place = Place(run.next_serial(), region, name, shape, dtype, 1, size, owner)
        place.kind = "input"
        run.places.append(place)
        argument = host.Argument(value, name, place, run.settings.numerics)
        self._arguments.append(argument)
        return argument.tensor

    def finish(self) -> None:
        for argument in self._arguments:
            argument.finish()


def _parameter_names(function: Callable[..., Any], count: int) -> list[str]:
    code = getattr(function, "__code__", None)
    named = list(code.co_varnames[: code.co_argcount]) if code is not None else []
    return [named[i] if i < len(named) else f"argument {i}" for i in range(count)]


def _to_host(core: Core, returned: Any, as_torch: bool) -> Any:
    if isinstance(returned, NkiTensor):
        return _output(core, returned, as_torch)
    if isinstance(returned, tuple) and hasattr(returned, "_fields"):
        return type(returned)(*(_to_host(core, item, as_torch) for item in returned))
    if isinstance(returned, (list, tuple)):
        return type(returned)(_to_host(core, item, as_torch) for item in returned)
    if isinstance(returned, dict):
        return {key: _to_host(core, item, as_torch) for key, item in returned.items()}
    return returned


def _output(core: Core, tensor: NkiTensor, as_torch: bool) -> Any:
    place = tensor.storage.place
    if place.on_chip:
        raise NkiValidationError(
            f"the kernel returns {tensor!r}; results must be shared HBM tensors"
        )
    if place.kind == "internal":
        if place.region is not MemoryRegion.shared_hbm:
            core.violation(
                "constraint", f"the kernel returns {tensor!r}; results must be nl.shared_hbm"
            )
        place.kind = "output"
        if place in core.run.exchanged:
            core.violation(
                "collective_buffers",
                f"the kernel returns {tensor!r}, which a collective used; copy it to another tensor",
            )
    if not tensor.storage.was_written(tensor.access()):
        core.violation(
            "unwritten_output", f"the kernel returns {tensor!r}, part of which nothing wrote"
        )
    return host.to_host(tensor, as_torch)

