"""A checkpoint in any of the formats, read layer by layer for the quantizer."""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import torch
from torch import Tensor

from wantrn.kernels.row_mx import OCP_LIMIT
from wantrn.model.checkpoints import comfyui
from wantrn.model.checkpoints.native import NativeParameter, assemble, native_parameters
from wantrn.model.checkpoints.source import TransformerSource
from wantrn.model.checkpoints.tensor_store import TensorStore
from wantrn.model.checkpoints.values import convert
from wantrn.model.config import WanConfig
from wantrn.model.errors import CheckpointError
from wantrn.model.quantization.layer import (
    FP8,
    QuantizedLayer,
    has_nan,
    keep_codes,
    quantize_layer,
)
from wantrn.model.quantization.state import weight_name

_SAMPLE = 4096  # bytes of each tensor that a fingerprint takes in


@dataclass(frozen=True)
class LayerSource:
    """The native parameters of one checkpoint, made one at a time and never all in memory."""

    source: TransformerSource
    config: WanConfig
    parameters: Mapping[str, NativeParameter]

    @classmethod
    def open(cls, store: TensorStore, config: WanConfig) -> LayerSource:
        """Check all headers. Raises ``CheckpointError`` naming file and keys, as loading does."""
        parameters = MappingProxyType(native_parameters(config))
        return cls(TransformerSource.open(store, config), config, parameters)

    def dtype(self, name: str) -> torch.dtype:
        """Of native parameter ``name``: as stored, and fp32 where it is FP8 with a scale."""
        dtypes = [
            torch.float32 if self._is_fp8(canonical) else self._info_dtype(canonical)
            for canonical in self.parameters[name].sources
        ]
        return functools.reduce(torch.promote_types, dtypes)

    def nbytes(self, name: str) -> int:
        """What native parameter ``name`` takes in the checkpoint's files, scales left out."""
        source = self.source
        return sum(
            source.store.info(source.keys[canonical]).nbytes
            for canonical in self.parameters[name].sources
        )

    def read(self, name: str) -> Tensor:
        """Native parameter ``name`` in ``dtype(name)``; perhaps a view of the mapped file.

        Raises ``CheckpointError`` naming file and key on NaN and infinity.
        """
        dtype = self.dtype(name)

        def values(canonical: str) -> Tensor:
            return convert(self.source.read(canonical), dtype, self.source.where(canonical))

        return self._assemble(self.parameters[name], values)

    def quantize(self, layer: str, limit: float) -> QuantizedLayer:
        """``layer`` in FP8. Codes that the checkpoint has are kept, if ``limit`` is the format's.

        Raises ``CheckpointError`` naming file and key on NaN, infinity and a scale that is none.
        """
        name = weight_name(layer)
        parameter = self.parameters[name]
        if limit == OCP_LIMIT and all(map(self._is_fp8, parameter.sources)):
            # bytes, since not every operator that moves rows knows float8
            codes = self._assemble(parameter, self._code_bytes)
            return keep_codes(codes.view(FP8), self._channel_scales(parameter))
        weight = self.read(name)
        if weight.dtype == torch.float64:
            weight = convert(weight, torch.float32, self.source.where(parameter.sources[0]))
        return quantize_layer(weight, limit, len(parameter.sources))

    def fingerprint(self) -> str:
        """A digest of the configuration, of all headers and of the first 4 KiB of every tensor.

        It tells one checkpoint from another of the same shapes, without reading all of it.
        """
        digest = hashlib.sha256(json.dumps(self.config.to_diffusers(), sort_keys=True).encode())
        store = self.source.store
        for name in sorted(store.names):
            info = store.info(name)
            digest.update(json.dumps([name, str(info.dtype), info.shape]).encode())
            values = store.read(name).reshape(-1)[: _SAMPLE // info.dtype.itemsize]
            digest.update(values.contiguous().view(torch.uint8).numpy().tobytes())
        return digest.hexdigest()

    def _assemble(self, parameter: NativeParameter, read: Callable[[str], Tensor]) -> Tensor:
        return assemble(parameter, read, self.config.num_attention_heads).contiguous()

    def _info_dtype(self, canonical: str) -> torch.dtype:
        return self.source.store.info(self.source.keys[canonical]).dtype

    def _is_fp8(self, canonical: str) -> bool:
        return self.source.keys[canonical] in self.source.weight_scales

    def _code_bytes(self, canonical: str) -> Tensor:
        codes = self.source.store.read(self.source.keys[canonical])
        if has_nan(codes):
            raise CheckpointError(f"{self.source.where(canonical)}: holds NaN")
        return codes.view(torch.uint8)

    def _channel_scales(self, parameter: NativeParameter) -> Tensor:
        """``[I]``: each matrix's scale for every one of its rows; no permutation crosses them."""
        store = self.source.store
        scales = []
        for canonical in parameter.sources:
            name = self.source.keys[canonical]
            value = comfyui.read_scale(store, self.source.weight_scales[name])
            scales.append(torch.full((store.info(name).shape[0],), value))
        return torch.cat(scales)
