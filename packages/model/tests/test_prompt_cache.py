"""Prompts that are kept encoded, and the cache that keeps them."""

from __future__ import annotations

from collections import OrderedDict
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from wantrn.model.byte_cache import ByteCache
from wantrn.model.info import ModelKind
from wantrn.model.text import TextEncoder

WIDTH = 64  # of the tiny encoder


def encoder(folder: Path, cache_bytes: int) -> TextEncoder:
    return TextEncoder.load(
        folder / "tokenizer", folder / "text_encoder", torch.float32, cache_bytes=cache_bytes
    )


@pytest.fixture(scope="module")
def folder(checkpoints: dict[ModelKind, Path]) -> Path:
    return checkpoints[ModelKind.T2V]


PROMPTS = ["a red ball", "", "snow " * 200, "a red ball", " a  red\nball ", "another", "a red ball"]


def test_a_kept_prompt_has_the_bits_of_an_encoded_one(folder: Path) -> None:
    kept, fresh = encoder(folder, 2**20), encoder(folder, 0)
    for prompt in PROMPTS:
        found = kept.encode(prompt)
        assert torch.equal(found, fresh.encode(prompt))
        with torch.inference_mode():
            found.zero_()  # what is given out belongs to the caller
    # spaces make no other prompt
    assert (kept.cache_counts.hits, kept.cache_counts.misses) == (3, 4)
    assert (fresh.cache_counts.hits, fresh.cache_counts.misses) == (0, 7)


def test_prompts_are_dropped_where_there_is_no_room(folder: Path) -> None:
    tokens = len("prompt 0") + 1  # a token a byte, and the end mark
    kept = encoder(folder, 2 * tokens * WIDTH * 4)
    for number in (0, 1, 0, 2, 0, 1):  # 1 was used longest ago when 2 comes
        kept.encode(f"prompt {number}")
    counts = kept.cache_counts
    assert (counts.hits, counts.misses, counts.entries) == (2, 4, 2)
    assert counts.nbytes == 2 * tokens * WIDTH * 4


def test_a_long_prompt_is_told_of_each_time(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    kept = encoder(folder, 2**20)
    for _ in range(2):
        kept.encode("x" * 600)
    told = [record for record in caplog.records if record.name == "wantrn.model.text"]
    assert [record.getMessage() for record in told] == [
        "the prompt has 601 tokens; the model reads the first 512"
    ] * 2
    assert kept.cache_counts.hits == 1


CALLS = st.lists(
    st.tuples(st.sampled_from(["get", "put"]), st.integers(0, 5), st.integers(0, 12)), max_size=60
)


@given(st.integers(0, 30), CALLS)
def test_the_cache_holds_what_was_used_last(limit: int, calls: list[tuple[str, int, int]]) -> None:
    """Against a plain list of (key, value, size), the one used last at its end."""
    cache: ByteCache[int, int] = ByteCache(limit)
    model: OrderedDict[int, tuple[int, int]] = OrderedDict()
    hits = misses = 0
    for value, (call, key, size) in enumerate(calls):
        if call == "get":
            expected = model.get(key)
            assert cache.get(key) == (None if expected is None else expected[0])
            if expected is None:
                misses += 1
            else:
                hits += 1
                model[key] = model.pop(key)
        else:
            cache.put(key, value, size)
            model.pop(key, None)
            if size <= limit:
                model[key] = (value, size)
            while sum(one for _, one in model.values()) > limit:
                del model[next(iter(model))]
        counts = cache.counts
        assert (counts.hits, counts.misses, counts.entries) == (hits, misses, len(model))
        assert counts.nbytes == sum(one for _, one in model.values()) <= limit


def test_a_limit_below_zero_is_refused() -> None:
    with pytest.raises(ValueError, match="max_bytes must be 0 or more, got -1"):
        ByteCache(-1)
