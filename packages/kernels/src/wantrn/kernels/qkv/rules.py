"""The rules that a call of `qkv_cte` must keep; each function says which one is broken."""

from __future__ import annotations

from typing import Any

from wantrn.kernels.qkv.options import LAYER_PER_HEAD, NORMS, Options, Sizes
from wantrn.kernels.qkv.slabs import TILE
from wantrn.kernels.row_mx import SCALE_BYTES, kernel_layout
from wantrn.kernels.words import is_fp8, values_of

MAX_HEAD_DIM = 128


def broken_by_options(options: Options) -> Any:
    """A rule about the options alone."""
    if options.heads < 1 or options.kv_heads < 0:
        return (
            f"heads is {options.heads} and kv_heads {options.kv_heads}; there must be at least 1 "
            "and 0"
        )
    if not 1 <= options.head_dim <= MAX_HEAD_DIM:
        return f"head_dim is {options.head_dim}; it must be 1 to {MAX_HEAD_DIM}"
    if not 0 < options.eps < float("inf"):
        return f"eps is {options.eps}; it must be positive and finite"
    if not any([options.norm == norm for norm in NORMS]):
        return f"norm is {options.norm!r}; it must be {', '.join(NORMS[:-1])} or {NORMS[-1]}"
    groups = options.replica_groups
    if not isinstance(groups, tuple) or not all([isinstance(g, tuple) for g in groups]):
        return f"replica_groups is {groups!r}; it must be a tuple of tuples of ranks"
    if not all([len(group) == len(groups[0]) and group for group in groups]):
        return f"replica_groups is {groups!r}; all groups must have as many ranks, and at least 1"
    return None


def broken_by_operands(x: Any, weight: Any, options: Options) -> Any:
    """A rule about tokens and weight."""
    if len(x.shape) != 3:
        return f"x is {list(x.shape)}; it must be [B, S, H], or [B, S, H + {SCALE_BYTES}] packed"
    names = (str(x.dtype), str(weight.dtype))
    packed = is_fp8(x)
    for name, found in (("x", names[0]), ("weight", names[1])):
        wanted = "float8_e4m3fn" if packed else "bfloat16"
        if wanted not in found:
            return f"{name} is {found}; x and weight must both be bfloat16 or both float8_e4m3fn"
    hidden = values_of(x.shape[2], packed)
    if hidden < TILE or hidden % TILE:
        return f"H is {hidden}; it must be a multiple of {TILE}"
    width = (options.heads + 2 * options.kv_heads) * options.head_dim
    shape = kernel_layout(width, hidden) if packed else (hidden, width)
    if tuple(weight.shape) != shape:
        return f"weight is {list(weight.shape)}; it must be {list(shape)}"
    return None


def broken_by_vectors(
    sizes: Sizes, weight_scales: Any, bias: Any, q_gamma: Any, k_gamma: Any
) -> Any:
    """A rule about what there is for each column."""
    if sizes.packed != (weight_scales != None):
        return "weight_scales must be given exactly where weight is FP8"
    normed = sizes.norm or sizes.per_head
    if (q_gamma != None) != normed or (k_gamma != None) != (normed and sizes.kv_heads > 0):
        return "k_gamma must be given exactly where q_gamma is and there is a K"
    if sizes.ranks > 1 and not sizes.norm:
        return f"replica_groups has {sizes.ranks} ranks, but without a norm over all heads"
    q_width, k_width = sizes.heads * sizes.head_dim, sizes.kv_heads * sizes.head_dim
    if sizes.per_head:
        q_width, k_width = sizes.head_dim, sizes.head_dim
    expected = [
        ("weight_scales", weight_scales, sizes.width(), ("float32",)),
        ("bias", bias, sizes.width(), ("float32", "bfloat16")),
        ("q_gamma", q_gamma, q_width, ("float32",)),
        ("k_gamma", k_gamma, k_width, ("float32",)),
    ]
    for name, tensor, width, dtypes in expected:
        if tensor == None:
            continue
        if tuple(tensor.shape) != (1, width):
            return f"{name} is {list(tensor.shape)}; it must be {[1, width]}"
        if not any([dtype in str(tensor.dtype) for dtype in dtypes]):
            return f"{name} is {tensor.dtype}; it must be {' or '.join(dtypes)}"
    return None


