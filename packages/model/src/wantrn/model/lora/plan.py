"""What a LoRA file changes of a transformer, from its header alone."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from wantrn.model.checkpoints.diffusers import canonical_shapes
from wantrn.model.checkpoints.safetensors_header import TensorInfo
from wantrn.model.checkpoints.source import PLAIN_DTYPES
from wantrn.model.checkpoints.tensor_store import TensorStore
from wantrn.model.config import WanConfig
from wantrn.model.errors import CheckpointError
from wantrn.model.lora.dialects import LOW_EXPERT_PREFIX, Role, key_map, keys_for_expert
from wantrn.model.lora.strength import Strength

MAX_RANK = 1024
MAX_BYTES = 16 * 2**30


@dataclass(frozen=True)
class LowRankChange:
    """``alpha / rank * B A`` of one weight; keys are those of the file.

    Attributes:
        parameter: the weight's canonical name.
        layer: of the weight, as the file calls it.
        alpha: None where the file has no tensor for it.
    """

    parameter: str
    layer: str
    down: str
    up: str
    alpha: str | None
    rank: int


@dataclass(frozen=True)
class Difference:
    """The change of one tensor.

    Attributes:
        parameter: its canonical name.
        key: that of the file.
        pair: for the bias of a B, what it belongs to, and by whose factor it is multiplied.
    """

    parameter: str
    key: str
    pair: LowRankChange | None = None


@dataclass(frozen=True)
class LoraPlan:
    """All that a file does to one expert, with everything checked that the header tells.

    Attributes:
        store: where the tensors are.
        strength: alpha that is kept apart from the tensors.
    """

    store: TensorStore
    low_rank: tuple[LowRankChange, ...]
    differences: tuple[Difference, ...]
    strength: Strength

    @classmethod
    def open(cls, path: Path, config: WanConfig, expert: int = 0, experts: int = 1) -> LoraPlan:
        """From a safetensors file, or a folder of PEFT's, for one of the model's experts.

        Raises:
            CheckpointError: naming the file and: keys that are unknown, a part without its
                counterpart, ranks or shapes that do not fit, what is too large or no plain number.
        """
        store = TensorStore.open(path)
        nbytes = sum(info.nbytes for info in store.tensors.values())
        if nbytes > MAX_BYTES:
            raise CheckpointError(f"{path}: holds {nbytes} bytes; at most {MAX_BYTES} are allowed")
        keys = store.names if experts == 1 else keys_for_expert(store.names, expert)
        low = bool(keys) and keys[0].startswith(LOW_EXPERT_PREFIX)
        try:
            parts = _Parts.of({key: store.info(key) for key in keys}, config)
            low_rank, differences = parts.low_rank(), parts.differences()
        except CheckpointError as error:
            raise CheckpointError(f"{path}: {error}") from error
        return cls(store, low_rank, differences, Strength.of(path, store.files[0], low))


@dataclass(frozen=True)
class _Parts:
    """A file's tensors by what they are of each parameter."""

    infos: Mapping[str, TensorInfo]
    keys: Mapping[str, Mapping[Role, str]]
    shapes: Mapping[str, tuple[int, ...]]  # of the parameters

    @classmethod
    def of(cls, infos: Mapping[str, TensorInfo], config: WanConfig) -> _Parts:
        keys: dict[str, dict[Role, str]] = {}
        for key, target in key_map(tuple(infos), config).items():
            keys.setdefault(target.parameter, {})[target.role] = key
            if infos[key].dtype not in PLAIN_DTYPES and target.role is not Role.ALPHA:
                raise CheckpointError(f"{key}: is {infos[key].dtype}, expected floating point")
        return cls(infos, keys, canonical_shapes(config))

    def low_rank(self) -> tuple[LowRankChange, ...]:
        return tuple(
            self._pair(parameter, roles)
            for parameter, roles in self.keys.items()
            if not roles.keys().isdisjoint((Role.DOWN, Role.UP, Role.ALPHA))
        )

    def differences(self) -> tuple[Difference, ...]:
        found = []
        for parameter, roles in self.keys.items():
            if Role.DIFFERENCE in roles:
                found.append(Difference(parameter, roles[Role.DIFFERENCE]))
            if Role.UP_BIAS in roles:
                found.append(self._up_bias(parameter, roles[Role.UP_BIAS]))
        for difference in found:
            self._check(difference.key, self.shapes[difference.parameter])
        return tuple(found)

    def _up_bias(self, parameter: str, key: str) -> Difference:
        weight = parameter.removesuffix("bias") + "weight"
        roles = self.keys.get(weight, {})
        if Role.UP not in roles:
            raise CheckpointError(f"{key}: there is no up that goes with it")
        return Difference(parameter, key, self._pair(weight, roles))

    def _pair(self, parameter: str, roles: Mapping[Role, str]) -> LowRankChange:
        alpha = roles.get(Role.ALPHA)
        for role, other in ((Role.DOWN, Role.UP), (Role.UP, Role.DOWN)):
            if role not in roles:
                have = roles.get(other, alpha)
                raise CheckpointError(f"{have}: there is no {role.name.lower()} that goes with it")
        down, up = roles[Role.DOWN], roles[Role.UP]
        weight = self.shapes[parameter]
        if len(weight) < 2 or not parameter.endswith(".weight"):
            raise CheckpointError(f"{down}: {parameter} {list(weight)} has no change of low rank")
        rank, width = self._shape(down)[:1], self._shape(up)[1:2]
        if rank != width:
            raise CheckpointError(
                f"{down} {list(self._shape(down))} and {up} {list(self._shape(up))} "
                "have different ranks"
            )
        if not rank or not 1 <= rank[0] <= MAX_RANK:
            raise CheckpointError(
                f"{down} {list(self._shape(down))}: the rank must be 1 to {MAX_RANK}"
            )
        # of a convolution, A has the kernel, and B one of size 1
        ones = (1,) * (len(weight) - 2)
        self._check(down, (*rank, *weight[1:]))
        self._check(up, (weight[0], *rank, *ones))
        if alpha is not None and math.prod(self._shape(alpha)) != 1:
            raise CheckpointError(f"{alpha} {list(self._shape(alpha))}: must be one number")
        layer = down.removesuffix(".weight").removesuffix(".default").rpartition(".lora")[0]
        return LowRankChange(parameter, layer, down, up, alpha, rank[0])

    def _check(self, key: str, expected: tuple[int, ...]) -> None:
        if self._shape(key) != expected:
            raise CheckpointError(
                f"{key} {list(self._shape(key))} does not fit the model, "
                f"where it would be {list(expected)}"
            )

    def _shape(self, key: str) -> tuple[int, ...]:
        return self.infos[key].shape
