"""Quantizing one transformer into a folder: file by file, and again from where it stopped."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from wantrn.model.checkpoints import TensorStore
from wantrn.model.config import WanConfig
from wantrn.model.errors import CheckpointError
from wantrn.model.quantization.groups import QuantizationOptions
from wantrn.model.quantization.layer import LayerError
from wantrn.model.quantization.manifest import (
    MANIFEST,
    Manifest,
    read_manifest,
    replace_text,
    write_manifest,
)
from wantrn.model.quantization.plan import INDEX, FilePlan, index_text, plan_files
from wantrn.model.quantization.source import LayerSource
from wantrn.model.quantization.state import (
    LayerErrors,
    check_widths,
    codes_name,
    scales_name,
)
from wantrn.model.quantization.tensor_file import write_tensors

Progress = Callable[[int], None]
"""Called with the bytes of the checkpoint that have been worked through since the last call."""

CONFIG = "config.json"


@dataclass(frozen=True)
class ExpertJob:
    """One transformer to quantize, all headers checked and nothing written yet."""

    source: LayerSource
    options: QuantizationOptions
    files: tuple[FilePlan, ...]
    identity: Manifest  # without files

    @classmethod
    def plan(cls, store: TensorStore, config: WanConfig, options: QuantizationOptions) -> ExpertJob:
        """Raises ``CheckpointError`` naming file and key on what cannot be quantized."""
        check_widths(config, options, store.source)
        source = LayerSource.open(store, config)
        identity = Manifest(source.fingerprint(), options)
        return cls(source, options, plan_files(config, options), identity)

    @property
    def source_bytes(self) -> int:
        return sum(plan.source_bytes(self.source) for plan in self.files)

    def progress_in(self, folder: Path) -> Manifest | None:
        """How far this very work is in ``folder``; None where it holds no such work or other.

        Files that the manifest lists are there and were complete when they were listed.
        """
        try:
            manifest = read_manifest(folder)
        except CheckpointError:
            return None
        known = {plan.name for plan in self.files}
        if not manifest.same_work(self.identity) or not known.issuperset(manifest.files):
            return None
        if not all((folder / name).is_file() for name in manifest.files):
            return None
        return manifest

    def is_finished_in(self, folder: Path) -> bool:
        """Whether nothing is left to do in ``folder``."""
        manifest = self.progress_in(folder)
        return (
            manifest is not None
            and len(manifest.files) == len(self.files)
            and (folder / INDEX).is_file()
            and (folder / CONFIG).is_file()
        )

    def run(self, folder: Path, progress: Progress) -> LayerErrors:
        """Make what is missing in ``folder``; the errors of all layers.

        A file is listed in the manifest after it has its final name; whatever stops this, the next
        run keeps the listed files and makes the others again. Raises ``CheckpointError`` naming
        ``folder`` if it holds other things, or file and key on values that are not finite;
        ``OSError`` where it cannot write.
        """
        folder.mkdir(parents=True, exist_ok=True)
        manifest = self.progress_in(folder)
        self._check_contents(folder, begun=manifest is not None)
        if manifest is None:
            manifest = self.identity
            write_manifest(manifest, folder)
        for plan in self.files:
            if plan.name in manifest.files:
                progress(plan.source_bytes(self.source))
                continue
            errors = self._write_file(plan, folder, progress)
            manifest = manifest.with_file(plan.name, errors)
            write_manifest(manifest, folder)
        config = json.dumps(self.source.config.to_diffusers(), indent=2) + "\n"
        replace_text(folder / CONFIG, config)
        replace_text(folder / INDEX, index_text(self.files, self.source))
        return manifest.errors

    def _check_contents(self, folder: Path, begun: bool) -> None:
        """Only what a run of this work leaves may be there: nothing else gets into the result."""
        names = {MANIFEST, CONFIG, INDEX, *(plan.name for plan in self.files)} if begun else set()
        partial = {f"{name}.partial" for name in names | {MANIFEST}}
        for path in sorted(folder.iterdir()):
            if path.name not in names | partial:
                raise CheckpointError(
                    f"{folder}: holds {path.name}, which is not of this checkpoint with these "
                    "options; remove it, or choose another destination"
                )

    def _write_file(self, plan: FilePlan, folder: Path, progress: Progress) -> LayerErrors:
        errors: dict[str, LayerError | None] = {}
        final = folder / plan.name
        partial = folder / (plan.name + ".partial")
        tensors = self._tensors(plan, errors, progress)
        write_tensors(partial, plan.specs(self.source), tensors)
        partial.replace(final)
        return errors

    def _tensors(
        self, plan: FilePlan, errors: dict[str, LayerError | None], progress: Progress
    ) -> Iterator[tuple[str, Tensor]]:
        """The file's tensors, one parameter in memory at a time; fills ``errors``."""
        for name in plan.parameters:
            yield name, self.source.read(name)
            progress(self.source.nbytes(name))
        for layer in plan.layers:
            result = self.source.quantize(layer, self.options.limit)
            errors[layer] = result.error
            yield codes_name(layer), result.weight.codes
            yield scales_name(layer), result.weight.scales
            del result  # else the next layer would be made beside it
            progress(self.source.nbytes(f"{layer}.weight"))
