"""What a checkpoint is and what it lacks, from JSON files and tensor headers: no data is read."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from wantrn.model.checkpoints import TensorStore, infer_config
from wantrn.model.checkpoints.formats import detect_format
from wantrn.model.checkpoints.key_maps import KeyDifferences
from wantrn.model.checkpoints.load import module_differences
from wantrn.model.checkpoints.source import TransformerSource
from wantrn.model.config import WanConfig
from wantrn.model.dit_config import read_dit_config
from wantrn.model.errors import CheckpointError
from wantrn.model.info import ModelInfo, ModelKind, read_model_info
from wantrn.model.json_file import read_json
from wantrn.model.quantization.headers import FORMAT_NAME, QuantizedHeaders
from wantrn.model.quantization.recognise import is_quantized
from wantrn.model.schedulers import checkpoint_shift
from wantrn.model.text import TIED_PARAMETERS, meta_text_encoder
from wantrn.model.vae import meta_autoencoder

INDEX_FILE = "model_index.json"

# The components of a Wan2.2 pipeline, in the order of the report, with the classes that we run;
# None where the component's own files decide.
_CLASSES: Mapping[str, str | None] = {
    "transformer": "WanTransformer3DModel",
    "transformer_2": "WanTransformer3DModel",
    "vae": "AutoencoderKLWan",
    "text_encoder": "UMT5EncoderModel",
    "tokenizer": None,
    "scheduler": None,
}
_OPTIONAL = ("transformer_2",)
_VOCABULARIES = ("tokenizer.json", "spiece.model")  # either will do


@dataclass(frozen=True)
class ComponentReport:
    """One component; fields without a meaning for it, or unknown, are None or empty."""

    name: str
    class_name: str | None = None
    format: str | None = None
    files: tuple[Path, ...] = ()
    bytes: int = 0  # of all files
    parameters: int = 0  # numbers in all tensors; scales and markers do not count
    dtypes: Mapping[str, int] = field(default_factory=dict)  # dtype to number of tensors
    missing: tuple[str, ...] = ()
    unexpected: tuple[str, ...] = ()
    misshaped: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()  # all that is wrong, the three above included


@dataclass(frozen=True)
class CheckpointReport:
    """A whole checkpoint, or one transformer."""

    path: Path
    kind: ModelKind | None  # None where the files do not tell
    components: tuple[ComponentReport, ...]
    general_problems: tuple[str, ...] = ()  # those of no single component

    @property
    def problems(self) -> tuple[str, ...]:
        """Everything that keeps the checkpoint from loading; empty when it is complete."""
        return self.general_problems + tuple(
            f"{component.name}: {problem}"
            for component in self.components
            for problem in component.problems
        )

    def text(self) -> str:
        """A table of the components, then the problems, one a line."""
        kind = "unknown" if self.kind is None else self.kind.value
        rows: list[tuple[str, ...]] = [
            ("component", "class", "format", "parameters", "dtypes", "size", "files"),
            *map(_row, self.components),
        ]
        total = sum(component.parameters for component in self.components)
        size = sum(component.bytes for component in self.components)
        rows.append(("total", "", "", f"{total:,}", "", _size(size), ""))
        problems = [f"  {problem}" for problem in self.problems]
        verdict = f"problems: {len(problems)}" if problems else "complete: nothing is missing"
        return "\n".join(
            [f"checkpoint: {self.path}", f"kind: {kind}", "", *_align(rows), "", verdict, *problems]
        )


def inspect_checkpoint(path: Path) -> CheckpointReport:
    """Report on a checkpoint folder in diffusers' layout, or on one transformer.

    ``path`` is a folder with ``model_index.json``, or a ``.safetensors`` file or a folder of them
    (then taken as a transformer). Faults go into the report. Raises ``CheckpointError`` only if
    ``path`` does not exist.
    """
    if path.is_file() or (path.is_dir() and not _has_components(path)):
        return _inspect_single(path)
    if not path.is_dir():
        raise CheckpointError(f"{path}: no such file or folder")
    info, index, general = _read_index(path)
    components = []
    for name, expected in _CLASSES.items():
        entry = index.get(name)
        folder = path / name
        if isinstance(entry, list) and len(entry) == 2 and entry[1] is not None:
            components.append(_inspect_named(folder, str(entry[1]), expected))
        elif folder.is_dir():
            problem = f"{folder}: is not in {INDEX_FILE}"
            components.append(ComponentReport(name, problems=(problem,)))
        elif name not in _OPTIONAL:
            components.append(ComponentReport(name, problems=(f"{folder}: is missing",)))
    texts = {problem for component in components for problem in component.problems}
    general = tuple(problem for problem in general if problem not in texts)
    return CheckpointReport(path, info.kind if info else None, tuple(components), general)


def _has_components(folder: Path) -> bool:
    return (folder / INDEX_FILE).exists() or any((folder / name).is_dir() for name in _CLASSES)


def _read_index(path: Path) -> tuple[ModelInfo | None, Mapping[str, Any], tuple[str, ...]]:
    """What the model index says, as far as it can be read, and what is wrong with it."""
    problems = []
    info = None
    index: dict[str, Any] = {}
    try:
        index = read_json(path / INDEX_FILE)
        info = read_model_info(path)
    except CheckpointError as error:
        problems.append(str(error))
    unknown = [
        name
        for name, entry in index.items()
        if name not in _CLASSES and isinstance(entry, list) and any(entry)
    ]
    problems += [f"{path / INDEX_FILE}: {name} is no component of Wan2.2" for name in unknown]
    return info, index, tuple(problems)


def _inspect_single(path: Path) -> CheckpointReport:
    """A transformer by itself."""
    name = "transformer"
    if path.is_dir() and is_quantized(path):
        component = _inspect_quantized(path, name)
        kind = None if component.problems else _kind(read_dit_config(path))
        return CheckpointReport(path, kind, (component,))
    try:
        store = TensorStore.open(path)
    except CheckpointError as error:
        return CheckpointReport(path, None, (ComponentReport(name, problems=(str(error),)),))
    try:
        if path.is_dir() and (path / "config.json").exists():
            config = read_dit_config(path)
        else:
            config = infer_config(store, detect_format(store))
    except CheckpointError as error:
        component = replace(_describe(name, None, None, store), problems=(str(error),))
        return CheckpointReport(path, None, (component,))
    return CheckpointReport(path, _kind(config), (_inspect_transformer(name, path, config),))


def _kind(config: WanConfig) -> ModelKind | None:
    """The kind by channels, which no model index tells here; those of the released models."""
    kinds = {(16, 16): ModelKind.T2V, (36, 16): ModelKind.I2V, (48, 48): ModelKind.TI2V}
    return kinds.get((config.in_channels, config.out_channels))


def _inspect_named(folder: Path, class_name: str, expected: str | None) -> ComponentReport:
    """A component that the model index names with ``class_name``."""
    name = folder.name
    if not folder.is_dir():
        return ComponentReport(name, class_name, problems=(f"{folder}: is missing",))
    if expected is not None and class_name != expected:
        problem = f"{folder}: is a {class_name}; Wan2.2 has {expected} here"
        return _files_report(name, class_name, folder, problem)
    try:
        match name:
            case "transformer" | "transformer_2" if is_quantized(folder):
                return _inspect_quantized(folder, name)
            case "transformer" | "transformer_2":
                return _inspect_transformer(name, folder, read_dit_config(folder))
            case "vae":
                return _inspect_module(
                    folder, class_name, "diffusers", meta_autoencoder(folder), {}
                )
            case "text_encoder":
                module = meta_text_encoder(folder)
                return _inspect_module(folder, class_name, "transformers", module, TIED_PARAMETERS)
            case "tokenizer":
                _check_tokenizer(folder)
            case "scheduler":
                _check_scheduler(folder)
    except CheckpointError as error:
        return _files_report(name, class_name, folder, str(error))
    return _files_report(name, class_name, folder)


def _inspect_quantized(folder: Path, name: str) -> ComponentReport:
    """A transformer that ``wantrn quantize`` has written."""
    class_name = _CLASSES["transformer"]
    try:
        headers = QuantizedHeaders.open(folder)
    except CheckpointError as error:
        return replace(_files_report(name, str(class_name), folder, str(error)), format=FORMAT_NAME)
    component = _describe(name, class_name, FORMAT_NAME, headers.store, headers.scales)
    return _with_differences(component, folder, headers.differences(), headers.problems())


def _inspect_transformer(name: str, path: Path, config: WanConfig) -> ComponentReport:
    store = TensorStore.open(path)
    class_name = _CLASSES["transformer"]
    try:
        source = TransformerSource.match(store, config)
    except CheckpointError as error:
        return replace(_describe(name, class_name, None, store), problems=(str(error),))
    component = _describe(name, class_name, source.format.value, store, source.auxiliary)
    dtype_problems = []
    for key in source.keys.values():
        try:
            if key in store.tensors:
                source.check_dtype(key)
        except CheckpointError as error:
            dtype_problems.append(str(error))
    return _with_differences(component, path, source.differences(config), dtype_problems)


def _inspect_module(
    folder: Path,
    class_name: str,
    format: str,
    module: torch.nn.Module,
    tied: Mapping[str, str],
) -> ComponentReport:
    store = TensorStore.open(folder)
    component = _describe(folder.name, class_name, format, store)
    return _with_differences(component, folder, module_differences(module, store, tied))


def _check_tokenizer(folder: Path) -> None:
    read_json(folder / "tokenizer_config.json")
    if not any((folder / name).is_file() for name in _VOCABULARIES):
        raise CheckpointError(f"{folder}: has neither {' nor '.join(_VOCABULARIES)}")


def _check_scheduler(folder: Path) -> None:
    file = folder / "scheduler_config.json"
    try:
        checkpoint_shift(read_json(file))
    except CheckpointError as error:
        text = str(error)
        raise CheckpointError(text if str(file) in text else f"{file}: {text}") from error


def _files_report(
    name: str, class_name: str, folder: Path, problem: str | None = None
) -> ComponentReport:
    files = tuple(sorted(path for path in folder.rglob("*") if path.is_file()))
    return ComponentReport(
        name,
        class_name,
        files=files,
        bytes=sum(file.stat().st_size for file in files),
        problems=() if problem is None else (problem,),
    )


def _describe(
    name: str,
    class_name: str | None,
    format: str | None,
    store: TensorStore,
    auxiliary: frozenset[str] = frozenset(),
) -> ComponentReport:
    tensors = [info for key, info in store.tensors.items() if key not in auxiliary]
    return ComponentReport(
        name,
        class_name,
        format,
        files=store.files,
        bytes=sum(file.stat().st_size for file in store.files),
        parameters=sum(math.prod(info.shape) for info in tensors),
        dtypes=dict(Counter(str(info.dtype).removeprefix("torch.") for info in tensors)),
    )


def _with_differences(
    component: ComponentReport,
    path: Path,
    differences: KeyDifferences,
    others: Iterable[str] = (),
) -> ComponentReport:
    problems = [f"{path}: {problem}" for problem in differences.problems()]
    return replace(
        component,
        missing=differences.missing,
        unexpected=differences.unexpected,
        misshaped=differences.misshaped,
        problems=(*problems, *others),
    )


def _row(component: ComponentReport) -> tuple[str, ...]:
    return (
        component.name,
        component.class_name or "?",
        component.format or "-",
        f"{component.parameters:,}" if component.parameters else "-",
        ", ".join(component.dtypes) or "-",
        _size(component.bytes),
        str(len(component.files)),
    )


def _align(rows: list[tuple[str, ...]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]


def _size(number: int) -> str:
    value = float(number)
    for unit in ("B", "kB", "MB"):
        if value < 1000:
            return f"{value:.4g} {unit}"
        value /= 1000
    return f"{value:.4g} GB"
