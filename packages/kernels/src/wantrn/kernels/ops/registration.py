"""How operators are registered with ``torch.library``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._library.custom_ops import CustomOpDef
from torch._subclasses.functional_tensor import FunctionalTensorMode

from wantrn.kernels.machine import runs_on_device


def operator(name: str) -> Callable[[Callable[..., Any]], CustomOpDef]:
    """Register a function as the operator ``wantrn::name``: one node of a captured graph.

    Where a device computes it, a compiler of graphs gets what the function does in place of that
    node: the kernel, and what prepares its operands.
    """

    def registered(function: Callable[..., Any]) -> CustomOpDef:
        made = torch.library.custom_op(f"wantrn::{name}", function, mutates_args=())

        def through(
            mode: FunctionalTensorMode,
            op: Any,
            types: Sequence[type],
            args: tuple[Any, ...],
            kwargs: dict[str, Any],
        ) -> Any:
            if not any(isinstance(arg, Tensor) and runs_on_device(arg) for arg in args):
                return mode.__torch_dispatch__(op, types, args, kwargs)
            with mode:
                return function(*args, **kwargs)

        made.register_torch_dispatch(FunctionalTensorMode, through)
        return made

    return registered
