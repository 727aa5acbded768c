"""Replica groups: what they take, what they refuse, and the partition operators."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nkisim.errors import NkiValidationError
from nkisim.replica_group import ReplicaGroup, RgPartitionOp


@pytest.mark.parametrize(
    "groups",
    [
        [[0, 1], [2, 3]],
        ((0, 1), (2, 3)),
        [(0, 1), [2, 3]],
        np.arange(4).reshape(2, 2),
        ReplicaGroup([[0, 1], [2, 3]]),
    ],
)
def test_spellings_are_equal(groups: Any) -> None:
    group = ReplicaGroup(groups)
    assert group == ReplicaGroup(((0, 1), (2, 3)))
    assert hash(group) == hash(ReplicaGroup(((0, 1), (2, 3))))
    assert list(group) == [(0, 1), (2, 3)]
    assert all(type(rank) is int for ranks in group.groups for rank in ranks)


def test_order_within_a_group_matters() -> None:
    assert ReplicaGroup([[1, 0]]) != ReplicaGroup([[0, 1]])
    assert ReplicaGroup([[3, 1, 2]]).group_of(1, 4) == (3, 1, 2)


@pytest.mark.parametrize("empty", [(), [], ReplicaGroup()])
def test_empty_is_everyone(empty: Any) -> None:
    assert ReplicaGroup(empty).groups == ()
    assert ReplicaGroup(empty).group_of(2, 4) == (0, 1, 2, 3)


@pytest.mark.parametrize(
    ("groups", "text"),
    [
        ([[0, 1], [1, 2]], "rank 1 stands in them more than once"),
        ([[0, 0]], "rank 0 stands in them more than once"),
        ([[0, -1]], r"groups\[0\] of ReplicaGroup is -1; it must be at least 0"),
        ([[0], [1.0]], r"groups\[1\] of ReplicaGroup is 1.0; it must be an integer"),
        ([[0], [True]], "is True; it must be an integer"),
        ([[0], []], r"groups\[1\] of ReplicaGroup is empty"),
        ([0, 1], r"groups\[0\] of ReplicaGroup is 0; it must be a list or tuple"),
        (["01"], "'01'; it must be a list"),
        ("01", "'01'; it must be a list"),
        (3, "is 3; it must be a list"),
    ],
)
def test_wrong_groups_are_refused(groups: Any, text: str) -> None:
    with pytest.raises(NkiValidationError, match=text):
        ReplicaGroup(groups)


def test_ranks_have_to_exist_and_to_take_part() -> None:
    group = ReplicaGroup([[0, 1], [2, 5]])
    with pytest.raises(NkiValidationError, match=r"rank 5 in \(2, 5\); this run has ranks 0 to 3"):
        group.group_of(0, 4)
    with pytest.raises(NkiValidationError, match="rank 3 calls a collective"):
        group.group_of(3, 6)
    with pytest.raises(NkiValidationError, match="rank is 6"):
        group.group_of(6, 6)


@settings(deadline=None)
@given(st.integers(1, 40), st.integers(1, 9), st.sampled_from(list(RgPartitionOp)))
def test_partition_operators(world: int, operand: int, op: RgPartitionOp) -> None:
    group = ReplicaGroup.from_partition_op(world, op, operand)
    value = {
        RgPartitionOp.bitwise_and: lambda rank: rank & operand,
        RgPartitionOp.div: lambda rank: rank // operand,
        RgPartitionOp.mod: lambda rank: rank % operand,
    }[op]
    assert sorted(rank for ranks in group for rank in ranks) == list(range(world))
    for rank in range(world):
        same = tuple(other for other in range(world) if value(other) == value(rank))
        assert group.group_of(rank, world) == same
    assert group == ReplicaGroup.from_partition_op(world, op.value, operand)


def test_partition_examples_and_errors() -> None:
    assert ReplicaGroup.from_partition_op(8, "div", 4).groups == ((0, 1, 2, 3), (4, 5, 6, 7))
    assert ReplicaGroup.from_partition_op(4, "mod", 2).groups == ((0, 2), (1, 3))
    assert ReplicaGroup.from_partition_op(4, "bitwise_and", 1).groups == ((0, 2), (1, 3))
    assert ReplicaGroup.from_partition_op(3, "bitwise_and", 0).groups == ((0, 1, 2),)
    with pytest.raises(NkiValidationError, match=r"operand .* is 0; it must be at least 1"):
        ReplicaGroup.from_partition_op(4, "mod", 0)
    with pytest.raises(NkiValidationError, match="world_size .* is 0"):
        ReplicaGroup.from_partition_op(0, "div", 1)
    with pytest.raises(TypeError, match="'xor'"):
        ReplicaGroup.from_partition_op(4, "xor", 1)
