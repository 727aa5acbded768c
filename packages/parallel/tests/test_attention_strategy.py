"""Which strategy is taken, and what is refused."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.testing._internal.distributed.fake_pg import FakeStore

from wantrn.parallel import Groups
from wantrn.parallel.attention import SequenceAttention, Strategy, choose, torch_attend
from wantrn.parallel.group import Group


@pytest.fixture
def pair() -> Iterator[Group]:
    """Two ranks with a backend that nothing is known of, and of which only one is there."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    yield Group((0, 1), 0, ((0, 1),), dist.group.WORLD)
    dist.destroy_process_group()


def twice(q: Tensor, k: Tensor, v: Tensor, total: int) -> Tensor:
    return 2 * q


def test_a_backend_that_may_not_send_takes_all_gather(pair: Group) -> None:
    choice = choose(pair, kernel=False)
    assert choice.strategy is Strategy.ALL_GATHER
    assert choice.reason == "fake is not known to send and receive"


def test_a_ring_is_refused_where_the_backend_may_not_send(pair: Group) -> None:
    with pytest.raises(ValueError, match="all_gather or None .* the backend is fake, .* got ring"):
        choose(pair, kernel=False, wanted=Strategy.RING)


@pytest.mark.parametrize("wanted", [None, Strategy.RING])
def test_a_kernel_needs_no_backend(pair: Group, wanted: Strategy | None) -> None:
    choice = choose(pair, kernel=True, wanted=wanted)
    assert choice.strategy is Strategy.RING
    assert choice.reason == "a kernel does the ring"


def test_a_kernel_does_no_all_gather() -> None:
    with pytest.raises(ValueError, match="ring or None with ring_kernel, got all_gather"):
        choose(Group.single(), kernel=True, wanted=Strategy.ALL_GATHER)


@pytest.mark.parametrize("wanted", [None, *Strategy])
def test_one_rank_can_do_either(wanted: Strategy | None) -> None:
    choice = choose(Group.single(), kernel=False, wanted=wanted)
    assert choice.strategy is (wanted or Strategy.RING)
    assert choice.reason == "a ring of one exchanges nothing"


def test_the_choice_and_its_reason_are_logged_once(
    pair: Group, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "wantrn.parallel.attention")
    groups = replace(Groups.single(), ring=pair)
    for _ in range(3):
        assert SequenceAttention.of(groups).choice.strategy is Strategy.ALL_GATHER
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        (
            "INFO",
            "sequence attention: ring of 2 by all_gather, as fake is not known to send and "
            "receive; ulysses of 1",
        )
    ]


def test_a_kernel_has_no_use_for_attend() -> None:
    with pytest.raises(ValueError, match="attend must be None with ring_kernel"):
        SequenceAttention.of(Groups.single(), attend=torch_attend, ring_kernel=twice)


def test_a_kernel_computes_for_one_rank_too() -> None:
    q, k, v = torch.randn(3, 1, 5, 2, 8)
    attention = SequenceAttention.of(Groups.single(), ring_kernel=twice)
    assert torch.equal(attention(q, k, v, 5), 2 * q)


def test_heads_that_ranks_cannot_share_are_refused(pair: Group) -> None:
    attention = SequenceAttention.of(replace(Groups.single(), ulysses=pair))
    q, k, v = torch.randn(3, 1, 5, 3, 8)
    with pytest.raises(ValueError, match="ulysses must divide the 3 heads, got 2"):
        attention(q, k, v, 10)


def test_tokens_that_ranks_do_not_have_are_refused(pair: Group) -> None:
    attention = SequenceAttention.of(replace(Groups.single(), ring=pair))
    q, k, v = torch.randn(3, 1, 5, 2, 8)
    for total in (0, 11):
        text = f"total must be 1 to 10, the tokens of 2 parts of 5, got {total}"
        with pytest.raises(ValueError, match=text):
            attention(q, k, v, total)


def test_tensors_that_do_not_fit_are_refused() -> None:
    attention = SequenceAttention.of(Groups.single())
    q, k, v = torch.randn(3, 1, 5, 2, 8)
    with pytest.raises(ValueError, match=r"q must be \[B, S, N, D\] .* got \[1, 5, 16\]"):
        attention(q.flatten(2), k, v, 5)
    with pytest.raises(ValueError, match="q must be fp32 or bf16, got torch.float64"):
        attention(q.double(), k.double(), v.double(), 5)
    with pytest.raises(ValueError, match=r"k must be \[1, 5, 2, 8\] torch.float32, got"):
        attention(q, k[:, :4], v, 5)
    with pytest.raises(ValueError, match=r"v must be .* got \[1, 5, 2, 8\] torch.bfloat16"):
        attention(q, k, v.bfloat16(), 5)
