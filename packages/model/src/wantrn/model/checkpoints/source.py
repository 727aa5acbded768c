"""One transformer checkpoint in any of the formats, read under canonical names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import torch

from wantrn.model.checkpoints import comfyui, diffusers, original
from wantrn.model.checkpoints.formats import CheckpointFormat, detect_format
from wantrn.model.checkpoints.key_maps import KeyDifferences, check_bijection, compare_shapes
from wantrn.model.checkpoints.tensor_store import TensorStore
from wantrn.model.config import WanConfig
from wantrn.model.errors import CheckpointError
from wantrn.model.slices import Slice

PLAIN_DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)


@dataclass(frozen=True)
class TransformerSource:
    """Canonical names tied to the tensors of a store."""

    store: TensorStore
    format: CheckpointFormat
    keys: Mapping[str, str]  # canonical name to the name in the store
    weight_scales: Mapping[str, str]  # FP8 weight to its scale, names in the store
    auxiliary: frozenset[str]  # names in the store that are no parameter

    @classmethod
    def match(cls, store: TensorStore, config: WanConfig) -> TransformerSource:
        """Find the format and the names that ``config`` asks for, whether they are there or not.

        Raises ``CheckpointError`` on an unknown format and on FP8 weights and scales without match.
        """
        format = detect_format(store)
        if format is CheckpointFormat.COMFYUI_FP8:
            layout = comfyui.read_layout(store)
            keys = comfyui.key_map(config, layout.prefix)
            return cls(
                store,
                format,
                MappingProxyType(keys),
                MappingProxyType(dict(layout.weight_scales)),
                layout.auxiliary,
            )
        if format is CheckpointFormat.DIFFUSERS:
            keys = diffusers.key_map(config)
        else:
            keys = original.key_map(config, original.find_prefix(store.names))
        return cls(store, format, MappingProxyType(keys), MappingProxyType({}), frozenset())

    @classmethod
    def open(cls, store: TensorStore, config: WanConfig) -> TransformerSource:
        """``match``, and every tensor present once, with the right shape and a dtype it may have.

        Reads headers only. Raises ``CheckpointError`` naming file and keys.
        """
        source = cls.match(store, config)
        check_bijection(source.keys, source.parameter_shapes().keys(), store.source)
        source.differences(config).check(store.source)
        for name in source.keys.values():
            source.check_dtype(name)
        return source

    def parameter_shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes in the store by the names in the store, scales and markers left out."""
        return {
            name: shape for name, shape in self.store.shapes.items() if name not in self.auxiliary
        }

    def differences(self, config: WanConfig) -> KeyDifferences:
        """What is missing, unexpected or misshaped, in the names of the store."""
        shapes = diffusers.canonical_shapes(config)
        expected = {self.keys[name]: shape for name, shape in shapes.items()}
        return compare_shapes(expected, self.parameter_shapes())

    def check_dtype(self, name: str) -> None:
        """Raise ``CheckpointError`` if ``name``, in the store, has a dtype no weight may have."""
        info = self.store.info(name)
        if info.dtype in PLAIN_DTYPES or name in self.weight_scales:
            return
        if info.dtype.itemsize == 1 and info.dtype.is_floating_point:
            raise CheckpointError(
                f"{info.file}: {name}: is {info.dtype} in a file of format {self.format.value}, "
                "which has no scales; its values are unknown"
            )
        raise CheckpointError(f"{info.file}: {name}: is {info.dtype}, expected floating point")

    def read(self, canonical: str) -> torch.Tensor:
        """The values of one tensor: as stored, or float32 where the file holds FP8 and a scale.

        The result may be a view of the mapped file. Raises ``CheckpointError`` on a scale that is
        not finite and positive.
        """
        return self._values(canonical, self.store.read(self.keys[canonical]))

    def load(self, canonical: str, part: Slice | None = None) -> torch.Tensor:
        """As ``read``, of the whole tensor or a ``part`` of it, and in memory of its own.

        Only the bytes of the part are read. Raises ``ValueError`` if the tensor has no such part.
        """
        return self._values(canonical, self.store.load(self.keys[canonical], part))

    def shape(self, canonical: str) -> tuple[int, ...]:
        """Of the whole tensor."""
        return self.store.info(self.keys[canonical]).shape

    def where(self, canonical: str) -> str:
        """``file: key`` of a tensor, for errors."""
        name = self.keys[canonical]
        return f"{self.store.info(name).file}: {name}"

    def _values(self, canonical: str, stored: torch.Tensor) -> torch.Tensor:
        name = self.keys[canonical]
        if name not in self.weight_scales:
            return stored
        return comfyui.dequantize(stored, comfyui.read_scale(self.store, self.weight_scales[name]))
