"""The LoRAs that a pipeline has read, and what they add to its experts."""

from __future__ import annotations

from collections.abc import Sequence

from wantrn.model.byte_cache import ByteCache, CacheCounts
from wantrn.model.checkpoints.native import native_shapes
from wantrn.model.lora.adapters import NONE, Adapters
from wantrn.model.lora.choice import LoraChoice
from wantrn.model.lora.loaded import Lora, LoraReader, combined
from wantrn.model.lora.plan import LoraPlan
from wantrn.model.lora.request import naming


class LoraLibrary:
    """Reads LoRAs, and keeps those used last.

    A file is known by its path and what tells that it was changed, see ``FileStamp``.
    """

    def __init__(self, reader: LoraReader, experts: int, max_bytes: int) -> None:
        self._reader = reader
        self._experts = experts
        self._cache: ByteCache[object, Lora] = ByteCache(max_bytes)
        shapes = native_shapes(reader.config)
        self._layers = frozenset(
            name.removesuffix(".weight")
            for name, shape in shapes.items()
            if name.endswith(".weight") and len(shape) == 2
        )

    @property
    def counts(self) -> CacheCounts:
        return self._cache.counts

    def adapters(self, choices: Sequence[LoraChoice], expert: int) -> Adapters:
        """What all ``choices`` together add to an expert.

        Raises:
            RequestError: naming the choice: its file is not what it has to be, or holds what is no
                number.
        """
        loras = []
        for choice in choices:
            path, scale = choice.for_expert(expert) or (None, 0.0)
            if path is not None and scale != 0:
                with naming(choice):
                    plan = LoraPlan.open(path, self._reader.config, expert, self._experts)
                    loras.append((self._lora(plan), scale))
        return combined(loras, self._layers.__contains__) if loras else NONE

    def _lora(self, plan: LoraPlan) -> Lora:
        key = _identity(plan)
        found = self._cache.get(key)
        if found is None:
            found = self._reader.read(plan)
            self._cache.put(key, found, found.nbytes)
        return found


def _identity(plan: LoraPlan) -> tuple[object, ...]:
    """Equal for plans that read the same: the same files, unchanged, for the same expert's keys."""
    files = {info.file.resolve(): info.stamp for info in plan.store.tensors.values()}
    return (*files.items(), plan.low_rank, plan.differences, plan.strength)
