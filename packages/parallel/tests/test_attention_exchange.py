"""What ranks hold of keys and values, and when they exchange them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
import torch.testing._internal.distributed.fake_pg  # has the backend that is named fake
from live_bytes import LiveBytes
from processes import Ranks
from sequence_groups import sequence_groups
from torch import Tensor
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from wantrn.parallel import Groups
from wantrn.parallel.attention import Partial, SequenceAttention, Strategy, torch_attend
from wantrn.parallel.group import Group

ORDER = (2, 0, 1)
SHAPE = (1, 64, 2, 64)
SHARD = 2 * 4 * 64 * 2 * 64
"""Bytes of a rank's K and V."""
OUTPUT = SHARD // 2
SMALL = OUTPUT // 8
"""More than the logarithms and weights of a few merges, and far less than a shard."""


@pytest.fixture(scope="module")
def three() -> Iterator[Ranks]:
    with Ranks(3) as ranks:
        assert ranks.run(dist.get_rank) == [0, 1, 2]
        yield ranks


def chosen(backend: str) -> tuple[Strategy, str]:
    """The strategy if none is asked for."""
    everyone = dist.new_group(list(ORDER), backend=backend)
    ring = Group(ORDER, ORDER.index(dist.get_rank()), (ORDER,), everyone)
    choice = SequenceAttention.of(replace(Groups.single(), ring=ring)).choice
    return choice.strategy, choice.reason


def test_ranks_that_can_send_take_the_ring(three: Ranks) -> None:
    choice = (Strategy.RING, "gloo can send and receive")
    assert three.run(chosen, "gloo") == [choice] * 3


def test_backends_for_tensors_of_every_device_count(three: Ranks) -> None:
    choice = (Strategy.ALL_GATHER, "fake is not known to send and receive")
    assert three.run(chosen, "cpu:gloo,cuda:fake") == [choice] * 3


def inputs() -> list[Tensor]:
    return [torch.randn(SHAPE) for _ in range(3)]


def peak(size: int, strategy: Strategy) -> int | None:
    """The most bytes that attention takes beside its arguments."""
    groups = sequence_groups(ORDER[:size], size, 1)
    if groups is None:
        return None
    attention = SequenceAttention.of(groups, strategy=strategy)
    q, k, v = inputs()
    with LiveBytes() as live:
        attention(q, k, v, size * SHAPE[1])
    most: int = live.peak
    return most


def peaks(ranks: Ranks, size: int, strategy: Strategy) -> list[int]:
    answers = ranks.run(peak, size, strategy)
    return [answers[rank] for rank in ORDER[:size]]


@pytest.mark.parametrize("size", [2, 3])
def test_a_ring_takes_one_shard_beside_the_own(three: Ranks, size: int) -> None:
    for found in peaks(three, size, Strategy.RING):
        # the output so far, and that of a shard
        assert SHARD <= found - 2 * OUTPUT <= SHARD + SMALL


@pytest.mark.parametrize("size", [2, 3])
def test_all_gather_takes_all_shards(three: Ranks, size: int) -> None:
    for found in peaks(three, size, Strategy.ALL_GATHER):
        assert found >= size * SHARD


@dataclass
class Recorder:
    """Attention that notes where its keys lie, and waits for others where it is told to."""

    position: int
    store: TCPStore | None = None
    keys: list[int] = field(default_factory=list)

    def __call__(self, q: Tensor, k: Tensor, v: Tensor) -> Partial:
        step = len(self.keys)
        self.keys.append(k.data_ptr())
        if self.store is not None:
            self.store.set(f"{self.position} began {step}", "")
            if self.position == 0 and step + 1 < len(ORDER):
                self.store.wait([f"1 began {step + 1}"], timedelta(seconds=30))
        return torch_attend(q, k, v)


def places(packed: bool) -> tuple[list[int], int, bool]:
    """Where the keys of each step lie, where the own ones do, and whether those are as before."""
    groups = sequence_groups(ORDER, 3, 1)
    assert groups is not None
    record = Recorder(groups.ring.position)
    q, k, v = torch.stack(inputs(), 2).unbind(2) if packed else inputs()
    before = k.clone()
    SequenceAttention.of(groups, attend=record)(q, k, v, 3 * SHAPE[1])
    return record.keys, k.data_ptr(), torch.equal(k, before)


def test_a_ring_uses_two_places_in_turn(three: Ranks) -> None:
    for keys, own, _ in three.run(places, False):
        assert keys[0] == keys[2] == own != keys[1]


def test_a_ring_leaves_views_as_they_are(three: Ranks) -> None:
    for keys, own, kept in three.run(places, True):
        assert keys[0] == keys[2] != keys[1]
        assert own not in keys
        assert kept


def waited(port: int) -> int:
    """Steps that a rank computed, where the first does not end a step before the second has begun
    its next one, with the keys that the first has in this one."""
    groups = sequence_groups(ORDER, 3, 1)
    assert groups is not None
    store = TCPStore("127.0.0.1", port, is_master=False, timeout=timedelta(seconds=30))
    record = Recorder(groups.ring.position, store)
    q, k, v = inputs()
    SequenceAttention.of(groups, attend=record)(q, k, v, 3 * SHAPE[1])
    return len(record.keys)


def test_a_shard_is_sent_on_before_it_is_computed_with(three: Ranks) -> None:
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    assert three.run(waited, store.port) == [3] * 3
