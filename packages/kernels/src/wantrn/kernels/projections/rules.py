"""The rules that a call of `o_proj` or `mlp` must keep; each function says which one is broken."""

from __future__ import annotations

from typing import Any

from wantrn.kernels.projections.options import MlpSizes, OProjSizes
from wantrn.kernels.projections.tiles import TILE
from wantrn.kernels.row_mx import SCALE_BYTES, VALUES
from wantrn.kernels.words import is_fp8, values_of, words


def broken_by_o_proj_sizes(sizes: OProjSizes, mx: bool) -> Any:
    """A rule about the sizes of `o_proj`; `mx`: the chip has the MX matmul."""
    if min(sizes.batch, sizes.tokens, sizes.depth) < 1:
        return f"the sizes are {sizes}; every one must be at least 1"
    multiples = [("H", sizes.width)]
    if sizes.packed:
        multiples.append(("N * D", sizes.depth))
    return _broken_by_multiples(multiples) or _broken_by_target(sizes.packed, mx)


def broken_by_mlp_sizes(sizes: MlpSizes, mx: bool) -> Any:
    """A rule about the sizes of `mlp`; `mx`: the chip has the MX matmul."""
    if sizes.tokens < 1:
        return f"there are {sizes.tokens} tokens; there must be at least 1"
    multiples = [("H", sizes.hidden), ("F", sizes.inner), ("H_out", sizes.width)]
    return _broken_by_multiples(multiples) or _broken_by_target(sizes.packed, mx)


def _broken_by_multiples(named: list[tuple[str, int]]) -> Any:
    for name, size in named:
        if size < TILE or size % TILE:
            return f"{name} is {size}; it must be a multiple of {TILE}"
    return None


def _broken_by_target(packed: bool, mx: bool) -> Any:
    if packed and not mx:
        return "the weights are FP8; before gen4 there is no MX matmul"
    return None


def broken_by_o_proj_tensors(x: Any, weight: Any, weight_scales: Any, bias: Any) -> Any:
    """A rule about ranks, shapes and dtypes of the tensors of `o_proj`."""
    if len(x.shape) != 4:
        return f"x is {list(x.shape)}; it must be [B, N, D, S]"
    if "bfloat16" not in str(x.dtype):
        return f"x is {x.dtype}; it must be bfloat16"
    depth = x.shape[1] * x.shape[2]
    return broken_by_weight("weight", weight, depth, is_fp8(weight)) or broken_by_vectors(
        weight, [("weight_scales", weight_scales, True), ("bias", bias, False)]
    )


def broken_by_mlp_tensors(x: Any, up: Any, down: Any) -> Any:
    """A rule about tokens and weights of `mlp`."""
    packed = is_fp8(x)
    if len(x.shape) != 3:
        return f"x is {list(x.shape)}; it must be [B, S, H], or [B, S, H + {SCALE_BYTES}] packed"
    if not packed and "bfloat16" not in str(x.dtype):
        return f"x is {x.dtype}; it must be bfloat16 or float8_e4m3fn"
    hidden = values_of(x.shape[2], packed)
    return broken_by_weight("up", up, hidden, packed) or broken_by_weight(
        "down", down, up.shape[1], packed
    )


def broken_by_weight(name: str, weight: Any, depth: int, packed: bool) -> Any:
    """A rule about a weight that contracts `depth` values."""
    wanted = "float8_e4m3fn" if packed else "bfloat16"
    if wanted not in str(weight.dtype):
        return f"{name} is {weight.dtype}; it must be {wanted}"
    rows = words(depth, packed)
    layout = f"[{rows}, I, {VALUES}]" if packed else f"[{rows}, I]"
    shape = tuple(weight.shape)
    fits = len(shape) == (3 if packed else 2) and shape[0] == rows
    if not fits or (packed and (shape[2] != VALUES or depth % VALUES)):
        return f"{name} is {list(shape)}; it must be {layout}"
    return None


def broken_by_vectors(weight: Any, vectors: list[tuple[str, Any, bool]]) -> Any:
    """A rule about what there is for each column of a weight.

    Args:
        vectors: name, tensor or None, and whether it is the scales, which go with FP8.
    """
    for name, vector, scales in vectors:
        if scales and (vector != None) != is_fp8(weight):
            return f"{name} must be given exactly where the weight is FP8"
        if vector == None:
            continue
        if tuple(vector.shape) != (1, weight.shape[1]):
            return f"{name} is {list(vector.shape)}; it must be {[1, weight.shape[1]]}"
        dtypes = ("float32",) if scales else ("float32", "bfloat16")
        if not any([dtype in str(vector.dtype) for dtype in dtypes]):
            return f"{name} is {vector.dtype}; it must be {' or '.join(dtypes)}"
    return None
