"""Loops, and blocks whose order the scheduler keeps."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from nkisim.core import Core, current
from nkisim.dynamic import scalar_value
from nkisim.register import VirtualRegister


def affine_range(start: int, stop: int | None = None, step: int = 1) -> range:
    """Python's `range`: the loop is unrolled, and its turns may run in any order that their data
    allow."""
    return range(start) if stop is None else range(start, stop, step)


def sequential_range(start: int, stop: int | None = None, step: int = 1) -> range:
    """Python's `range`: the loop is unrolled, and its turns depend on one another."""
    return affine_range(start, stop, step)


def static_range(start: int, stop: int | None = None, step: int = 1) -> range:
    """Python's `range`: the loop is unrolled."""
    return affine_range(start, stop, step)


def dynamic_range(start: Any, stop: Any = None, step: int = 1) -> Iterator[VirtualRegister]:
    """A loop on the device; the variable is a register that cannot be written.

    Args:
        start, stop: as in `range`; numbers or registers.
        step: not 0.

    Raises:
        NkiValidationError: it stands in a block of `no_reorder`, or a register holds no value.
    """
    what = "nl.dynamic_range"
    core = current(what)
    core.violation("deprecated", f"{what} is deprecated since NKI 0.6; use nl.fori_loop")
    first, last = (0, start) if stop is None else (start, stop)
    return _registers(_turns(core, what, first, last, step))


def _registers(turns: range) -> Iterator[VirtualRegister]:
    for turn in turns:
        yield VirtualRegister(turn, frozen=True)


def _turns(core: Core, what: str, start: Any, stop: Any, step: Any) -> range:
    _outside_no_reorder(core, what)
    return range(_bound(what, "start", start), _bound(what, "stop", stop), operator.index(step))


def _bound(what: str, name: str, value: Any) -> int:
    if isinstance(value, VirtualRegister):
        return scalar_value(value, f"{what}: {name}")
    try:
        return operator.index(value)
    except TypeError:
        raise TypeError(
            f"{what}: {name} is {value!r}; it must be an integer or a register"
        ) from None


def _outside_no_reorder(core: Core, what: str) -> None:
    if core.reorder_scope:
        core.violation(
            "constraint", f"{what} inside nl.no_reorder(); a loop on the device must be outside"
        )


def fori_loop(
    lower: Any, upper: Any, body_fun: Callable[[VirtualRegister], Any], step: int = 1
) -> None:
    """A loop on the device: `body_fun(i)` for `i` from `lower` up to, not including, `upper`.

    Args:
        lower, upper: numbers or registers.
        body_fun: takes the loop variable, a register that cannot be written. Turns hand values on
            only in tensors.
        step: not 0.

    Raises:
        NkiValidationError: it stands in a block of `no_reorder`, or a register holds no value.
    """
    what = "nl.fori_loop"
    turns = _turns(current(what), what, lower, upper, step)
    if not callable(body_fun):
        raise TypeError(f"{what}: body_fun is {body_fun!r}; it must be a function of the index")
    for register in _registers(turns):
        body_fun(register)


def while_loop(
    init: VirtualRegister, body_fun: Callable[[VirtualRegister], VirtualRegister]
) -> None:
    """A loop on the device: while the register is not zero, it becomes `body_fun(register)`.

    Args:
        init: the register to begin with.
        body_fun: takes the register and returns the next; it may be the same one.

    Raises:
        NkiValidationError: it stands in a block of `no_reorder`, or a register holds no value.
        TypeError: `init`, or what `body_fun` returns, is no register.
    """
    what = "nl.while_loop"
    _outside_no_reorder(current(what), what)
    if not callable(body_fun):
        raise TypeError(f"{what}: body_fun is {body_fun!r}; it must be a function of the register")
    register = _condition(what, "init", init)
    while register.value != 0:
        register = _condition(what, "the result of body_fun", body_fun(register))


def _condition(what: str, name: str, value: Any) -> VirtualRegister:
    if not isinstance(value, VirtualRegister):
        raise TypeError(f"{what}: {name} is {value!r}; it must be a register")
    scalar_value(value, f"{what}: {name}")
    return value


@contextmanager
def no_reorder() -> Iterator[None]:
    """A block, `with nl.no_reorder():`, whose instructions start in the order of the program.

    It holds for the functions called in it too. A block within a block belongs to the outer one.
    """
    core = current("nl.no_reorder")
    outer = core.reorder_scope
    if not outer:
        core.reorder_scopes += 1
        core.reorder_scope = core.reorder_scopes
    try:
        yield
    finally:
        core.reorder_scope = outer
