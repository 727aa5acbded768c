"""The LoRAs that a pipeline has read, and what they add to its experts."""

from __future__ import annotations

from collections.abc import Sequence

from wantrn.model.byte_cache import ByteCache, CacheCounts
from wantrn.model.checkpoints.native import native_shapes
from wantrn.model.lora.adapters import NONE, Adapters
from wantrn.model.lora.choice import LoraChoice
from wantrn.model.lora.loaded import Lora, LoraReader, combined
from wantrn.model.lora.plan import LoraPlan


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
            CheckpointError: naming the file, as ``LoraPlan.open`` and ``LoraReader.read``.
        """
        chosen = [found for choice in choices if (found := choice.for_expert(expert))]
        if not any(scale for _, scale in chosen):
            return NONE
        plans = [
            (LoraPlan.open(path, self._reader.config, expert, self._experts), scale)
            for path, scale in chosen
            if scale
        ]
        loras = [(self._lora(plan), scale) for plan, scale in plans]
        return combined(loras, self._layers.__contains__)

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
