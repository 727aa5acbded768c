"""`simulate` and `World`: run a kernel on one rank, or on several."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from nkisim.errors import NkiCapacityError, NkiValidationError
from nkisim.kernel import Kernel, as_kernel
from nkisim.peers import PATIENCE, Carrier, Peers
from nkisim.report import Report, make
from nkisim.run import Arguments, Run
from nkisim.settings import Settings
from nkisim.timing import placement
from nkisim.trace import CoreTrace, Instruction, Trace


class Simulation:
    """A kernel that runs in the simulator: `simulation[lnc](*args)`."""

    def __init__(self, kernel: Kernel, settings: Settings) -> None:
        self._kernel = kernel
        self._settings = settings

    def __getitem__(self, lnc: Any) -> Simulation:
        return Simulation(self._kernel[lnc], self._settings)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the kernel; arrays in, arrays out. Inputs that the kernel writes to are changed."""
        results, _ = launch(self._kernel, self._settings, 1, [(args, kwargs)])
        return results[0]


def simulate(kernel: Any, settings: Settings | None = None, **overrides: Any) -> Simulation:
    """A kernel to run on one rank: `simulate(kernel)(*args)`, or `simulate(kernel)[2](*args)`.

    Args:
        kernel: a function, or what `nki.jit` makes of one.
        settings: how it is simulated; `overrides` are single fields of it (`target="gen3"`).
    """
    return Simulation(as_kernel(kernel), (settings or Settings()).changed(**overrides))


def prepared(kernel: Any, lnc: int | None) -> Kernel:
    """A function or kernel as a kernel, on `lnc` cores if that is given."""
    known = as_kernel(kernel)
    return known if lnc is None else known[lnc]


def profile(
    kernel: Any,
    /,
    *args: Any,
    lnc: int | None = None,
    target: Any = None,
    numerics: bool = True,
    settings: Settings | None = None,
    **kwargs: Any,
) -> Report:
    """Run a kernel on one rank and report the time that it would take on the chip.

    Args:
        kernel: a function, or what `nki.jit` makes of one; `kernel[2]` for two cores.
        args, kwargs: its arguments. Without numerics, `TensorSpec` may stand for arrays.
        lnc: cores of the rank; by default those of `kernel[lnc]`, else 1.
        target: the generation or its name; by default that of `settings`.
        numerics: whether values are computed. Without, large shapes take seconds; what depends on
            values in tensors is not known then.
        settings: anything else.
    """
    chosen = (settings or Settings()).changed(numerics=numerics, trace=True)
    if target is not None:
        chosen = chosen.changed(target=target)
    _, trace = launch(prepared(kernel, lnc), chosen, 1, [(args, kwargs)], fits=False)
    return make(trace)


class World:
    """Several ranks that run the same kernel, each on its own arguments.

    Args:
        ranks: how many; at least 1.
        lnc: physical cores of each rank, 1 or 2. `kernel[2]` must agree with it.
        target: the generation or its name; as in `Settings`.
        settings: anything else.
    """

    def __init__(
        self,
        ranks: int,
        lnc: int = 1,
        target: Any = None,
        settings: Settings | None = None,
        **overrides: Any,
    ) -> None:
        if isinstance(ranks, bool) or not isinstance(ranks, int) or ranks < 1:
            raise ValueError(f"ranks is {ranks!r}; it must be at least 1")
        if lnc not in (1, 2):
            raise ValueError(f"lnc is {lnc!r}; a rank has 1 or 2 cores")
        if target is not None:
            overrides["target"] = target
        self.ranks = ranks
        self.lnc = lnc
        self.settings = (settings or Settings()).changed(**overrides)

    def run(self, kernel: Any, inputs: Sequence[Any]) -> list[Any]:
        """Run the kernel on all ranks.

        Args:
            kernel: a function, or what `nki.jit` makes of one.
            inputs: for each rank its arguments: a tuple or list of positional ones, or a dictionary
                of keyword arguments.

        Returns:
            For each rank what the kernel returned, as arrays.
        """
        results, _ = self.launch(kernel, inputs)
        return results

    def launch(
        self, kernel: Any, inputs: Sequence[Any], *, fits: bool = True
    ) -> tuple[list[Any], Trace]:
        """As `run`, with the trace; `fits` is that of `nkisim.simulation.launch`."""
        on_cores = _on_cores(kernel, self.lnc)
        if len(inputs) != self.ranks:
            raise ValueError(f"inputs has {len(inputs)} entries; there are {self.ranks} ranks")
        arguments = [_arguments(entry, rank) for rank, entry in enumerate(inputs)]
        return launch(on_cores, self.settings, self.ranks, arguments, fits=fits)

    def profile(self, kernel: Any, inputs: Sequence[Any]) -> Report:
        """As `run`, for a report of the chip's time; see `nkisim.profile`."""
        _, trace = self.launch(kernel, inputs, fits=False)
        return make(trace)

    def __repr__(self) -> str:
        return f"World(ranks={self.ranks}, lnc={self.lnc}, target={self.settings.target.name!r})"


