"""The rules that a call of `attention_cte` must keep; each function says which one is broken."""

from __future__ import annotations

from typing import Any

from wantrn.kernels.attention.options import Options, Sizes

MAX_HEAD_DIM = 128
MAX_QUERIES = 36_864
# positions are fp32 in the instruction that applies bounds (nki.isa.range_select: below 2 ** 24)
MAX_KEYS = 1 << 23
SLICES = ("", "contiguous", "strided")


def broken_by_options(options: Options) -> str | None:
    """A rule about the options alone."""
    if not 0 < options.scale < float("inf"):
        return f"scale is {options.scale}; it must be positive and finite"
    if options.window < 0:
        return f"window is {options.window}; it must be at least 0"
    if options.window and not options.causal:
        return f"window is {options.window} without causal; a window ends at the query itself"
    if options.cp not in SLICES:
        return f"cp is {options.cp!r}; it must be one of {SLICES}"
    if options.cp and not options.causal:
        return f"cp is {options.cp!r} without causal; without it the slice makes no difference"
    if options.cp_degree < 1 or (options.cp_degree > 1 and options.cp != "strided"):
        return f"cp_degree is {options.cp_degree} with cp {options.cp!r}; it is for strided slices"
    return None


def broken_by_sizes(sizes: Sizes, options: Options) -> str | None:
    """A rule about the sizes, and which options go with them."""
    if not 1 <= sizes.d <= MAX_HEAD_DIM:
        return f"D is {sizes.d}; it must be 1 to {MAX_HEAD_DIM}"
    if not 1 <= sizes.s_q <= MAX_QUERIES:
        return f"S_q is {sizes.s_q}; it must be 1 to {MAX_QUERIES}"
    if not 1 <= sizes.s_k <= MAX_KEYS or sizes.s_prior > MAX_KEYS:
        return f"S_k is {sizes.s_k}, and {sizes.s_prior} of a prefix; each must be 1 to {MAX_KEYS}"
    reach = (sizes.s_q - 1) * options.cp_degree + 1
    if options.window and options.cp != "contiguous" and sizes.s_k < reach:
        return (
            f"S_k is {sizes.s_k} with a window; it must be at least {reach}, or the last queries "
            "would read no key"
        )
    if sizes.batch < 1 or sizes.kv_batch < 1 or sizes.batch % sizes.kv_batch:
        return f"K's batch is {sizes.kv_batch}; it must divide Q's {sizes.batch}"
    if sizes.s_prior and not options.causal:
        return "a prefix without causal; it comes before the queries"
    if sizes.s_prior and (options.cp or sizes.packed):
        return "a prefix goes neither with cp nor with bounds"
    bounded = options.cp or sizes.packed or sizes.s_prior or options.window
    if bounded and options.scale != 1.0:
        return (
            f"scale is {options.scale}; with a window, cp, bounds or a prefix it must be 1.0, "
            f"since what selects by bounds does not multiply: scale Q instead"
        )
    return None


def broken_by_tensors(
    tensors: tuple[Any, Any, Any], options: Options, cp_offset: Any, prior: Any
) -> str | None:
    """A rule about ranks, shapes and dtypes of Q, K, V and the prefix."""
    q, k, v = tensors
    for name, tensor in (("q", q), ("k", k), ("v", v)):
        if len(tensor.shape) != 3:
            return f"{name} is {list(tensor.shape)}; it must have three dimensions"
    if not q.dtype == k.dtype == v.dtype:
        return f"q is {q.dtype}, k {k.dtype}, v {v.dtype}; they must agree"
    d = q.shape[2] if options.tp_q else q.shape[1]
    batch, s_k, found = v.shape
    wanted = (batch, s_k, d) if options.tp_k else (batch, d, s_k)
    if tuple(k.shape) != wanted or found != d:
        return f"k is {list(k.shape)} and v {list(v.shape)}; with D {d}, k must be {list(wanted)}"
    if (cp_offset != None) != (options.cp != ""):
        return f"cp is {options.cp!r}; cp_offset must be given exactly where there is one"
    if prior != None:
        k_prior, v_prior, _ = prior
        s_prior = v_prior.shape[1]
        wanted = (batch, s_prior, d) if options.tp_k else (batch, d, s_prior)
        if tuple(k_prior.shape) != wanted or tuple(v_prior.shape) != (batch, s_prior, d):
            return (
                f"k_prior is {list(k_prior.shape)} and v_prior {list(v_prior.shape)}; they must "
                f"be {list(wanted)} and {[batch, s_prior, d]}"
            )
    return None


def broken_by_extras(
    sizes: Sizes, sink: Any, cp_offset: Any, bounds: Any, prior: Any
) -> str | None:
    """A rule about the shapes of the further tensors."""
    expected = []
    if sink != None:
        expected.append(("sink", sink, (sizes.batch, 1)))
    if cp_offset != None:
        expected.append(("cp_offset", cp_offset, (1, 1)))
    if bounds != None:
        for name, tensor in (("bounds[0]", bounds[0]), ("bounds[1]", bounds[1])):
            expected.append((name, tensor, (sizes.batch, sizes.s_q)))
    if prior != None:
        expected.append(("prior[2]", prior[2], (1, 1)))
    for name, tensor, shape in expected:
        if tuple(tensor.shape) != shape:
            return f"{name} is {list(tensor.shape)}; it must be {list(shape)}"
    return None
