"""The names that LoRA files use, and the tensors of the transformer that they stand for.

| dialect | an example |
|---|---|
| diffusers, PEFT | ``transformer.blocks.0.attn1.to_q.lora_A.weight`` |
| original Wan | ``blocks.0.self_attn.q.lora_down.weight`` |
| ComfyUI | ``diffusion_model.blocks.0.self_attn.q.lora_A.weight``, ``....norm_q.diff`` |
| kohya | ``lora_unet_blocks_0_self_attn_q.lora_down.weight``, ``.alpha`` |

A name is a prefix, the name of a layer or table, and a suffix. One file keeps to one prefix and one
way to name layers; any of the suffixes may go with them.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from wantrn.model.checkpoints.diffusers import canonical_shapes
from wantrn.model.checkpoints.original import original_name
from wantrn.model.config import WanConfig
from wantrn.model.errors import CheckpointError

_LISTED = 50  # unknown keys in an error, before the rest is only counted


class Role(enum.Enum):
    """What a tensor of a LoRA file is to the tensor that it changes."""

    DOWN = "A [R, in] of a change B A"
    UP = "B [out, R] of a change B A"
    ALPHA = "the number that, divided by R, multiplies B A"
    UP_BIAS = "a bias of B, multiplied as B A is"
    DIFFERENCE = "the change itself"


@dataclass(frozen=True)
class Target:
    """The canonical (diffusers') name of the tensor that is changed, and how."""

    parameter: str
    role: Role


@dataclass(frozen=True)
class _Suffix:
    """The end of a key: ``leaf`` of the layer that stands before it, or ``table`` of the block."""

    text: str
    role: Role
    leaf: str = "weight"
    table: str = ""


_SUFFIXES = (
    _Suffix(".lora_A.weight", Role.DOWN),
    _Suffix(".lora_B.weight", Role.UP),
    _Suffix(".lora_B.bias", Role.UP_BIAS, leaf="bias"),
    _Suffix(".lora_A.default.weight", Role.DOWN),
    _Suffix(".lora_B.default.weight", Role.UP),
    _Suffix(".lora_down.weight", Role.DOWN),
    _Suffix(".lora_up.weight", Role.UP),
    _Suffix(".lora.down.weight", Role.DOWN),
    _Suffix(".lora.up.weight", Role.UP),
    _Suffix(".alpha", Role.ALPHA),
    _Suffix(".diff", Role.DIFFERENCE),
    _Suffix(".diff_b", Role.DIFFERENCE, leaf="bias"),
    _Suffix(".diff_m", Role.DIFFERENCE, table=".modulation"),
)
LOW_EXPERT_PREFIX = "transformer_2."
_PREFIXES = (
    "",
    "transformer.",
    LOW_EXPERT_PREFIX,
    "diffusion_model.",
    "model.diffusion_model.",
    "base_model.model.",
    "base_model.model.transformer.",
    "base_model.model.diffusion_model.",
)


@dataclass(frozen=True)
class Dialect:
    """One way to write names.

    Attributes:
        prefix: before every name.
        stems: the name of a layer or table in the file to its canonical one.
    """

    prefix: str
    stems: Mapping[str, str]

    def target(self, key: str, shapes: Mapping[str, tuple[int, ...]]) -> Target | None:
        """What ``key`` stands for; None if it is none of this dialect's, or of no tensor of the
        transformer with these canonical ``shapes``."""
        for suffix in _SUFFIXES:
            if not (key.startswith(self.prefix) and key.endswith(suffix.text)):
                continue
            name = key[len(self.prefix) : len(key) - len(suffix.text)] + suffix.table
            stem = self.stems.get(name, "")
            # a table is a tensor itself; a layer has tensors
            is_table = stem in shapes and suffix.leaf == "weight"
            parameter = stem if is_table else f"{stem}.{suffix.leaf}"
            if parameter in shapes:
                return Target(parameter, suffix.role)
        return None


def dialects(config: WanConfig) -> Iterator[Dialect]:
    """All ways to write names that are known."""
    canonical = {_stem(name): _stem(name) for name in canonical_shapes(config)}
    original = {_stem(original_name(name)): _stem(name) for name in canonical_shapes(config)}
    for stems in (canonical, original):
        for prefix in _PREFIXES:
            yield Dialect(prefix, stems)
        yield Dialect("lora_unet_", {name.replace(".", "_"): stem for name, stem in stems.items()})


def key_map(keys: Collection[str], config: WanConfig) -> dict[str, Target]:
    """What each of a file's ``keys`` stands for, in the dialect that knows the most of them.

    Raises:
        CheckpointError: keys that are unknown, which it lists; two keys for one thing.
    """
    shapes = canonical_shapes(config)
    found: dict[str, Target] = {}
    for dialect in dialects(config):
        known = _known(keys, dialect, shapes)
        found = known if len(known) > len(found) else found
        if len(found) == len(keys):
            break
    unknown = [key for key in keys if key not in found]
    if unknown:
        listed = ", ".join(unknown[:_LISTED])
        more = f" and {len(unknown) - _LISTED} more" if len(unknown) > _LISTED else ""
        raise CheckpointError(f"{len(unknown)} of {len(keys)} keys are unknown: {listed}{more}")
    seen: dict[Target, str] = {}
    for key, target in found.items():
        if target in seen:
            raise CheckpointError(f"{seen[target]} and {key} are both for {target.parameter}")
        seen[target] = key
    return found


def keys_for_expert(keys: Collection[str], expert: int) -> tuple[str, ...]:
    """Those of a file's ``keys`` that are for an expert of a model with two.

    A file of diffusers may hold the LoRAs of both, and then tells them apart by prefixes. Any other
    file is for whichever expert it is used with.
    """
    low = [key for key in keys if key.startswith(LOW_EXPERT_PREFIX)]
    if not low or len(low) == len(keys):
        return tuple(keys)
    return tuple(low) if expert == 1 else tuple(key for key in keys if key not in set(low))


def _known(
    keys: Collection[str], dialect: Dialect, shapes: Mapping[str, tuple[int, ...]]
) -> dict[str, Target]:
    return {key: target for key in keys if (target := dialect.target(key, shapes)) is not None}


def _stem(name: str) -> str:
    """The layer of a tensor; a table is its own."""
    return name.removesuffix(".weight").removesuffix(".bias")
