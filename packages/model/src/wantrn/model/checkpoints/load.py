"""From files to the parameters of a module: all of them, or an error."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch

from wantrn.model.checkpoints.key_maps import KeyDifferences, compare_shapes
from wantrn.model.checkpoints.native import assemble, native_parameters
from wantrn.model.checkpoints.source import PLAIN_DTYPES, TransformerSource
from wantrn.model.checkpoints.tensor_store import TensorStore
from wantrn.model.checkpoints.values import convert
from wantrn.model.config import WanConfig
from wantrn.model.errors import CheckpointError
from wantrn.model.sharding import WHOLE, Shard, Sharding, slices_of
from wantrn.model.slices import Slice


def load_transformer_state(
    store: TensorStore,
    config: WanConfig,
    parameter_dtype: Callable[[str], torch.dtype],
    shard: Shard = WHOLE,
) -> dict[str, torch.Tensor]:
    """All parameters of our transformer, from a store in any known format.

    ``parameter_dtype(native name)`` is the dtype of each. Names, shapes and dtypes are checked
    before any data is read. Parameters are made one at a time, none shares memory with a file.
    With a ``shard`` they are what one rank has of each (see ``sharding``), and only the bytes of
    that are read.

    Raises ``CheckpointError`` naming file and key if anything is missing, unexpected, misshaped or
    (in what is read) not finite; ``ValueError`` if ``parameter_dtype`` asks for what is not plain
    floating point, or if ``shard`` cannot cut a transformer of ``config``.
    """
    parameters = native_parameters(config)
    dtypes = {name: parameter_dtype(name) for name in parameters}
    for name, dtype in dtypes.items():
        _check_target(name, dtype)
    heads = len(shard.heads(config))
    source = TransformerSource.open(store, config)
    return {
        name: assemble(parameter, _reader(source, dtypes[name], shard.sharding(name), shard), heads)
        for name, parameter in parameters.items()
    }


def _reader(
    source: TransformerSource, dtype: torch.dtype, sharding: Sharding, shard: Shard
) -> Callable[[str], torch.Tensor]:
    """Reads a rank's part of the canonical tensors that make one native parameter."""
    # Q, K and V are tensors by themselves here, each cut by output features.
    own = Sharding.COLUMN if sharding is Sharding.QKV else sharding

    def read(canonical: str) -> torch.Tensor:
        slices = slices_of(source.shape(canonical), own, shard)
        part = slices[0] if slices else None
        return convert(source.load(canonical, part), dtype, source.where(canonical))

    return read


def never(name: str) -> bool:
    """No parameter is kept in float32."""
    return False


def whole(name: str) -> Slice | None:
    """Every parameter is the whole tensor."""
    return None


def load_module(
    module: torch.nn.Module,
    store: TensorStore,
    dtype: torch.dtype,
    keep_fp32: Callable[[str], bool] = never,
    tied: Mapping[str, str] | None = None,
    slices: Callable[[str], Slice | None] = whole,
) -> None:
    """Assign every parameter and persistent buffer of ``module``, on the meta device or not.

    Floating-point tensors become ``dtype``, or float32 where ``keep_fp32(name)``; others must be
    stored in the dtype they have. ``tied`` maps the name of an alias to the name it shares one
    tensor with: the store may hold either or both (then equal); both get the same parameter.
    ``slices`` gives, by name in the module, the part of the store's tensor that the module has, or
    None for all of it; only the bytes of the part are read. It is not asked for aliases.

    Raises ``CheckpointError`` naming file and key if anything is missing, unexpected, misshaped or
    (in the parts that are read) not finite; the module is then as it was. Raises ``ValueError`` if
    ``tied`` names what the module lacks, if a slice has not the shape of its parameter, or if a
    buffer that is never saved is on the meta device, as no file can fill it.
    """
    _check_target("the module", dtype)
    ties = dict(tied or {})
    targets = module.state_dict(keep_vars=True)
    _check_module(module, targets, ties)
    module_differences(module, store, ties, slices).check(store.source)
    _check_equal_aliases(store, ties)
    found = _spellings(store, targets, ties)

    def read(name: str, target: torch.Tensor) -> torch.Tensor:
        wanted = torch.float32 if keep_fp32(name) else dtype
        kept = wanted if target.is_floating_point() else target.dtype
        return _read(store, found[name], kept, slices(name))

    loaded = {name: read(name, target) for name, target in targets.items() if name not in ties}
    fresh = {
        name: torch.nn.Parameter(tensor, targets[name].requires_grad)
        if isinstance(targets[name], torch.nn.Parameter)
        else tensor
        for name, tensor in loaded.items()
    }
    for name in targets:
        _assign(module, name, fresh[ties.get(name, name)])


