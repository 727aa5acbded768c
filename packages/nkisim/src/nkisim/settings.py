"""How a kernel is simulated: the target, what is checked and how hard, what is kept."""

from __future__ import annotations

import os
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal

from nkisim.enums import NcVersion

Level = Literal["error", "warn", "off"]

_TARGETS = {
    "trn1": NcVersion.gen2,
    "inf2": NcVersion.gen2,
    "gen2": NcVersion.gen2,
    "trn2": NcVersion.gen3,
    "gen3": NcVersion.gen3,
    "trn3": NcVersion.gen4,
    "gen4": NcVersion.gen4,
}


@dataclass(frozen=True)
class Rules:
    """The level of each rule: `error`, `warn` or `off`.

    What the hardware or AWS's compiler rejects is an error by default; what it takes, with an
    undefined or doubtful result, is a warning, unless a correct kernel never does it.

    Attributes:
        constraint: a documented constraint of an instruction (engines, shapes, dtypes, generation)
        partition_start: an operand begins at a partition that the engines cannot start from
        partition_step: an access pattern on chip names the elements of a partition of the view
            that it is made from, and not those of the allocated tensor
        uninitialized: bytes are read that nothing has written. A warning, because shipped kernels
            read rows that they never use; what is read is NaN.
        overwritten: bytes are read that were written, then overwritten through another tensor
            at the same address
        aliased: bytes are read that were only ever written through another tensor at that address
        bank_start: a PSUM tensor begins inside a bank
        accumulate: matmul results are added to PSUM bytes that no matmul has written
        stationary_dims: a stationary operand with more than one free dimension, which gives wrong
            results on Trainium2
        fp8_overflow: a finite value becomes infinity or NaN in an 8-bit type
        function_range: an activation function outside the range in which the hardware is accurate
        unsupported: what the simulator computes and the compiler does not take (`nl.divide`)
        collective_buffers: which HBM tensors a collective may use
        collective_race: a collective's buffer is written while the collective is under way
        core_race: two cores touch the same bytes of shared HBM, one writing, with nothing between
        capacity: the tensors of a core do not fit into SBUF or PSUM
        unwritten_output: a returned tensor has bytes that nothing wrote
        deprecated: what a later version of NKI no longer has
    """

    constraint: Level = "error"
    partition_start: Level = "error"
    partition_step: Level = "warn"
    uninitialized: Level = "warn"
    overwritten: Level = "error"
    aliased: Level = "warn"
    bank_start: Level = "warn"
    accumulate: Level = "warn"
    stationary_dims: Level = "warn"
    fp8_overflow: Level = "warn"
    function_range: Level = "warn"
    unsupported: Level = "warn"
    collective_buffers: Level = "error"
    collective_race: Level = "error"
    core_race: Level = "error"
    capacity: Level = "error"
    unwritten_output: Level = "warn"
    deprecated: Level = "warn"

    def __post_init__(self) -> None:
        for rule in fields(self):
            level = getattr(self, rule.name)
            if level not in ("error", "warn", "off"):
                raise ValueError(
                    f"rules.{rule.name} is {level!r}; it must be 'error', 'warn' or 'off'"
                )

    @classmethod
    def all(cls, level: Level) -> Rules:
        """Every rule at one level."""
        return cls(**{rule.name: level for rule in fields(cls)})


def _default_target() -> NcVersion:
    return target_of(os.environ.get("NEURON_PLATFORM_TARGET_OVERRIDE") or "trn3")


@dataclass(frozen=True)
class Settings:
    """How a kernel is simulated.

    Attributes:
        target: the generation, or its name (`"gen3"`, `"trn2"`). By default what the environment
            variable NEURON_PLATFORM_TARGET_OVERRIDE names, else Trainium3.
        numerics: whether values are computed; without, shapes only
        trace: whether instructions are kept; a report needs them
        seed: of the random number engines, whose streams on the chip are not published
        legacy_mx_scale: the block scale of `quantize_mx` as NKI had it before 0.5
        stall_seconds: how long several cores may go on without any of them issuing an instruction
        rules: the level of each rule
    """

    target: NcVersion = field(default_factory=_default_target)
    numerics: bool = True
    trace: bool = True
    seed: int = 0
    legacy_mx_scale: bool = False
    stall_seconds: float = 6.0
    rules: Rules = field(default_factory=Rules)

    def __post_init__(self) -> None:
        object.__setattr__(self, "target", target_of(self.target))
        if not self.stall_seconds > 0:
            raise ValueError(f"stall_seconds is {self.stall_seconds}; it must be more than 0")
        if not isinstance(self.rules, Rules):
            raise TypeError(f"rules is {self.rules!r}; it must be nkisim.Rules")

    def changed(self, **overrides: Any) -> Settings:
        """These settings with others in their place.

        Raises:
            TypeError: there is no setting of that name.
        """
        known = {setting.name for setting in fields(self)}
        for name in overrides:
            if name not in known:
                raise TypeError(
                    f"there is no setting {name!r}; there are {', '.join(sorted(known))}"
                )
        return replace(self, **overrides)


def target_of(target: Any) -> NcVersion:
    """The generation that `target` names.

    Raises:
        ValueError: it names none.
    """
    if isinstance(target, NcVersion):
        return target
    if isinstance(target, str) and target.lower() in _TARGETS:
        return _TARGETS[target.lower()]
    if isinstance(target, int) and not isinstance(target, bool) and target in (2, 3, 4):
        return NcVersion(target)
    raise ValueError(f"target is {target!r}; it must be one of {', '.join(sorted(_TARGETS))}")


def dma_transposes_on_tensor_engine() -> bool:
    """Whether the compiler is told to transpose on the Tensor engine where a kernel asks the DMA.

    That is NKI_DMA_TRANSPOSE_AS_PE_TRANSPOSE=true; the compiler then keeps a PSUM bank for itself.
    """
    return os.environ.get("NKI_DMA_TRANSPOSE_AS_PE_TRANSPOSE", "").lower() == "true"
