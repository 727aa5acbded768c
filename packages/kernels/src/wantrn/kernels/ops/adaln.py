"""``adaln_modulate``: (gated residual,) normalisation and modulation of the residual stream."""

from __future__ import annotations

import enum
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from wantrn.kernels.backend import log_fallback
from wantrn.kernels.machine import machine_for
from wantrn.kernels.ops.registration import operator
from wantrn.kernels.row_mx import OCP_LIMIT, SCALE_BYTES, quantize_rows


class Norm(enum.Enum):
    """The normalisation over H, without learned weights (those are ``mul`` and ``add``)."""

    LAYER = "layer"
    RMS = "rms"
    NONE = "none"


def adaln_modulate(
    x: Tensor,
    mul: Tensor | None = None,
    add: Tensor | None = None,
    *,
    norm: Norm = Norm.LAYER,
    eps: float = 1e-6,
    packed: bool = False,
) -> Tensor:
    """``norm(x) * mul + add``, computed in fp32 and rounded once.

    Args:
        x: ``[B, S, H]``, fp32 or bf16.
        mul: fp32 ``[H]``, or ``[1 | B, G, H]`` where ``G`` divides ``S``: row ``g`` belongs to the
            ``g``-th run of ``S/G`` tokens. ``G = 1`` is one row for all tokens, ``G = S`` a row for
            each. None means one.
        add: as ``mul``; None means zero.
        norm: the normalisation over H.
        eps: added to the variance (or mean square).
        packed: the result is quantized, straight from fp32, to packed rows; see
            ``row_mx.quantize_rows``. ``H`` is then a multiple of 4.

    Returns:
        ``[B, S, H]`` of ``x.dtype``, or packed rows ``[B, S, H + 4]`` float8_e4m3fn.

    Raises:
        ValueError: an argument whose shape or dtype does not fit the others, by name.
    """
    _check_stream(x, packed)
    mul, add = _rows("mul", mul, x), _rows("add", add, x)
    out: Tensor = _adaln(x, mul, add, norm.value, eps, packed)
    return out


def gated_adaln_modulate(
    x: Tensor,
    residual: Tensor,
    gate: Tensor | None = None,
    mul: Tensor | None = None,
    add: Tensor | None = None,
    *,
    norm: Norm = Norm.LAYER,
    eps: float = 1e-6,
    packed: bool = False,
) -> tuple[Tensor, Tensor]:
    """Add a layer's output to the residual stream, and normalise and modulate the sum.

    ``stream = residual + gate * x`` in fp32, rounded to the stream's dtype; then
    ``norm(stream) * mul + add`` of the rounded stream, as ``adaln_modulate``.

    Args:
        x: ``[B, S, H]``, fp32 or bf16: what the layer computed.
        residual: as ``x``: the stream before the layer.
        gate: fp32, shaped as ``mul``; None means one.
        mul, add, norm, eps, packed: as for ``adaln_modulate``.

    Returns:
        The new stream ``[B, S, H]`` of ``x.dtype`` and its modulated normalisation, the same or
        packed rows.

    Raises:
        ValueError: an argument whose shape or dtype does not fit the others, by name.
    """
    _check_stream(x, packed)
    _check_residual(residual, x)
    gate, mul, add = _rows("gate", gate, x), _rows("mul", mul, x), _rows("add", add, x)
    out: tuple[Tensor, Tensor] = _gated_adaln(x, residual, gate, mul, add, norm.value, eps, packed)
    return out


def gated_add(x: Tensor, residual: Tensor, gate: Tensor | None = None) -> Tensor:
    """``residual + gate * x`` in fp32, rounded once: ``gated_adaln_modulate`` without the norm.

    Args, errors: as there. Returns the new stream ``[B, S, H]`` of ``x.dtype``.
    """
    _check_stream(x)
    _check_residual(residual, x)
    out: Tensor = _gated_add(x, residual, _rows("gate", gate, x))
    return out


def row_quantize(x: Tensor) -> Tensor:
    """Tokens as packed rows, which the operators with FP8 weights take.

    Args:
        x: ``[B, S, H]``, fp32 or bf16, ``H`` a multiple of 4.

    Returns:
        ``[B, S, H + 4]`` float8_e4m3fn; see ``row_mx.quantize_rows``.

    Raises:
        ValueError: ``x`` has another shape.
    """
    return adaln_modulate(x, norm=Norm.NONE, packed=True)


def _check_stream(x: Tensor, packed: bool = False) -> None:
    if x.ndim != 3:
        raise ValueError(f"x must be [B, S, H], got {list(x.shape)}")
    if packed and (x.shape[2] < 4 or x.shape[2] % 4):
        raise ValueError(f"x has rows of {x.shape[2]}; packed rows need a multiple of 4")


def _check_residual(residual: Tensor, x: Tensor) -> None:
    if residual.shape != x.shape or residual.dtype != x.dtype:
        raise ValueError(
            f"residual must be {list(x.shape)} {x.dtype}, "
            f"got {list(residual.shape)} {residual.dtype}"
        )


