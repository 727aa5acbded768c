"""Activation functions as torch computes them in float64, and calls with tiles that fit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from isa_tiles import Array, empty, tile
from torch import Tensor
from torch.nn import functional

from nkisim import operations as nl
from nkisim.isa.activations import activate2, activation, activation_reduce

F32 = np.float32

# in float64; arguments at which every one of them is defined
FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "copy": lambda x: x,
    "square": torch.square,
    "sigmoid": torch.sigmoid,
    "relu": torch.relu,
    "gelu": functional.gelu,
    "gelu_apprx_tanh": lambda x: functional.gelu(x, approximate="tanh"),
    "gelu_apprx_sigmoid": lambda x: x * torch.sigmoid(1.702 * x),
    "silu": functional.silu,
    "tanh": torch.tanh,
    "softplus": functional.softplus,
    "mish": functional.mish,
    "erf": torch.erf,
    "exp": torch.exp,
    "log": lambda x: torch.log(x.abs() + 0.25),
    "sin": torch.sin,
    "arctan": torch.arctan,
    "sqrt": lambda x: torch.sqrt(x.abs() + 0.25),
    "rsqrt": lambda x: torch.rsqrt(x.abs() + 0.25),
    "reciprocal": lambda x: 1 / (x.abs() + 0.25),
    "sign": torch.sign,
    "abs": torch.abs,
}
POSITIVE = ("log", "sqrt", "rsqrt", "reciprocal")


def token(name: str) -> Any:
    return getattr(nl, {"abs": "abs_", "sum": "sum_"}.get(name, name))


def stated(name: str, x: Array) -> Array:
    if name in POSITIVE:
        # the arguments are made positive by the caller
        return {"log": np.log, "sqrt": np.sqrt}.get(
            name, lambda v: 1 / (np.sqrt(v) if name == "rsqrt" else v)
        )(x)
    found: Array = FUNCTIONS[name](torch.from_numpy(np.asarray(x, np.float64))).numpy()
    return found


def activation_call(function: Any = activation, **more: Any) -> Any:
    """`function` on [4, 6] tiles, with arguments changed; callables make tensors."""

    def body() -> None:
        given: dict[str, Any] = {"op": nl.exp}
        if function is activation_reduce:
            given |= {"reduce_op": nl.add, "reduce_res": lambda: empty((4, 1))}
        if function is activate2:
            given |= {"imm0": 1.0, "imm1": 0.0, "op0": nl.multiply, "op1": nl.add}
        given |= {"dst": lambda: empty((4, 6)), "data": lambda: tile(np.ones((4, 6), F32))}
        given |= more
        tokens = (nl.Operation, str)
        function(
            **{k: v() if callable(v) and not isinstance(v, tokens) else v for k, v in given.items()}
        )

    return body
