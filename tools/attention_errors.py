"""Errors of the attention kernels in bf16, beside those of torch's own attention in bf16.

    ./pants run tools/attention_errors.py -- [--draws N] [--tokens S] [--json]

Each draw is two heads of 128 channels of normally distributed Q, K and V. Of the differences from
attention in float64, the root mean square and the largest, over those of torch's
`scaled_dot_product_attention` of the same numbers. nkisim computes the kernels, on Trainium3.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

import nkisim
from wantrn.kernels.attention import Options, attention_cte
from wantrn.kernels.ring import RingOptions, attention_const_max, ring_attention_online

HEADS, HEAD_DIM = 2, 128
TARGET, LNC = "trn3", 2

Attention = Callable[[Tensor, Tensor, Tensor], Tensor]


def _by_heads(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """`attention_cte`, whose batch is heads."""
    folded = [x[0].transpose(0, 1).contiguous() for x in (q, k, v)]
    run = nkisim.simulate(attention_cte, target=TARGET)[LNC]
    out: Tensor = run(*folded, Options(scale=HEAD_DIM**-0.5))
    return out.transpose(0, 1)[None]


def _const_max(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    out: Tensor = nkisim.simulate(attention_const_max, target=TARGET)[LNC](q, k, v)[0]
    return out


def _online(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    run = nkisim.simulate(ring_attention_online, target=TARGET)[LNC]
    out: Tensor = run(q, k, v, RingOptions())
    return out


KERNELS: dict[str, Attention] = {
    "attention_cte": _by_heads,
    "attention_const_max": _const_max,
    "ring_attention_online": _online,
}


def ratios(kernel: Attention, tokens: int, seed: int) -> tuple[float, float]:
    """The kernel's root mean square and largest error over torch's, in one draw."""
    generator = torch.Generator().manual_seed(seed)
    shape = (1, tokens, HEADS, HEAD_DIM)
    inputs = [torch.randn(shape, generator=generator).bfloat16() for _ in range(3)]
    exact = _by_torch(*(x.double() for x in inputs))
    ours = kernel(*inputs).double() - exact
    theirs = _by_torch(*inputs).double() - exact
    mean = ours.square().mean().sqrt() / theirs.square().mean().sqrt()
    return float(mean), float(ours.abs().max() / theirs.abs().max())


def _by_torch(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """`[B, S, N, D]`; in float64 torch has no kernel that rounds in between."""
    q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
    return F.scaled_dot_product_attention(q, k, v).transpose(1, 2)


def figures(draws: int, tokens: int) -> dict[str, float]:
    """Of each kernel the median and the worst of all draws, printed as they come."""
    found: dict[str, float] = {}
    print(f"{'error over torch, bf16':<24} {'RMS':>6} {'worst':>6} {'largest':>8} {'worst':>6}")
    for name, kernel in KERNELS.items():
        drawn = [ratios(kernel, tokens, seed) for seed in range(draws)]
        line = f"{name:<24}"
        for kind, values in zip(("rms", "largest"), zip(*drawn, strict=True), strict=True):
            found[f"{name}.{kind}.median"] = statistics.median(values)
            found[f"{name}.{kind}.worst"] = max(values)
            line += f" {statistics.median(values):{6 if kind == 'rms' else 8}.2f}"
            line += f" {max(values):6.2f}"
        print(line, flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--draws", type=int, default=12, help="(default 12)")
    parser.add_argument("--tokens", type=int, default=384, help="of each draw (default 384)")
    parser.add_argument("--json", action="store_true", help="one object on the last line")
    options = parser.parse_args()
    for name in ("draws", "tokens"):
        if getattr(options, name) < 1:
            parser.error(f"--{name} is {getattr(options, name)}; it must be at least 1")
    found = figures(options.draws, options.tokens)
    if options.json:
        print(json.dumps(found))


if __name__ == "__main__":
    main()
