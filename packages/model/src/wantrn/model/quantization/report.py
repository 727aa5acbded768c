"""What quantizing has cost, as a table."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from wantrn.model.quantization.layer import LayerError
from wantrn.model.quantization.state import LayerErrors

_KEPT = "codes of the checkpoint, kept as they are"


def report_text(experts: Mapping[str, LayerErrors]) -> str:
    """One line a layer, one for the mean of each kind of layer and one for all, by expert."""
    lines = [
        "relative error of an output channel (RMS over channels) where each channel has a scale,",
        "and where each matrix has one",
    ]
    for expert, errors in experts.items():
        if expert != ".":
            lines += ["", expert]
        lines += _table(errors)
        lines += ["", *_table(_means(errors))]
    return "\n".join(lines)


def _table(errors: LayerErrors) -> list[str]:
    width = max(map(len, errors), default=0)
    lines = [f"{'layer':<{width}}  per channel  per tensor"]
    for layer, error in errors.items():
        if error is None:
            lines.append(f"{layer:<{width}}  {_KEPT}")
        else:
            lines.append(f"{layer:<{width}}  {error.per_channel:>11.3%}  {error.per_tensor:>10.3%}")
    return lines


def _means(errors: LayerErrors) -> dict[str, LayerError | None]:
    """By what a layer is called within its block; None where all of them were kept."""
    kinds: dict[str, list[LayerError | None]] = {}
    for layer, error in errors.items():
        kinds.setdefault(layer.split(".", 2)[2], []).append(error)
    means = {f"all {kind}": _mean(values) for kind, values in kinds.items()}
    return {**means, "all layers": _mean(errors.values())}


def _mean(errors: Iterable[LayerError | None]) -> LayerError | None:
    known = [error for error in errors if error is not None]
    if not known:
        return None
    count = len(known)
    return LayerError(
        math.fsum(error.per_channel for error in known) / count,
        math.fsum(error.per_tensor for error in known) / count,
    )