class Rank:
    """One rank of a world whose other ranks run elsewhere, in other processes say.

    Results have the same bits as those of a `World` of all ranks. Time is not told: that takes all
    ranks in one place.

    Args:
        carrier: what reaches the other ranks, and knows which one this is.
        lnc, target, settings: as of `World`, and the same on every rank.
        patience: seconds to wait for another rank before it counts as failed.

    Raises:
        ValueError: `lnc` is neither 1 nor 2, `patience` is not positive, or `settings` are without
            numerics.
    """

    def __init__(
        self,
        carrier: Carrier,
        lnc: int = 1,
        target: Any = None,
        settings: Settings | None = None,
        patience: float = PATIENCE,
        **overrides: Any,
    ) -> None:
        if not patience > 0:
            raise ValueError(f"patience is {patience}; it must be more than 0 seconds")
        world = World(carrier.ranks, lnc, target, settings, **overrides)
        if not world.settings.numerics:
            raise ValueError("settings are without numerics; ranks that run apart compute values")
        self.carrier = carrier
        self.lnc = lnc
        self.settings = world.settings
        self.patience = patience

    def run(self, kernel: Any, *args: Any, **kwargs: Any) -> Any:
        """Run the kernel with these arguments on this rank, while the others run it on theirs.

        Returns:
            What the kernel returned, as arrays.

        Raises:
            NkiPeerError: another rank has failed, or nothing is heard of it; the text says which.
            NkiMismatchError: the ranks disagree about a collective.
            NkiError: whatever the kernel does that the hardware does not take.
        """
        peers = Peers(self.carrier, self.patience)
        on_cores = _on_cores(kernel, self.lnc)
        (found,), _ = launch(on_cores, self.settings, peers.ranks, [(args, kwargs)], peers=peers)
        return found


def _on_cores(kernel: Any, lnc: int) -> Kernel:
    known = as_kernel(kernel)
    if known.grid and known.lnc != lnc:
        raise NkiValidationError(
            f"the kernel is launched with [{known.lnc}] in a world of lnc {lnc}"
        )
    return known if known.grid or lnc == 1 else known[lnc]


def _arguments(entry: Any, rank: int) -> Arguments:
    if isinstance(entry, Mapping):
        return (), dict(entry)
    if isinstance(entry, (list, tuple)):
        return tuple(entry), {}
    raise TypeError(
        f"inputs[{rank}] is {type(entry).__name__}; it must be a tuple of positional arguments "
        "or a dictionary of keyword arguments"
    )


def launch(
    kernel: Kernel,
    settings: Settings,
    ranks: int,
    arguments: Sequence[Arguments],
    *,
    fits: bool = True,
    peers: Peers | None = None,
) -> tuple[list[Any], Trace]:
    """Run a kernel on every core of every rank that is here; the results of each, and the trace.

    Args:
        ranks: of the run; all are here, or with `peers` one of them.
        arguments: of each rank that is here.
        peers: the ranks that are not.
        fits: whether to look that the tensors fit, which `report.make` does as well.

    Raises:
        NkiCapacityError: the tensors of a core do not fit.
        NkiError: whatever the kernel does that the hardware does not take.
    """
    run = Run(settings, ranks, kernel.lnc, kernel.grid, peers)
    try:
        results = run.execute(kernel.function, arguments)
        trace = run.trace()
        if settings.trace and fits:
            _check_capacity(run, trace)
    finally:
        run.close()
    if settings.trace and kernel.schedule:
        _apply_schedule(kernel, trace)
    return results, trace


def _check_capacity(run: Run, trace: Trace) -> None:
    for core, core_trace in zip(run.cores, trace.cores, strict=True):
        try:
            placement.check(core_trace, core.machine)
        except NkiCapacityError as error:
            core.violation("capacity", str(error))


def _apply_schedule(kernel: Kernel, trace: Trace) -> None:
    """Let instructions wait for those that `with_schedule` puts before them.

    Where a name stands for several, as in a loop, each consumer waits for the producers before it
    in the program. [inferred]

    Raises:
        NkiValidationError: no instruction has the name, or no producer comes before its consumer.
    """
    named = [_by_name(core) for core in trace.cores]
    for consumer, producers in kernel.schedule:
        for name in (consumer, *producers):
            if not any(name in core for core in named):
                raise NkiValidationError(
                    f"with_schedule names {name!r}, but no instruction has that name"
                )
        for producer in producers:
            pairs = [
                (later, earlier)
                for core in named
                for later in core.get(consumer, ())
                for earlier in core.get(producer, ())
                if earlier.index < later.index
            ]
            if not pairs:
                raise NkiValidationError(
                    f"with_schedule puts {producer!r} before {consumer!r}, but no instruction of "
                    "the first name comes before one of the second in the program of a core"
                )
            for later, earlier in pairs:
                later.depends_on(earlier)


def _by_name(core: CoreTrace) -> dict[str, list[Instruction]]:
    named: dict[str, list[Instruction]] = {}
    for instruction in core:
        if instruction.name is not None:
            named.setdefault(instruction.name, []).append(instruction)
    return named
