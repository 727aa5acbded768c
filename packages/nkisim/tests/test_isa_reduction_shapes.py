"""What reductions and scans record in a run without numerics."""

from __future__ import annotations

import pytest
from isa_tiles import core, empty, on_core

from nkisim import operations as nl
from nkisim.isa.reductions import (
    tensor_reduce,
    tensor_scalar_cumulative,
    tensor_scalar_reduce,
    tensor_tensor_scan,
)

pytestmark = pytest.mark.filterwarnings("error")


def test_shapes_alone() -> None:
    def body() -> list[str]:
        data = empty((64, 128))
        data.storage.coverage.full = True
        one = empty((64, 1))
        tensor_reduce(one, nl.add, data, 1)
        tensor_scalar_reduce(data, data, nl.abs_, 0, nl.maximum, one)
        tensor_scalar_cumulative(data, data, nl.add, nl.add, 1.0)
        tensor_tensor_scan(data, data, data, one, nl.multiply, nl.add)
        assert data.storage.data is None
        return [f"{i.op} {len(i.writes)} {len(i.reads)}" for i in core().trace]

    assert on_core(body, numerics=False) == [
        "tensor_reduce 1 1",
        "tensor_scalar_reduce 2 1",
        "tensor_scalar_cumulative 1 1",
        "tensor_tensor_scan 1 3",
    ]
