"""`nki.jit`: a function as a kernel."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Sequence
from typing import Any, overload

from nkisim.core import current_or_none
from nkisim.errors import NkiValidationError

# what older versions of NKI took and newer ones ignore
_FORMER_OPTIONS = frozenset(
    {
        "additional_compile_opt",
        "debug_kernel",
        "experimental_flags",
        "mode",
        "platform_target",
        "show_compiler_tb",
        "version",
    }
)

# (consumer, producers)
Schedule = tuple[tuple[str, tuple[str, ...]], ...]


class Kernel:
    """A kernel: call it to run it, or put `[lnc]` before the call to run it on that many cores.

    Called within another kernel it is an ordinary function.

    Attributes:
        function: the Python function
        lnc: cores of a rank: 1 or 2
        grid: whether brackets gave `lnc`; `nl.program_ndim()` tells them apart
        schedule: instructions by name, and those that must come before them
    """

    def __init__(
        self,
        function: Callable[..., Any],
        lnc: int = 1,
        grid: bool = False,
        schedule: Schedule = (),
    ) -> None:
        if not callable(function):
            raise TypeError(f"nki.jit takes a function, not {function!r}")
        self.function = function
        self.lnc = lnc
        self.grid = grid
        self.schedule = schedule
        functools.update_wrapper(self, function)

    def __getitem__(self, lnc: Any) -> Kernel:
        return Kernel(self.function, lnc_of(lnc), True, self.schedule)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        core = current_or_none()
        if core is not None:
            if self.grid and self.lnc != core.run.lnc:
                raise NkiValidationError(
                    f"{self!r} is launched within a kernel on {core.run.lnc} cores; a kernel in "
                    "a kernel runs on the cores of that one"
                )
            return self.function(*args, **kwargs)
        from nkisim.simulation import simulate

        return simulate(self)(*args, **kwargs)

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        """As a method, with the instance bound."""
        if instance is None:
            return self
        bound = types.MethodType(self.function, instance)
        return Kernel(bound, self.lnc, self.grid, self.schedule)

    def with_schedule(self, order: Sequence[tuple[str, str | Sequence[str]]]) -> Kernel:
        """The kernel with instructions that wait for others, both given by their `name=`.

        It changes when they run on the chip, and no result.

        Args:
            order: pairs of a consumer, and its producer or producers.

        Raises:
            TypeError: something else.
        """
        pairs = tuple(_scheduled(pair) for pair in order)
        return Kernel(self.function, self.lnc, self.grid, (*self.schedule, *pairs))

    def __repr__(self) -> str:
        name = getattr(self.function, "__name__", repr(self.function))
        return f"<kernel {name}{f'[{self.lnc}]' if self.grid else ''}>"


def _scheduled(pair: Any) -> tuple[str, tuple[str, ...]]:
    if isinstance(pair, (list, tuple)) and len(pair) == 2:
        consumer, producers = pair
        names = (producers,) if isinstance(producers, str) else producers
        if isinstance(names, (list, tuple)) and all(isinstance(n, str) for n in (consumer, *names)):
            return consumer, tuple(names)
    raise TypeError(
        f"with_schedule: {pair!r}; it takes pairs of a name, and a name or a list of names"
    )


@overload
def jit(fn: Callable[..., Any], **kwargs: Any) -> Kernel: ...
@overload
def jit(fn: None = None, **kwargs: Any) -> Callable[[Callable[..., Any]], Kernel]: ...


def jit(fn: Callable[..., Any] | None = None, **kwargs: Any) -> Any:
    """Make a function a kernel, as a decorator with or without brackets.

    The options of older versions of NKI (`mode`, `platform_target`, ...) are taken and have no
    effect, as in NKI itself since 0.3.

    Raises:
        TypeError: another option.
    """
    for option in kwargs:
        if option not in _FORMER_OPTIONS:
            raise TypeError(f"nki.jit() got an unexpected keyword argument {option!r}")
    if fn is None:
        return jit
    return fn if isinstance(fn, Kernel) else Kernel(fn)


def lnc_of(value: Any) -> int:
    """The number of cores that `kernel[value]` means.

    Raises:
        NkiValidationError: it is neither 1 nor 2.
    """
    if isinstance(value, tuple) and len(value) == 1:
        (value,) = value
    if isinstance(value, bool) or not isinstance(value, int) or value not in (1, 2):
        raise NkiValidationError(
            f"the launch grid is {value!r}; a rank has 1 or 2 cores: kernel[1] or kernel[2]"
        )
    return value


def as_kernel(kernel: Any) -> Kernel:
    """`kernel`, or a plain function, as a `Kernel`."""
    return kernel if isinstance(kernel, Kernel) else Kernel(kernel)
