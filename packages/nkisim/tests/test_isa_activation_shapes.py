"""What activation instructions record in a run without numerics."""

from __future__ import annotations

from typing import Any

import pytest
from isa_tiles import core, empty, on_core

from nkisim import operations as nl
from nkisim.isa.activations import activate2, activation, activation_reduce
from nkisim.isa.vector_exponential import exponential

pytestmark = pytest.mark.filterwarnings("error")


def test_shapes_alone() -> None:
    def body() -> list[Any]:
        x, one = empty((128, 512)), empty((128, 1))
        x.storage.coverage.full = one.storage.coverage.full = True
        activation(x, nl.exp, x, one, one)
        activation(x, nl.exp, x, reduce_op=nl.add, reduce_res=one, reduce_cmd="reset_reduce")
        activation_reduce(x, nl.exp, x, nl.add, one)
        activate2(x, nl.exp, x, one, one, nl.multiply, nl.add)
        exponential(x, x, one)
        return [
            (i.op, len(i.writes), len(i.reads), i.details and i.details["reduces"])
            for i in core().trace
        ]

    assert on_core(body, numerics=False) == [
        ("activation", 1, 3, False),
        ("activation", 2, 1, True),
        ("activation_reduce", 2, 1, True),
        ("activate2", 1, 3, False),
        ("exponential", 1, 2, None),
    ]
