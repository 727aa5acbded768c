"""The dimensions of one transformer, from its folder."""

from __future__ import annotations

from pathlib import Path

from wantrn.model.checkpoints import TensorStore, detect_format, infer_config
from wantrn.model.config import WanConfig
from wantrn.model.json_file import read_json


def read_dit_config(folder: Path) -> WanConfig:
    """The config of one expert: diffusers' ``config.json``, or else the shapes of its tensors.

    The original release has a ``config.json`` with other keys; it says nothing that shapes do not.
    """
    file = folder / "config.json"
    if file.exists():
        config = read_json(file)
        if config.get("_class_name") != "WanModel":
            return WanConfig.from_diffusers(config, str(file))
    store = TensorStore.open(folder)
    return infer_config(store, detect_format(store))
