"""Attention over a sequence whose tokens are shared by ranks: by ring, all-gather and Ulysses."""

from wantrn.parallel.attention.local import Attend, torch_attend
from wantrn.parallel.attention.merge import Partial, merge_
from wantrn.parallel.attention.sequence import SequenceAttention
from wantrn.parallel.attention.strategy import Choice, Strategy, choose
from wantrn.parallel.attention.ulysses import Inner

__all__ = [
    "SequenceAttention",
    "Strategy",
    "Choice",
    "choose",
    "Attend",
    "Inner",
    "Partial",
    "torch_attend",
    "merge_",
]
