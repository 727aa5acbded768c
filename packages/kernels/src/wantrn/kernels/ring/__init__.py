"""Attention with a bound instead of a running maximum, on one rank and over a ring of them.

* ``attention_const_max``, ``ring_attention``, ``ring_attention_online``: the kernels
* ``RingOptions``, ``shares``: how keys go round, and how a sequence is cut for it
* ``guarded_attention``: exact for all inputs, by the first kernel where it is safe
* ``refusal``: why they do not run something
* ``attention_reference``: what they compute
"""

from __future__ import annotations

from wantrn.kernels.ring.capability import refusal
from wantrn.kernels.ring.guard import Guarded, RankInput, guarded_attention, safe_least
from wantrn.kernels.ring.kernels import (
    attention_const_max,
    ring_attention,
    ring_attention_online,
)
from wantrn.kernels.ring.options import RingOptions, shares
from wantrn.kernels.ring.reference import attention_reference, gap_reference

__all__ = [
    "Guarded",
    "RankInput",
    "RingOptions",
    "attention_const_max",
    "attention_reference",
    "gap_reference",
    "guarded_attention",
    "refusal",
    "ring_attention",
    "ring_attention_online",
    "safe_least",
    "shares",
]