def module_differences(
    module: torch.nn.Module,
    store: TensorStore,
    tied: Mapping[str, str],
    slices: Callable[[str], Slice | None] = whole,
) -> KeyDifferences:
    """Where ``store`` departs from the parameters and persistent buffers of ``module``.

    ``tied`` and ``slices`` as in ``load_module``. Names are those of the store, shapes those of
    whole tensors; no data is read.
    """
    targets = module.state_dict()
    found = _spellings(store, targets, tied)
    expected = {
        found.get(name, name): _whole_shape(name, target, slices(name))
        for name, target in targets.items()
        if name not in tied
    }
    used = set(found.values())
    present = {
        name: info.shape for name, info in store.tensors.items() if name not in tied or name in used
    }
    return compare_shapes(expected, present)


def _check_target(name: str, dtype: torch.dtype) -> None:
    if dtype not in PLAIN_DTYPES:
        allowed = ", ".join(map(str, PLAIN_DTYPES))
        raise ValueError(f"dtype of {name} is {dtype}; allowed are {allowed}")


def _check_module(
    module: torch.nn.Module, targets: Mapping[str, torch.Tensor], ties: Mapping[str, str]
) -> None:
    for name in (*ties, *ties.values()):
        if name not in targets:
            raise ValueError(f"tied: the module has no {name}")
    for alias, target in ties.items():
        if target in ties:
            raise ValueError(f"tied: {alias} is tied to {target}, which is an alias itself")
        if targets[alias].shape != targets[target].shape:
            raise ValueError(f"tied: {alias} and {target} differ in shape")
    for name, buffer in module.named_buffers():
        if buffer.is_meta and name not in targets:
            raise ValueError(
                f"{name} is not saved in checkpoints and on the meta device; build it with data"
            )


def _spellings(
    store: TensorStore, targets: Mapping[str, torch.Tensor], ties: Mapping[str, str]
) -> dict[str, str]:
    """Name in the module to name in the store, aliases resolved; absent names are left out."""
    found = {name: name for name in targets if name in store.tensors and name not in ties}
    for alias, name in ties.items():
        if alias in store.tensors:
            found.setdefault(name, alias)
    return found


def _check_equal_aliases(store: TensorStore, ties: Mapping[str, str]) -> None:
    groups: dict[str, list[str]] = {}
    for alias, name in ties.items():
        groups.setdefault(name, [name]).append(alias)
    for group in groups.values():
        first, *others = [name for name in group if name in store.tensors]
        for other in others:
            same_kind = (store.info(first).dtype, store.info(first).shape) == (
                store.info(other).dtype,
                store.info(other).shape,
            )
            if not same_kind or not torch.equal(store.read(first), store.read(other)):
                raise CheckpointError(
                    f"{store.info(other).file}: {other} differs from {first}, with which it is tied"
                )


def _whole_shape(name: str, target: torch.Tensor, part: Slice | None) -> tuple[int, ...]:
    shape = tuple(target.shape)
    if part is None:
        return shape
    try:
        return part.whole_shape(shape)
    except ValueError as error:
        raise ValueError(f"slices: {name}: {error}") from None


def _read(store: TensorStore, name: str, dtype: torch.dtype, part: Slice | None) -> torch.Tensor:
    info = store.info(name)
    where = f"{info.file}: {name}"
    if dtype.is_floating_point:
        if info.dtype not in PLAIN_DTYPES:
            raise CheckpointError(f"{where}: is {info.dtype}, expected plain floating point")
        return convert(store.load(name, part), dtype, where)
    if info.dtype != dtype:
        raise CheckpointError(f"{where}: is {info.dtype}, expected {dtype}")
    return store.load(name, part)


def _assign(module: torch.nn.Module, name: str, value: torch.Tensor) -> None:
    parent, _, leaf = name.rpartition(".")
    setattr(module.get_submodule(parent), leaf, value)
