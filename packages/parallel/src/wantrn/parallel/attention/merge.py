"""Attention to all keys, of the results of attention to some of them."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Partial(NamedTuple):
    """Attention to some of the keys.

    Attributes:
        out: fp32 ``[B, S, N, D]``, finite even where there was no key.
        lse: fp32 ``[B, N, S]``, ``log(sum_j exp(score_ij))`` over those keys; -inf for no key.
    """

    out: Tensor
    lse: Tensor


def merge_(into: Partial, part: Partial) -> None:
    """Take the keys of ``part``, all others than those of ``into``, into ``into``, in place.

    The outputs are weighted by their keys' share of the softmax's denominator. A part without keys
    changes nothing, and into one without keys ``part`` goes as it is, to the bit.
    """
    # sigmoid of a difference, rather than exp of each over their sum: no overflow, and no copy of
    # the outputs is scaled; both without keys would give NaN
    share = torch.sigmoid(part.lse - into.lse).masked_fill_(part.lse == -torch.inf, 0)
    into.out.lerp_(part.out, share.transpose(1, 2).unsqueeze(-1))
    torch.logaddexp(into.lse, part.lse, out=into.lse)
