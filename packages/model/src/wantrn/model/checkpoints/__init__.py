"""Wan2.2 weights on disk: formats, checks, loading and saving."""

from __future__ import annotations

from wantrn.model.checkpoints.formats import CheckpointFormat, detect_format, infer_config
from wantrn.model.checkpoints.load import load_module, load_transformer_state
from wantrn.model.checkpoints.save import export_state, save_sharded
from wantrn.model.checkpoints.tensor_store import TensorStore
from wantrn.model.slices import Slice

__all__ = [
    "CheckpointFormat",
    "Slice",
    "TensorStore",
    "detect_format",
    "export_state",
    "infer_config",
    "load_module",
    "load_transformer_state",
    "save_sharded",
]
