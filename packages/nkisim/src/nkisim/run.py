"""One execution of a kernel on every core of every rank."""

from __future__ import annotations

import contextlib
import gc
import inspect
import math
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from nkisim import host
from nkisim.communicator import Communicator
from nkisim.core import Core, current_or_none, enter, kernel_position, leave
from nkisim.core_threads import run_threads
from nkisim.dtypes import DType
from nkisim.enums import MemoryRegion
from nkisim.errors import NkiMismatchError, NkiValidationError
from nkisim.peers import Peers
from nkisim.settings import Settings
from nkisim.storage import Bytes, Storage, poisoned
from nkisim.tensor import NkiTensor, whole
from nkisim.trace import Access, Instruction, Place, Trace
from nkisim.watch import Watch

# positional arguments and keyword arguments
Arguments = tuple[tuple[Any, ...], dict[str, Any]]

_POLL_SECONDS = 0.0005


class Run:
    """What the cores of one execution share.

    Attributes:
        settings: how it is simulated
        ranks, lnc: how many ranks, and cores of each
        here: the ranks that this run simulates
        peers: the other ranks, where there are any
        grid: whether the kernel was launched with brackets, as `kernel[1]`
        communicator: where cores meet
        warned: which warnings were shown
        exchanged: the HBM tensors that collectives have used
        hazards: the race detectors
        watches: whether there is anyone to race with
    """

    def __init__(
        self, settings: Settings, ranks: int, lnc: int, grid: bool, peers: Peers | None = None
    ) -> None:
        self.settings = settings
        self.ranks = ranks
        self.here = range(ranks) if peers is None else range(peers.rank, peers.rank + 1)
        self.peers = peers
        self.lnc = lnc
        self.grid = grid
        self.warned: dict[Any, Any] = {}
        self.exchanged: set[Place] = set()
        cores = len(self.here) * lnc
        self.communicator = Communicator(cores, lnc, settings.stall_seconds, self.here[0] * lnc)
        self._lock = threading.Lock()
        self._shared: dict[tuple[int, int], tuple[str, NkiTensor]] = {}
        self.cores = [Core(self, rank, number) for rank in self.here for number in range(lnc)]
        self.hazards = Watch(self.here, lnc)
        # cores that wait in `await_peer`
        self._awaiting: set[int] = set()
        # one core by itself cannot race with anyone
        self.watches = ranks * lnc > 1

    def shared_tensor(
        self, core: Core, shape: tuple[int, ...], dtype: DType, name: str
    ) -> NkiTensor:
        """The shared HBM tensor that is this core's next: cores of a rank allocate the same ones.

        Raises:
            NkiMismatchError: another core of the rank allocated another shape, dtype or name there.
        """
        number = core.shared_allocations
        core.shared_allocations = number + 1
        key = (core.rank, number)
        with self._lock:
            found = self._shared.get(key)
            if found is None:
                made = self._new_shared(core, shape, dtype, name, number)
                self._shared[key] = (name, made)
                return made
        known, tensor = found
        place = tensor.storage.place
        if (place.shape, place.dtype, known) != (shape, dtype, name):
            raise NkiMismatchError(
                f"core {core.number} of rank {core.rank} allocates shared HBM tensor number "
                f"{number} as {name!r} {list(shape)} {dtype}; its other core allocated it as "
                f"{known!r} {list(place.shape)} {place.dtype}: the cores of a rank must allocate "
                "the same ones in the same order"
            )
        return tensor

    def _new_shared(
        self, core: Core, shape: tuple[int, ...], dtype: DType, name: str, number: int
    ) -> NkiTensor:
        size = math.prod(shape) * dtype.itemsize
        owner = core.id if self.lnc == 1 else None
        place = Place(number, MemoryRegion.shared_hbm, name, shape, dtype, 1, size, owner)
        place.code, place.line = kernel_position(sys._getframe(1))
        data = poisoned(size) if core.numerics else None
        if self.lnc == 1:
            return whole(Storage(place, data, 0, 0))
        return whole(SharedStorage(place, data, self))

    def await_peer(self, core: Core, done: Callable[[], bool]) -> bool:
        """Wait until the other core of the rank has done something, or gets no further by itself.

        Returns:
            Whether `done` says that it has.
        """
        peer = core.id + 1 - 2 * core.number
        self._awaiting.add(core.id)
        try:
            while not done():
                if peer in self._awaiting or not self.communicator.runs(peer):
                    # it may have come to that after it had done it
                    return done()
                time.sleep(_POLL_SECONDS)
            return True
        finally:
            self._awaiting.discard(core.id)

    def execute(self, function: Callable[..., Any], arguments: Sequence[Arguments]) -> list[Any]:
        """Run `function` on all cores; the results of each rank that is here, as arrays.

        `arguments` has one entry for each of them.
        """
        if self.peers is None:
            return self._execute(function, arguments)
        try:
            results = self._execute(function, arguments)
        except Exception as error:
            self.peers.fail(error)
            self.peers.wait()
            raise
        except BaseException as error:
            self.peers.fail(error)
            raise
        self.peers.finish()
        return results

    def _execute(self, function: Callable[..., Any], arguments: Sequence[Arguments]) -> list[Any]:
        several = host.given_to_several(arguments) if self.settings.numerics else frozenset()
        prepared = {
            rank: _Prepared(self, rank, function, entry, several)
            for rank, entry in zip(self.here, arguments, strict=True)
        }
        with _few_collections():
            results = self._run_cores(function, prepared)
        self.hazards.finish(self.cores[:: self.lnc])
        for entry in prepared.values():
            entry.finish()
        converted = []
        for index, entry in enumerate(prepared.values()):
            cores = slice(index * self.lnc, (index + 1) * self.lnc)
            core, *_ = self.cores[cores]
            returned, *others = results[cores]
            converted.append(_to_host(core, returned, entry.as_torch))
            for other in others:
                _check_same(core, returned, other)
        return converted

    def close(self) -> None:
        """Let go of all memory at once: the run and its cores hold each other, so that it would
        stay until the next full collection."""
        for core in self.cores:
            core.close()
        self.cores.clear()
        self.communicator.unfollow()
        self._shared.clear()

    def _run_cores(self, function: Callable[..., Any], prepared: dict[int, _Prepared]) -> list[Any]:
        def body(core: Core) -> Any:
            entry = prepared[core.rank]
            token = enter(core)
            try:
                # infinities and NaN are values here, as on the chip
                with np.errstate(all="ignore"):
                    return function(*entry.args, **entry.kwargs)
            except Exception as error:
                if self.peers is not None:
                    # at once: another core of this rank may wait for a rank that waits for it
                    self.peers.fail(error)
                raise
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
        # Straight to the oldest generation, which the next full collection looks through; else the
        # first small one would look through all that the run has left (40 ms for 20,000
        # instructions). What the program has frozen itself is to stay frozen.
        if gc.get_freeze_count() == 0:
            gc.freeze()
            gc.unfreeze()
        gc.set_threshold(*before)


