"""What can be captured of a step, and how it is named."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from wantrn.model.config import WanConfig

PARTS = ("self_attention", "cross_attention", "feed_forward")
OF_THE_RUN = ("velocity", "latents")
"""The guided velocity, and the latents after the step: the solver's, no module's."""

DEFAULT_MODULES = ("blocks.*", "blocks.*.*", *OF_THE_RUN)

_COMMON = frozenset({"patch_embedding", "blocks.0.self_attention", *OF_THE_RUN})


class Branch(enum.Enum):
    """The branch of guidance that a tensor belongs to, in the order of their passes."""

    BOTH = "both"
    """It comes before the first use of the text, or after the branches are joined."""
    PROMPT = "prompt"
    NEGATIVE = "negative"


@dataclass(frozen=True)
class Point:
    """One tensor of a step: ``blocks.3.feed_forward@negative``."""

    module: str
    branch: Branch

    def __str__(self) -> str:
        return f"{self.module}@{self.branch.value}"


def capturable(config: WanConfig) -> tuple[str, ...]:
    """All that can be captured, in the order of computation.

    Of a transformer these are the modules that give one row ``[H]`` for each token. Packed FP8 rows
    are none of them: operators make them for the layer that follows, not modules.
    """
    names = ["patch_embedding"]
    for index in range(config.num_layers):
        block = f"blocks.{index}"
        names += [*(f"{block}.{part}" for part in PARTS), block]
    return (*names, *OF_THE_RUN)


def matching(patterns: Sequence[str], config: WanConfig) -> tuple[str, ...]:
    """Those of ``capturable`` that a pattern matches, in their order.

    ``*``, ``?`` and ``[...]`` stand for what they do in a shell, between two dots.

    Raises:
        ValueError: no pattern, or one that matches nothing.
    """
    if not patterns:
        raise ValueError("modules must be at least one pattern, got none")
    names = capturable(config)
    for pattern in patterns:
        if not any(_matches(name, pattern) for name in names):
            raise ValueError(
                f"modules: {pattern!r} matches none of {names[0]}, {', '.join(names[1:5])}, ... "
                f"{', '.join(names[-3:])}"
            )
    return tuple(name for name in names if any(_matches(name, one) for one in patterns))


def points_of(module: str, branches: Sequence[Branch]) -> tuple[Point, ...]:
    """The tensors that ``module`` gives in a step with these branches of guidance."""
    return tuple(Point(module, one) for one in ((Branch.BOTH,) if common(module) else branches))


def common(module: str) -> bool:
    """Whether the branches of guidance have the tensor of ``module`` in common.

    The transformer computes what comes before the first use of the text once for all texts.
    """
    return module in _COMMON


def _matches(name: str, pattern: str) -> bool:
    parts, wanted = name.split("."), pattern.split(".")
    return len(parts) == len(wanted) and all(map(fnmatchcase, parts, wanted))
