"""Reading parts of tensors: the values of the whole ones, and no other bytes."""

from __future__ import annotations

import math
import tempfile
from pathlib import Path

import pytest
import torch
from checkpoint_files import write_file
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from wantrn.model.checkpoints import Slice, TensorStore, load_module
from wantrn.model.errors import CheckpointError

DTYPES = (torch.float32, torch.bfloat16, torch.float8_e4m3fn, torch.int64, torch.bool)


@st.composite
def shapes_and_slices(draw: st.DrawFn) -> tuple[tuple[int, ...], Slice]:
    shape = tuple(draw(st.lists(st.integers(1, 9), min_size=1, max_size=4)))
    axis = draw(st.integers(0, len(shape) - 1))
    begin = draw(st.integers(0, shape[axis] - 1))
    end = draw(st.integers(begin + 1, shape[axis]))
    return shape, Slice(axis, begin, end, shape[axis])


@settings(max_examples=150, deadline=None)
@given(shapes_and_slices(), st.sampled_from(DTYPES))
def test_a_part_is_the_slice_of_the_whole(
    chosen: tuple[tuple[int, ...], Slice], dtype: torch.dtype
) -> None:
    shape, part = chosen
    values = torch.arange(1, math.prod(shape) + 1).reshape(shape).to(dtype)
    others = {"before": torch.ones(3, dtype=torch.uint8), "behind": torch.ones(2)}
    with tempfile.TemporaryDirectory() as folder:
        file = write_file(Path(folder) / "t.safetensors", {"values": values, **others})
        store = TensorStore.open(file)
        read = store.load("values", part)
        everything = store.load("values")
    expected = values.narrow(part.axis, part.begin, part.end - part.begin).contiguous()
    assert read.dtype == everything.dtype == dtype
    # bytes, since not every operator knows float8
    assert torch.equal(read.view(torch.uint8), expected.view(torch.uint8))
    assert torch.equal(everything.view(torch.uint8), values.view(torch.uint8))


def test_a_tensor_without_values_and_a_scalar(tmp_path: Path) -> None:
    tensors = {"empty": torch.empty(0, 4), "scalar": torch.tensor(2.5)}
    store = TensorStore.open(write_file(tmp_path / "t.safetensors", tensors))
    assert store.load("empty").shape == (0, 4)
    assert store.load("empty", Slice(1, 0, 2, 4)).shape == (0, 2)
    assert torch.equal(store.load("scalar"), tensors["scalar"])


def test_refuses_a_part_that_is_none(tmp_path: Path) -> None:
    file = write_file(tmp_path / "t.safetensors", {"a": torch.zeros(4, 6)})
    store = TensorStore.open(file)
    for part in (Slice(0, 0, 2, 6), Slice(2, 0, 2, 6)):
        with pytest.raises(ValueError, match=r"\[4, 6\]"):
            store.load("a", part)
    with pytest.raises(CheckpointError, match="no tensor 'b'"):
        store.load("b")


@pytest.mark.parametrize(
    ("axis", "begin", "end", "size", "word"),
    [
        (-1, 0, 1, 4, "axis"),
        (0, -1, 1, 4, "begin"),
        (0, 4, 5, 4, "begin"),
        (0, 2, 2, 4, "end"),
        (0, 2, 5, 4, "end"),
    ],
)
def test_refuses_a_range_outside_of_its_axis(
    axis: int, begin: int, end: int, size: int, word: str
) -> None:
    with pytest.raises(ValueError, match=word):
        Slice(axis, begin, end, size)


def test_equal_parts() -> None:
    assert [Slice.part(1, 12, 3, index) for index in range(3)] == [
        Slice(1, 0, 4, 12),
        Slice(1, 4, 8, 12),
        Slice(1, 8, 12, 12),
    ]
    with pytest.raises(ValueError, match="parts must divide the 12 .* got 5"):
        Slice.part(0, 12, 5, 0)
    for index in (-1, 3):
        with pytest.raises(ValueError, match=f"index must be 0 to 2, got {index}"):
            Slice.part(0, 12, 3, index)


@pytest.mark.parametrize("change", ["gone", "shorter", "replaced"])
def test_notices_that_a_file_has_changed(tmp_path: Path, change: str) -> None:
    file = write_file(tmp_path / "t.safetensors", {"a": torch.zeros(4, 6)})
    store = TensorStore.open(file)
    match change:
        case "gone":
            file.unlink()
        case "shorter":
            file.write_bytes(file.read_bytes()[:-8])
        case "replaced":
            other = write_file(tmp_path / "other" / "t.safetensors", {"a": torch.ones(4, 6)})
            other.rename(file)
    with pytest.raises(CheckpointError, match=r"t\.safetensors: a: "):
        store.load("a", Slice(1, 0, 3, 6))


class Layers(nn.Module):
    """Two layers of which a rank may have a part, and a table of the other's name."""

    def __init__(self, cut: int = 1) -> None:
        super().__init__()
        self.up = nn.Linear(6, 8 // cut)
        self.down = nn.Linear(8 // cut, 6)
        self.table = nn.Embedding(5, 6)
        self.alias = nn.Embedding(5, 6)


def slices_of(cut: int, index: int) -> dict[str, Slice]:
    return {
        "up.weight": Slice.part(0, 8, cut, index),
        "up.bias": Slice.part(0, 8, cut, index),
        "down.weight": Slice.part(1, 8, cut, index),
    }


def write_layers(folder: Path) -> TensorStore:
    tensors = {name: t.data for name, t in Layers().named_parameters() if "alias" not in name}
    return TensorStore.open(write_file(folder / "layers.safetensors", tensors))


@pytest.mark.parametrize("cut", [1, 2, 4])
def test_a_module_takes_its_parts(tmp_path: Path, cut: int) -> None:
    store = write_layers(tmp_path)
    modules = []
    for index in range(cut):
        with torch.device("meta"):
            module = Layers(cut)
        slices = slices_of(cut, index)
        tied = {"alias.weight": "table.weight"}
        load_module(module, store, torch.float32, tied=tied, slices=slices.get)
        modules.append(module)
    for name, part in slices_of(cut, 0).items():
        joined = torch.cat([module.get_parameter(name) for module in modules], part.axis)
        assert torch.equal(joined, store.read(name))
    for module in modules:
        assert torch.equal(module.down.bias, store.read("down.bias"))
        assert module.alias.weight is module.table.weight


def test_a_module_of_parts_checks_whole_shapes(tmp_path: Path) -> None:
    tensors = {name: t.data for name, t in Layers().named_parameters() if "alias" not in name}
    tensors["down.weight"] = tensors["down.weight"][:, :4]  # what the rank has, not the whole
    store = TensorStore.open(write_file(tmp_path / "layers.safetensors", tensors))
    tied = {"alias.weight": "table.weight"}
    with pytest.raises(CheckpointError, match=r"down\.weight \[6, 4\], expected \[6, 8\]"):
        load_module(Layers(2), store, torch.float32, tied=tied, slices=slices_of(2, 0).get)
    with pytest.raises(ValueError, match=r"slices: up\.weight: .*\[8, 6\]"):
        load_module(Layers(1), store, torch.float32, tied=tied, slices=slices_of(2, 0).get)