class SharedStorage(Storage):
    """A tensor of shared HBM that two cores use at a time.

    A core may read what the other has yet to write. That is a race and not a mistake about what was
    written, so the answer waits until the other core has written, or cannot.
    """

    __slots__ = ("_lock", "_run")

    def __init__(self, place: Place, data: Bytes | None, run: Run) -> None:
        super().__init__(place, data, 0, 0)
        self._lock = threading.Lock()
        self._run = run

    def mark_written(self, access: Access, by: Instruction) -> None:
        with self._lock:
            super().mark_written(access, by)

    def was_written(self, access: Access) -> bool:
        if self._covers(access):
            return True
        core = current_or_none()
        if core is None or core.rules.uninitialized == "off":
            return False
        return self._run.await_peer(core, lambda: self._covers(access))

    def _covers(self, access: Access) -> bool:
        with self._lock:
            return super().was_written(access)


class _Prepared:
    """The arguments of one rank, with arrays replaced by tensors.

    `several` has the `id` of each array that shares memory with one of another rank.
    """

    def __init__(
        self,
        run: Run,
        rank: int,
        function: Callable[..., Any],
        arguments: Arguments,
        several: frozenset[int],
    ) -> None:
        self._run = run
        self._rank = rank
        self._several = several
        self._arguments: list[host.Argument] = []
        args, kwargs = arguments
        self.as_torch = host.contains_torch((args, kwargs))
        names = _parameter_names(function, len(args))
        self.args = tuple(
            self._convert(value, name) for value, name in zip(args, names, strict=True)
        )
        self.kwargs = {name: self._convert(value, name) for name, value in kwargs.items()}

    def _convert(self, value: Any, name: str) -> Any:
        if host.is_array(value):
            return self._tensor(value, name)
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            fields = zip(value._fields, value, strict=True)
            return type(value)(*(self._convert(item, f"{name}.{key}") for key, item in fields))
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
        size = math.prod(shape) * dtype.itemsize
        owner = self._rank if run.lnc == 1 else None
        region = host.argument_region(run.lnc)
        place = Place(len(self._arguments), region, name, shape, dtype, 1, size, owner)
        place.kind = "input"
        argument = host.Argument(value, place, run.settings.numerics, id(value) in self._several)
        self._arguments.append(argument)
        return argument.tensor

    def finish(self) -> None:
        for argument in self._arguments:
            argument.finish()


def _parameter_names(function: Callable[..., Any], count: int) -> list[str]:
    """The names under which `function` gets its positional arguments."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        parameters = {}.values()
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    named = [parameter.name for parameter in parameters if parameter.kind in positional]
    return [named[i] if i < len(named) else f"argument {i}" for i in range(count)]


def _check_same(core: Core, returned: Any, other: Any) -> None:
    """Raise NkiMismatchError unless the second core of the rank returns the same tensors."""
    mine, theirs = list(_tensors_in(returned)), list(_tensors_in(other))
    if [_identity(tensor) for tensor in mine] != [_identity(tensor) for tensor in theirs]:
        raise NkiMismatchError(
            f"the cores of rank {core.rank} return different tensors: core 0 {mine}, core 1 "
            f"{theirs}"
        )


def _tensors_in(returned: Any) -> Iterator[NkiTensor]:
    if isinstance(returned, NkiTensor):
        yield returned
    elif isinstance(returned, (list, tuple)):
        for item in returned:
            yield from _tensors_in(item)
    elif isinstance(returned, dict):
        for item in returned.values():
            yield from _tensors_in(item)


def _identity(tensor: NkiTensor) -> tuple[Any, ...]:
    return (tensor.storage.place, tensor.dtype, tensor.shape, tensor.strides, tensor.offset)


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
                f"the kernel returns {tensor!r}, which a collective used; copy it to another "
                "tensor",
            )
    if not tensor.storage.was_written(tensor.access()):
        core.violation(
            "unwritten_output", f"the kernel returns {tensor!r}, part of which nothing wrote"
        )
    return host.to_host(tensor, as_torch, core.numerics)
