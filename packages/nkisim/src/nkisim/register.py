"""Registers: values that a kernel knows only when it runs."""

from __future__ import annotations

from typing import NoReturn


class VirtualRegister:
    """A 32-bit register of the sequencer.

    The hardware has no arithmetic on registers for kernels to use, and the tracing front end of NKI
    0.7 allows none in Python control flow; both raise here. A register serves as the
    `scalar_offset` of an access pattern, as an index, and in `nl.ds`. It may be compared to None.

    Attributes:
        value: what it holds; None before the first move, or in a run without numerics
        frozen: the induction variable of a loop, which may not be written
    """

    __slots__ = ("frozen", "value")

    def __init__(self, value: int | float | None = None, frozen: bool = False) -> None:
        self.value = value
        self.frozen = frozen

    def __repr__(self) -> str:
        return f"VirtualRegister({self.value})"

    def _no_arithmetic(self, *_: object) -> NoReturn:
        raise TypeError(
            "a register takes no part in arithmetic or comparisons on the device; compute with "
            "Python numbers, or look the result up in a table by .ap(scalar_offset=register)"
        )

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = _no_arithmetic
    __mod__ = __rmod__ = __floordiv__ = __rfloordiv__ = __truediv__ = __rtruediv__ = _no_arithmetic
    __divmod__ = __rdivmod__ = __pow__ = __rpow__ = _no_arithmetic
    __and__ = __rand__ = __or__ = __ror__ = __xor__ = __rxor__ = _no_arithmetic
    __lshift__ = __rlshift__ = __rshift__ = __rrshift__ = _no_arithmetic
    __neg__ = __pos__ = __abs__ = __invert__ = _no_arithmetic
    __lt__ = __le__ = __gt__ = __ge__ = _no_arithmetic

    def __eq__(self, other: object) -> bool:
        if other is None or other is self:
            return other is self
        self._no_arithmetic()

    __hash__ = object.__hash__

    def _no_control(self) -> NoReturn:
        raise TypeError(
            "a register has no value while a kernel is traced: it cannot be used in if, while, "
            "range or int; use nl.fori_loop or nl.while_loop"
        )

    __bool__ = __int__ = __index__ = __float__ = _no_control
