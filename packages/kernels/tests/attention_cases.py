"""Calls of `attention_cte` with what they should give, in float64."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import nkisim
from nkisim.settings import Rules
from wantrn.kernels.attention import Options, attention_cte, attention_reference, visible

# nothing is read that nothing wrote, and no two cores touch the same bytes
STRICT = Rules(uninitialized="error", unwritten_output="error")
ROUNDOFF = {torch.float32: 2.0**-24, torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}


@dataclass(frozen=True)
class Case:
    """One call; `extra` holds the further arguments of the kernel."""

    q: Tensor
    k: Tensor
    v: Tensor
    options: Options = field(default_factory=Options)
    extra: dict[str, Any] = field(default_factory=dict)

    def run(self, target: str = "gen4", lnc: int = 1) -> Any:
        """What the kernel returns, with the output as `[B, S_q, D]`."""
        o = self.options
        q = self.q if o.tp_q else self.q.transpose(1, 2).contiguous()
        k = self.k if o.tp_k else self.k.transpose(1, 2).contiguous()
        simulation = nkisim.simulate(attention_cte, target=target, rules=STRICT)
        found = simulation[lnc](q, k, self.v, o, **self.extra)
        if o.cache_softmax:
            out, *rest = found
            return (out.transpose(1, 2) if o.tp_out else out), *rest
        return found.transpose(1, 2) if o.tp_out else found

    def seen(self) -> Tensor:
        """bool, which keys each query reads; those of the prefix first."""
        prior = self.extra.get("prior")
        offset = self.extra.get("cp_offset")
        found = visible(
            self.options,
            self.q.shape[1],
            self.v.shape[1],
            0 if offset is None else int(offset),
            0 if prior is None else prior[1].shape[1],
            0 if prior is None else int(prior[2]),
        )
        bounds = self.extra.get("bounds")
        if bounds is None:
            return found
        keys = torch.arange(self.v.shape[1])
        within: Tensor = (keys >= bounds[0][..., None]) & (keys < bounds[1][..., None])
        return found & within

    def all_keys(self) -> tuple[Tensor, Tensor]:
        """K `[B, S, D]` and V, the prefix first."""
        prior = self.extra.get("prior")
        if prior is None:
            return self.k, self.v
        k_prior = prior[0] if self.options.tp_k else prior[0].transpose(1, 2)
        return torch.cat((k_prior, self.k), 1), torch.cat((prior[1], self.v), 1)

    def expected(self) -> tuple[Tensor, Tensor, Tensor]:
        k, v = self.all_keys()
        sink = self.extra.get("sink")
        return attention_reference(self.q, k, v, self.options.scale, self.seen(), sink)

    def bf16_of_torch(self) -> Tensor:
        """torch's own attention of the same numbers in bf16; without sinks."""
        k, v = self.all_keys()
        repeat = self.q.shape[0] // k.shape[0]
        wide = (self.q, k.repeat_interleave(repeat, 0), v.repeat_interleave(repeat, 0))
        q, k, v = (x.bfloat16()[:, None] for x in wide)
        seen = self.seen().expand(q.shape[0], -1, -1)[:, None]
        out = F.scaled_dot_product_attention(q, k, v, seen, scale=self.options.scale)
        # a query without keys has NaN there
        return out[:, 0].nan_to_num()


def random_case(
    batch: int,
    kv_batch: int,
    s_q: int,
    s_k: int,
    d: int,
    options: Options,
    dtype: torch.dtype = torch.bfloat16,
    **extra: Any,
) -> Case:
    """Normally distributed numbers, with Q scaled where the kernel must not."""
    generator = torch.Generator().manual_seed(s_q * 1000 + s_k)
    q = torch.randn(batch, s_q, d, generator=generator)
    if options.scale == 1.0:
        q = q * d**-0.5
    k, v = (torch.randn(kv_batch, s_k, d, generator=generator) for _ in range(2))
    return Case(q.to(dtype), k.to(dtype), v.to(dtype), options, extra)


def assert_close(found: Tensor, case: Case) -> None:
    """Within what rounding of the probabilities and of the result can make of it.

    Both are rounded once to the dtype; scores, sums and the maximum are fp32, and an error of a
    score is a relative one of its probability.
    """
    expected, neg_max, _ = case.expected()
    dtype = found.dtype
    assert found.shape == expected.shape
    largest = float(case.all_keys()[1].abs().max())
    score = float(neg_max.abs().clamp(max=1e4).max()) + 8.0
    bound = (2.5 * ROUNDOFF[dtype] + 16 * score * ROUNDOFF[torch.float32]) * largest
    error = float((found.double() - expected).abs().max())
    assert error <= bound, (error, bound)


def assert_no_worse_than_torch(found: Tensor, case: Case) -> None:
    """At most 1.5 times the error of torch's own attention in bf16, root mean square."""
    expected = case.expected()[0]
    ours = (found.double() - expected).square().mean().sqrt()
    theirs = (case.bf16_of_torch().double() - expected).square().mean().sqrt()
    assert ours <= 1.5 * theirs, (ours, theirs)
