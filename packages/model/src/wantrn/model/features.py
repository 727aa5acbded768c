"""What a run can use, and what of it goes together.

Every two features that go together are run together in a test, on as few ranks as have both, and
compared with a run on one rank. What is not in that test is refused.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Collection, Iterator, Mapping
from itertools import combinations


class Feature(enum.StrEnum):
    """Of a model, of how ranks share it, or of a video."""

    TP = "tp"
    RING = "ring"
    ULYSSES = "ulysses"
    CFG_PARALLEL = "cfg_parallel"
    BATCH_GUIDANCE = "batch_guidance"
    SEQUENCE_SHARDING = "sequence_sharding"
    REPLICATE_CROSS_ATTENTION = "replicate_cross_attention"
    ALL_GATHER = "all_gather"
    STRICT_TOKENS = "strict_tokens"
    TILE_VAE = "tile_vae"
    VAE_PARALLEL = "vae_parallel"
    FP8 = "fp8"
    LORA = "lora"
    FIRST_FRAME = "first_frame"
    STEP_CACHE = "step_cache"


NEEDS: Mapping[Feature, Collection[Feature]] = {
    Feature.SEQUENCE_SHARDING: (Feature.TP,),
    Feature.REPLICATE_CROSS_ATTENTION: (Feature.TP,),
    Feature.ALL_GATHER: (Feature.RING,),
    Feature.STRICT_TOKENS: (Feature.RING, Feature.ULYSSES),
    Feature.VAE_PARALLEL: (Feature.TP, Feature.RING, Feature.ULYSSES, Feature.CFG_PARALLEL),
}
"""What a feature has nothing to act on without: one of these."""

APART: Mapping[frozenset[Feature], str] = {
    frozenset({Feature.BATCH_GUIDANCE, Feature.CFG_PARALLEL}): (
        "the branches of guidance are in one pass or on two ranks"
    ),
}
"""Pairs that exclude each other, with the reason."""


def pairs() -> list[tuple[Feature, Feature]]:
    """Every two features that go together."""
    return [pair for pair in combinations(Feature, 2) if frozenset(pair) not in APART]


def partners(feature: Feature) -> list[Feature]:
    """What goes together with ``feature``, without what it needs."""
    return [
        other
        for other in Feature
        if other is not feature and frozenset({feature, other}) not in APART
    ]


def with_needs(features: Collection[Feature]) -> frozenset[Feature]:
    """``features``, and the first of what each of them needs where none of it is there."""
    found = set(features)
    for feature in features:
        needs = NEEDS.get(feature, ())
        if needs and not found.intersection(needs):
            found.add(next(iter(needs)))
    return frozenset(found)


def check_together(features: Collection[Feature]) -> None:
    """Raise ``ValueError`` for two that exclude each other, or one that lacks what it needs."""
    for pair in combinations(sorted(features), 2):
        reason = APART.get(frozenset(pair))
        if reason is not None:
            raise ValueError(f"{pair[0]} cannot be with {pair[1]}: {reason}")
    for feature in features:
        needs = NEEDS.get(feature, ())
        if needs and not set(needs).intersection(features):
            raise ValueError(f"{feature} needs {' or '.join(needs)}")


def covering_sets(
    wanted: Collection[frozenset[Feature]], fits: Callable[[frozenset[Feature]], bool]
) -> Iterator[frozenset[Feature]]:
    """Sets of features that have all pairs in ``wanted``, for tests that run many pairs at once.

    Each begins with a pair that is in none yet, and grows by whatever brings the most of such
    pairs, while it ``fits``. No set has two features that exclude each other.
    """
    missing = set(wanted)
    while missing:
        features = with_needs(min(missing, key=sorted))
        while grown := _grown(features, missing, fits):
            features = grown
        missing -= {pair for pair in missing if pair <= features}
        yield features


def _grown(
    features: frozenset[Feature],
    missing: Collection[frozenset[Feature]],
    fits: Callable[[frozenset[Feature]], bool],
) -> frozenset[Feature]:
    """``features`` and one more, or nothing if none more brings any of ``missing``."""
    best: frozenset[Feature] = frozenset()
    most = sum(pair <= features for pair in missing)
    for feature in sorted(set(Feature) - features):
        more = with_needs(features | {feature})
        if not fits(more) or any(pair <= more for pair in APART):
            continue
        brought = sum(pair <= more for pair in missing)
        if brought > most:
            best, most = more, brought
    return best