def broken_by_shifts(sizes: Sizes, q_beta: Any, k_beta: Any) -> Any:
    """A rule about the bias of a norm of single heads."""
    if q_beta == None and k_beta == None:
        return None
    if not sizes.centred:
        return f"q_beta and k_beta are for a norm {LAYER_PER_HEAD!r}; there is another one, or none"
    if q_beta == None or (k_beta != None) != (sizes.kv_heads > 0):
        return "k_beta must be given exactly where q_beta is and there is a K"
    for name, tensor in (("q_beta", q_beta), ("k_beta", k_beta)):
        if tensor == None:
            continue
        if tuple(tensor.shape) != (1, sizes.head_dim):
            return f"{name} is {list(tensor.shape)}; it must be {[1, sizes.head_dim]}"
        if "float32" not in str(tensor.dtype):
            return f"{name} is {tensor.dtype}; it must be float32"
    return None


def broken_by_angles(sizes: Sizes, positions: int, cos: Any, sin: Any) -> Any:
    """A rule about the tables of the rotation."""
    if (cos != None) != (sin != None):
        return "cos and sin must be given together"
    if cos == None:
        return None
    if sizes.head_dim % 2:
        return f"head_dim is {sizes.head_dim}; with a rotation it must be even"
    shape = (positions, sizes.head_dim // 2)
    for name, tensor in (("cos", cos), ("sin", sin)):
        if tuple(tensor.shape) != shape:
            return f"{name} is {list(tensor.shape)}; it must be {list(shape)}"
        if "float32" not in str(tensor.dtype):
            return f"{name} is {tensor.dtype}; it must be float32"
    return None


def broken_by_caches(
    x: Any, options: Options, k_cache: Any, v_cache: Any, slot_mapping: Any
) -> Any:
    """A rule about where K and V go, beside the values of `slot_mapping`."""
    starts = options.cache_starts
    if (k_cache != None) != (v_cache != None):
        return "k_cache and v_cache must be given together"
    if k_cache == None:
        if slot_mapping != None:
            return "slot_mapping must be given with k_cache and v_cache only"
        if starts != ():
            return f"cache_starts is {starts!r}; without k_cache and v_cache it must be ()"
        return None
    if options.kv_heads < 1:
        return f"kv_heads is {options.kv_heads}; with k_cache and v_cache it must be at least 1"
    width = options.kv_heads * options.head_dim
    for name, tensor in (("k_cache", k_cache), ("v_cache", v_cache)):
        if len(tensor.shape) != 3 or tensor.shape[2] != width:
            return f"{name} is {list(tensor.shape)}; it must be [., ., {width}]"
        if "bfloat16" not in str(tensor.dtype):
            return f"{name} is {tensor.dtype}; it must be bfloat16"
    if tuple(v_cache.shape) != tuple(k_cache.shape):
        return f"v_cache is {list(v_cache.shape)}; it must be as k_cache, {list(k_cache.shape)}"
    if slot_mapping != None:
        return _broken_by_slots(x, starts, slot_mapping)
    return _broken_by_starts(x, starts, k_cache)


def _broken_by_slots(x: Any, starts: Any, slot_mapping: Any) -> Any:
    """With a row of the caches for each token."""
    if starts != ():
        return f"cache_starts is {starts!r}; with slot_mapping it must be ()"
    shape = (x.shape[0], x.shape[1])
    if tuple(slot_mapping.shape) != shape:
        return f"slot_mapping is {list(slot_mapping.shape)}; it must be {list(shape)}"
    if "int32" not in str(slot_mapping.dtype):
        return f"slot_mapping is {slot_mapping.dtype}; it must be int32"
    return None


def _broken_by_starts(x: Any, starts: Any, cache: Any) -> Any:
    """With a cache for each sequence."""
    batch, tokens = x.shape[0], x.shape[1]
    if cache.shape[0] != batch:
        return f"k_cache is {list(cache.shape)}; it must be of {batch} sequences, as x"
    if not isinstance(starts, tuple) or not all([isinstance(start, int) for start in starts]):
        return f"cache_starts is {starts!r}; it must be a tuple of integers"
    if starts != () and len(starts) != batch:
        return f"cache_starts is {starts!r}; it must have a start for each of {batch} sequences"
    most = cache.shape[1] - tokens
    if most < 0:
        return f"k_cache is {list(cache.shape)}; it must have a row for each of {tokens} tokens"
    if not all([0 <= start <= most for start in starts]):
        return f"cache_starts is {starts!r}; each must be 0 to {most} for rows to be in the cache"
    return None
