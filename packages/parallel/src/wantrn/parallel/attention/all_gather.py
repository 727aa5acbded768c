"""All-gather attention: every rank has the keys and values of the whole sequence for a while."""

from __future__ import annotations

from torch import Tensor

from wantrn.parallel.attention.local import Attend
from wantrn.parallel.group import Group


def all_gather_attention(
    q: Tensor, k: Tensor, v: Tensor, total: int, group: Group, attend: Attend
) -> Tensor:
    """Attention of this rank's queries to the keys of all ranks of ``group``; one ``attend``.

    Args and result are those of ``ring_attention``, but ``k`` and ``v`` stay as they are.
    """
    k, v = (group.all_gather(x, 1)[:, :total] for x in (k, v))
    return attend(q, k, v).out.to(q.dtype)