def _rows(name: str, value: Tensor | None, x: Tensor) -> Tensor | None:
    """A modulation as ``[1 | B, G, H]``."""
    if value is None:
        return None
    batch, tokens, hidden = x.shape
    rows = value.view(1, 1, -1) if value.ndim == 1 else value
    fits = rows.ndim == 3 and rows.shape[0] in (1, batch) and rows.shape[2] == hidden
    if not fits or rows.shape[1] == 0 or tokens % rows.shape[1]:
        raise ValueError(
            f"{name} must be [{hidden}] or [1 or {batch}, G, {hidden}] with G a divisor of "
            f"{tokens} tokens, got {list(value.shape)}"
        )
    if value.dtype != torch.float32:
        raise ValueError(f"{name} must be float32, got {value.dtype}")
    return rows


@operator("adaln_modulate")
def _adaln(
    x: Tensor, mul: Tensor | None, add: Tensor | None, norm: str, eps: float, packed: bool
) -> Tensor:
    found: Tensor | None = _by_kernel("adaln_modulate", x, (norm, eps, packed), mul=mul, add=add)
    return _normalise_modulate(x, mul, add, norm, eps, packed) if found is None else found


@_adaln.register_fake
def _(
    x: Tensor, mul: Tensor | None, add: Tensor | None, norm: str, eps: float, packed: bool
) -> Tensor:
    return _empty_rows(x, packed)


@operator("gated_adaln_modulate")
def _gated_adaln(
    x: Tensor,
    residual: Tensor,
    gate: Tensor | None,
    mul: Tensor | None,
    add: Tensor | None,
    norm: str,
    eps: float,
    packed: bool,
) -> tuple[Tensor, Tensor]:
    tensors = {"mul": mul, "add": add, "residual": residual, "gate": gate}
    found = _by_kernel("gated_adaln_modulate", x, (norm, eps, packed), **tensors)
    if isinstance(found, Tensor):  # nothing but the sum was asked for
        return found, found.clone()
    if found is not None:
        stream, out = found
        return stream, out
    stream = _add_gated(x, residual, gate)
    return stream, _normalise_modulate(stream, mul, add, norm, eps, packed)


@_gated_adaln.register_fake
def _(
    x: Tensor,
    residual: Tensor,
    gate: Tensor | None,
    mul: Tensor | None,
    add: Tensor | None,
    norm: str,
    eps: float,
    packed: bool,
) -> tuple[Tensor, Tensor]:
    return x.new_empty(x.shape), _empty_rows(x, packed)


@operator("gated_add")
def _gated_add(x: Tensor, residual: Tensor, gate: Tensor | None) -> Tensor:
    result = ("none", 1e-6, False)
    found: Tensor | None = _by_kernel("gated_add", x, result, residual=residual, gate=gate)
    return _add_gated(x, residual, gate) if found is None else found


@_gated_add.register_fake
def _(x: Tensor, residual: Tensor, gate: Tensor | None) -> Tensor:
    return x.new_empty(x.shape)


def _empty_rows(x: Tensor, packed: bool) -> Tensor:
    if not packed:
        return x.new_empty(x.shape)
    return x.new_empty((*x.shape[:2], x.shape[2] + SCALE_BYTES), dtype=torch.float8_e4m3fn)


def _by_kernel(
    operator: str, x: Tensor, result: tuple[str, float, bool], **tensors: Tensor | None
) -> Any:
    """What the kernel `adaln_modulate` returns; None where torch is to compute the operator.

    `result` is the norm, its eps and whether rows are packed.
    """
    machine = machine_for(x)
    if machine is None:
        return None
    from wantrn.kernels.adaln.options import Options
    from wantrn.kernels.adaln.torch_call import Call

    norm, eps, packed = result
    call = Call(x, Options(norm, eps, OCP_LIMIT if packed else 0.0), **tensors)
    reason = call.refusal(machine)
    if reason is not None:
        log_fallback(operator, reason)
        return None
    return call.computed(machine)


def _add_gated(x: Tensor, residual: Tensor, gate: Tensor | None) -> Tensor:
    return _multiply_add(x.float(), gate, residual.float()).to(x.dtype)


def _normalise_modulate(
    x: Tensor, mul: Tensor | None, add: Tensor | None, norm: str, eps: float, packed: bool
) -> Tensor:
    wide = x.float()
    if norm == "layer":
        wide = F.layer_norm(wide, wide.shape[-1:], eps=eps)
    elif norm == "rms":
        wide = F.rms_norm(wide, wide.shape[-1:], eps=eps)
    wide = _multiply_add(wide, mul, add)
    if packed:
        return quantize_rows(wide)
    # an operator's result may not be its input
    return wide.clone() if wide is x else wide.to(x.dtype)


def _multiply_add(x: Tensor, mul: Tensor | None, add: Tensor | None) -> Tensor:
    """``x * mul + add`` in fp32, for rows ``[1 | B, G, H]``."""
    if mul is None:
        return x if add is None else x + _spread(add, x.shape[1])
    if add is None:
        return x * _spread(mul, x.shape[1])
    return torch.addcmul(_spread(add, x.shape[1]), x, _spread(mul, x.shape[1]))


def _spread(rows: Tensor, tokens: int) -> Tensor:
    """Rows ``[B, G, H]`` as ``[B, S, H]``, each for its run of tokens; a view where G is 1 or S."""
    return rows.unsqueeze(2).expand(-1, -1, tokens // rows.shape[1], -1).flatten(1, 2)
