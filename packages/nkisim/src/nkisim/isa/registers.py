"""Registers of the sequencer: values from tensors, for addresses and loops."""

from __future__ import annotations

import functools
import inspect
from typing import Any

import numpy as np

from nkisim import dtypes
from nkisim.core import Core, current
from nkisim.enums import Engine
from nkisim.errors import NkiValidationError
from nkisim.isa import checks
from nkisim.register import VirtualRegister
from nkisim.tensor import NkiTensor
from nkisim.trace import Instruction

_LOADED = frozenset(
    {
        dtypes.uint8, dtypes.int8, dtypes.uint16, dtypes.int16, dtypes.uint32, dtypes.int32,
        dtypes.float32,
    }
)  # fmt: skip


def register_alloc(x: Any = None) -> VirtualRegister:
    """A new register, holding `x`: nothing, a number, or the element of a `[1, 1]` tensor."""
    current("nisa.register_alloc")
    register = VirtualRegister()
    if type(x) is NkiTensor:
        register_load(register, x)
    elif x is not None:
        register.value = _number("register_alloc: x", x)
    return register


def _register_move(dst: VirtualRegister, src: Any) -> Instruction:
    """`dst = src`, a number or another register."""
    core = current("nisa.register_move")
    _writable("register_move", dst)
    value = src.value if isinstance(src, VirtualRegister) else _number("register_move: src", src)
    instruction = core.issue("register_move", Engine.sync, (), ())
    dst.value = value
    return instruction


@functools.wraps(_register_move)
def register_move(*args: Any, **kwargs: Any) -> Instruction:
    # NKI before 0.3 called the source `imm`
    if "imm" in kwargs and "src" not in kwargs:
        kwargs["src"] = kwargs.pop("imm")
    return _register_move(*args, **kwargs)


register_move.__name__ = register_move.__qualname__ = "register_move"
register_move.__signature__ = inspect.signature(_register_move)  # type: ignore[attr-defined]


def register_load(dst: VirtualRegister, src: NkiTensor) -> Instruction:
    """`dst` = the one element of `src`, an integer or fp32 tensor in SBUF or HBM.

    Raises:
        NkiValidationError: `src` has more elements or another type, or `dst` is a loop variable.
    """
    core = current("nisa.register_load")
    op = "register_load"
    _writable(op, dst)
    _one_element(core, op, "src", src)
    instruction = core.issue(op, Engine.sync, (), (src,))
    dst.value = src.values().reshape(-1)[0].item() if src.has_values(core.numerics) else None
    return instruction


def register_store(dst: NkiTensor, src: VirtualRegister) -> Instruction:
    """The one element of `dst` = `src`.

    Raises:
        NkiValidationError: `dst` has more elements or another type, or `src` was never set.
    """
    core = current("nisa.register_store")
    op = "register_store"
    _one_element(core, op, "dst", dst)
    if not isinstance(src, VirtualRegister):
        raise TypeError(f"{op}: src is {src!r}; it must be a register")
    if core.numerics and src.value is None:
        raise NkiValidationError(f"{op}: src is a register that nothing has set")
    instruction = core.issue(op, Engine.sync, (dst,), ())
    if core.numerics:
        dst.assign(dtypes.cast(np.asarray([src.value]), dst.dtype))
    return instruction


def _writable(op: str, register: Any) -> None:
    if not isinstance(register, VirtualRegister):
        raise TypeError(f"{op}: dst is {register!r}; it must be a register")
    if register.frozen:
        raise TypeError(f"{op}: dst is the variable of a loop, which cannot be written")


def _one_element(core: Core, op: str, name: str, tensor: Any) -> None:
    if type(tensor) is not NkiTensor:
        raise TypeError(f"{op}: {name} is {tensor!r}; it must be a tensor of one element")
    if tensor.size != 1:
        core.violation("constraint", f"{op}: {name} is {tensor!r}; it must have one element")
    checks.dtype_in(core, op, name, tensor, _LOADED)


def _number(argument: str, value: Any) -> int | float:
    if isinstance(value, bool) or not checks.is_number(value):
        raise TypeError(f"{argument} is {value!r}; it must be a number or a register")
    number: int | float = value.item() if isinstance(value, np.generic) else value
    if isinstance(number, int) and not -(2**31) <= number < 2**32:
        raise NkiValidationError(f"{argument} is {number}; a register holds 32 bits")
    return number
