"""How a sequence is cut into parts; what ranks do with them is tested with attention's ranks."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from wantrn.parallel import Group
from wantrn.parallel.tokens import TokenShards, real_tokens

TOTALS = st.integers(1, 300)
PARTS = st.integers(1, 40)


def parts_of(total: int, parts: int) -> list[TokenShards]:
    return [TokenShards(total, parts, position) for position in range(parts)]


@given(TOTALS, PARTS)
def test_every_token_is_in_one_part_and_in_order(total: int, parts: int) -> None:
    tokens = torch.arange(total)
    cut = parts_of(total, parts)
    real = [shards.take(tokens, 0)[: shards.real] for shards in cut]
    assert torch.cat(real).tolist() == list(range(total))
    assert [shards.start for shards in cut] == [
        min(total, sum(len(x) for x in real[:position])) for position in range(parts)
    ]


@given(TOTALS, PARTS)
def test_parts_are_of_the_least_equal_length(total: int, parts: int) -> None:
    cut = parts_of(total, parts)
    assert len({shards.length for shards in cut}) == 1
    length = cut[0].length
    assert (length - 1) * parts < total <= length * parts == cut[0].padded
    for position, shards in enumerate(cut):
        assert shards.take(torch.ones(total), 0).sum() == shards.real
        assert shards.real == real_tokens(total, length, position)


@given(TOTALS, PARTS, st.integers(-3, 2))
def test_a_part_is_padded_with_zeros_along_its_axis(total: int, parts: int, dim: int) -> None:
    shape = [2, 3, 4]
    shape[dim] = total
    x = torch.ones(shape)
    for shards in parts_of(total, parts):
        part = shards.take(x, dim).movedim(dim, 0)
        assert part.shape[0] == shards.length and part.shape[1:] == x.movedim(dim, 0).shape[1:]
        assert part[: shards.real].eq(1).all() and part[shards.real :].eq(0).all()


def test_a_part_without_padding_is_a_view() -> None:
    x = torch.zeros(1, 9, 2)
    first, last = TokenShards(9, 2, 0), TokenShards(9, 2, 1)
    first.take(x, 1).add_(1)
    last.take(x, 1).add_(1)
    assert x[0, :, 0].tolist() == [1.0] * 5 + [0.0] * 4


def test_parts_of_padding_only() -> None:
    cut = parts_of(5, 8)
    assert [shards.length for shards in cut] == [1] * 8
    assert [shards.real for shards in cut] == [1] * 5 + [0] * 3
    assert [shards.start for shards in cut] == [0, 1, 2, 3, 4, 5, 5, 5]


def test_strict_refuses_what_needs_padding() -> None:
    with pytest.raises(ValueError, match="divisible") as found:
        TokenShards(3645, 8, 0, strict=True)
    assert str(found.value) == (
        "Sequence length 3645 is not divisible by cp_size 8.\n"
        "Choose a resolution/frame count that yields a divisible patch sequence length."
    )
    assert TokenShards(3648, 8, 0, strict=True).length == 456
    assert TokenShards(3645, 8, 0).length == 456


@pytest.mark.parametrize(
    ("numbers", "text"),
    [
        ((0, 1, 0), "total must be at least 1 token, got 0"),
        ((4, 0, 0), "parts must be at least 1, got 0"),
        ((4, 2, 2), "position must be 0 to 1, got 2"),
        ((4, 2, -1), "position must be 0 to 1, got -1"),
    ],
)
def test_numbers_out_of_range_are_refused(numbers: tuple[int, int, int], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        TokenShards(*numbers)


def test_other_tensors_and_groups_are_refused() -> None:
    shards = TokenShards(9, 2, 0)
    with pytest.raises(ValueError, match=r"x must have 9 tokens along axis 1, got \[1, 10, 2\]"):
        shards.take(torch.zeros(1, 10, 2), 1)
    with pytest.raises(ValueError, match="this rank at position 0 of 2, got 0 of 1"):
        shards.join(torch.zeros(1, 5, 2), 1, Group.single())
    with pytest.raises(ValueError, match="x must have 9 tokens along axis 0, got"):
        TokenShards(9, 1, 0).join(torch.zeros(5), 0, Group.single())


def test_one_rank_has_all() -> None:
    shards = TokenShards.of(7, Group.single(), strict=True)
    x = torch.randn(2, 7)
    assert shards.take(x, 1) is not None
    assert torch.equal(shards.join(shards.take(x, 1), 1, Group.single()), x)
