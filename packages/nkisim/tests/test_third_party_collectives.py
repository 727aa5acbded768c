"""Collectives of aws-neuron/nki-library, as they are, against dense statements.

Run with the environment variable `NKI_LIBRARY` set to a checkout. Tolerances are those of the
library's own tests, where they say one.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import third_party_support as support
from third_party_support import Array, Library, assert_close, to_torch

import nkisim

pytestmark = [
    pytest.mark.skipif(not support.is_checkout(), reason=support.MISSING),
    pytest.mark.filterwarnings("ignore::nkisim.NkiWarning"),
]

BF16 = np.dtype(ml_dtypes.bfloat16)


@pytest.fixture(scope="module")
def library() -> Iterator[Library]:
    with support.library() as found:
        yield found


def _random(*shape: int, seed: int = 0, dtype: Any = np.float32) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


@pytest.mark.parametrize("dtype", [BF16, np.dtype(np.float32)])
def test_sbuf_allgather(library: Library, dtype: Any) -> None:
    group = _replica_group(4)
    shards = [_random(64, 32, seed=rank, dtype=dtype) for rank in range(4)]
    kernel = library.collectives("sb2sb_allgather").allgather_sb2sb
    results = nkisim.World(ranks=4, lnc=1).run(kernel, [(shard, group, 4) for shard in shards])
    assert len(results) == 4
    for result in results:
        np.testing.assert_array_equal(result, np.concatenate(shards, axis=1))


@pytest.mark.parametrize(("rows", "lnc"), [(256, 1), (256, 2)])
def test_tiled_sbuf_allgather(library: Library, rows: int, lnc: int) -> None:
    group = _replica_group(4)
    shards = [_random(rows, 32, seed=rank, dtype=BF16) for rank in range(4)]
    kernel = library.collectives("sb2sb_allgather").allgather_sb2sb_tiled
    results = nkisim.World(ranks=4, lnc=lnc).run(kernel, [(shard, group, 4) for shard in shards])
    assert len(results) == 4
    for result in results:
        np.testing.assert_array_equal(result, np.concatenate(shards, axis=1))


def _replica_group(ranks: int) -> Any:
    from nki.collectives import ReplicaGroup  # pants: no-infer-dep

    return ReplicaGroup([list(range(ranks))])


@pytest.mark.parametrize("through_hbm", [False, True])
@pytest.mark.parametrize("lnc", [1, 2])
def test_fine_grained_allgather(library: Library, through_hbm: bool, lnc: int) -> None:
    rows, columns = 64, 256
    shards = [_random(rows, columns, seed=rank, dtype=BF16) for rank in range(4)]
    kernel = library.collectives("fg_allgather").fine_grained_allgather
    inputs = [(shard, 4, 1, through_hbm) for shard in shards]
    results = nkisim.World(ranks=4, lnc=lnc, target="gen3").run(kernel, inputs)
    assert len(results) == 4
    for result in results:
        np.testing.assert_array_equal(
            result.reshape(4 * rows, columns), np.concatenate(shards, axis=0)
        )


@pytest.mark.parametrize("through_hbm", [False, True])
@pytest.mark.parametrize("lnc", [1, 2])
def test_matmul_with_allgather(library: Library, through_hbm: bool, lnc: int) -> None:
    rows, inner, columns = 64, 256, 128
    left = [_random(rows, inner, seed=rank, dtype=BF16) for rank in range(4)]
    right = [_random(inner, columns, seed=10 + rank, dtype=BF16) for rank in range(4)]
    kernel = library.collectives("fgcc").allgather_compute_matmul
    inputs = [(*pair, 4, 1, through_hbm) for pair in zip(left, right, strict=True)]
    results = nkisim.World(ranks=4, lnc=lnc, target="gen3").run(kernel, inputs)
    whole = np.concatenate(left, axis=0).astype(np.float32)
    for result, shard in zip(results, right, strict=True):
        assert_close(result.reshape(4 * rows, columns), whole @ shard.astype(np.float32), 1e-2)


@pytest.mark.parametrize(("tokens", "k", "lnc"), [(4, 4, 1), (4, 8, 2), (40, 4, 2)])
def test_topk_reduce(library: Library, tokens: int, k: int, lnc: int) -> None:
    hidden, ranks = 256, 8
    rng = np.random.default_rng(0)
    rows = np.full((ranks * tokens, hidden + 2), -1, BF16)
    places = rng.permutation(len(rows))[: tokens * k]
    rows[places, :hidden] = rng.standard_normal((tokens * k, hidden)).astype(BF16)
    # each row ends in the index of its token, an int32 in the place of two values
    token = np.repeat(np.arange(tokens, dtype=np.int32), k)[:, None]
    rows[places, hidden:] = token.view(BF16)
    reference = library.collectives("topk_reduce_torch").topk_reduce_torch_ref
    result = nkisim.simulate(library.collectives("topk_reduce").topk_reduce)[lnc](rows, tokens, k)
    assert_close(result, reference(to_torch(rows), tokens, k), 5e-2, 5e-2)
