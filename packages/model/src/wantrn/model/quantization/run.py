"""Quantizing a checkpoint from one place to another: all of it under the final name, or nothing."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from wantrn.model.checkpoints import TensorStore, detect_format, infer_config
from wantrn.model.config import WanConfig
from wantrn.model.dit_config import read_dit_config
from wantrn.model.errors import CheckpointError, RequestError
from wantrn.model.info import read_model_info
from wantrn.model.inspection import inspect_checkpoint
from wantrn.model.quantization.components import ComponentCopy
from wantrn.model.quantization.expert import ExpertJob, Progress
from wantrn.model.quantization.groups import QuantizationOptions
from wantrn.model.quantization.manifest import MANIFEST, read_manifest
from wantrn.model.quantization.state import LayerErrors


@dataclass(frozen=True)
class QuantizationJob:
    """A checkpoint that can be quantized, and where to; nothing is written yet.

    Attributes:
        destination: the folder to be made
        experts: by folder in the destination; one called ``.`` where the source is a transformer
        components: what else there is of a checkpoint folder; None where it is a transformer
        finished: whether the destination holds the result already
    """

    destination: Path
    experts: Mapping[str, ExpertJob]
    components: ComponentCopy | None
    finished: bool

    @classmethod
    def plan(cls, source: Path, destination: Path, options: QuantizationOptions) -> QuantizationJob:
        """Check ``source`` and ``destination``, reading headers and a little of each tensor.

        Args:
            source: a checkpoint folder with ``model_index.json``, all of whose components come
                into the result, or one transformer: its folder, index or safetensors file, in any
                of the formats.
            destination: a folder that is not there yet, is empty, or holds this very result.
            options: what to quantize, and how.

        Raises:
            RequestError: ``source`` is not there or quantized already, or ``destination`` holds
                something else; the field is the argument's name.
            CheckpointError: ``source`` is no checkpoint that can be quantized, or lacks a
                component; names file and key.
        """
        if not source.exists():
            raise RequestError("source", f"there is no folder or file {source}")
        experts = {
            name: ExpertJob.plan(store, config, options)
            for name, (store, config) in _find_experts(source).items()
        }
        components = None if "." in experts else _plan_components(source)
        finished = all(
            expert.is_finished_in(destination / name) for name, expert in experts.items()
        ) and (components is None or components.is_finished_in(destination))
        if not finished:
            _check_vacant(destination)
        return cls(destination, experts, components, finished)

    @property
    def source_bytes(self) -> int:
        """What there is to read, and the sum of all that ``run`` reports as progress."""
        components = 0 if self.components is None else self.components.source_bytes
        return components + sum(expert.source_bytes for expert in self.experts.values())

    @property
    def working_folder(self) -> Path:
        """Where the result grows, beside the destination; what was begun there is taken up."""
        return self.destination.with_name(self.destination.name + ".partial")

    def run(self, progress: Progress) -> dict[str, LayerErrors]:
        """Make the destination; the errors of all layers, by expert.

        Memory: about three times the largest parameter, in the checkpoint's dtype or, where FP8
        codes are rounded anew, in fp32. When interrupted, the working folder keeps the finished
        files. Where the destination is finished, only its report is read.

        Raises:
            CheckpointError: values that are not finite; a working folder with something else in it;
                a destination that cannot be written. Nothing is then at ``destination``.
        """
        if self.finished:
            return {name: read_manifest(self.destination / name).errors for name in self.experts}
        try:
            self._check_working_folder()
            errors = {
                name: expert.run(self.working_folder / name, progress)
                for name, expert in self.experts.items()
            }
            if self.components is not None:
                self.components.run(self.working_folder, progress)
            # replaces an empty folder, and fails on any other
            os.rename(self.working_folder, self.destination)
        except OSError as error:
            raise CheckpointError(f"{self.destination}: cannot be written: {error}") from error
        return errors

    def _check_working_folder(self) -> None:
        """Beside experts there may be components only; each expert looks into its own folder."""
        folder = self.working_folder
        if self.components is None or not folder.exists():
            return
        names = {*self.experts, *self.components.top_names}
        others = [path for path in sorted(folder.iterdir()) if path.name not in names]
        for path in (*others, *self.components.unexpected_in(folder)):
            raise CheckpointError(
                f"{folder}: holds {path.relative_to(folder)}, which is not part of the result; "
                "remove it, or choose another destination"
            )


def _find_experts(source: Path) -> dict[str, tuple[TensorStore, WanConfig]]:
    if source.is_dir() and (source / "model_index.json").exists():
        info = read_model_info(source)
        if info.quantization is not None:
            raise _quantized_already(source, info.experts[0] / MANIFEST)
        return {
            expert.name: (TensorStore.open(expert), read_dit_config(expert))
            for expert in info.experts
        }
    folder = source if source.is_dir() else source.parent
    if (folder / MANIFEST).exists():
        raise _quantized_already(source, folder / MANIFEST)
    store = TensorStore.open(source)
    format = detect_format(store)
    if (folder / "config.json").exists():
        return {".": (store, read_dit_config(folder))}
    return {".": (store, infer_config(store, format))}


def _quantized_already(source: Path, manifest: Path) -> RequestError:
    return RequestError("source", f"{source} is quantized already: there is {manifest}")


def _plan_components(source: Path) -> ComponentCopy:
    """Nothing is copied of what would not make a complete checkpoint."""
    problems = inspect_checkpoint(source).problems
    if problems:
        others = f", and {len(problems) - 1} more" if len(problems) > 1 else ""
        raise CheckpointError(
            f"{source} is not complete: {problems[0]}{others}; give a transformer's folder to "
            "quantize it by itself"
        )
    return ComponentCopy.plan(source)


def _check_vacant(destination: Path) -> None:
    if destination.is_symlink() or (destination.exists() and not destination.is_dir()):
        raise RequestError("destination", f"{destination} exists and is no folder")
    if destination.is_dir() and any(destination.iterdir()):
        raise RequestError(
            "destination",
            f"{destination} exists and is not what this checkpoint with these options becomes",
        )
