"""TensorStore: what it opens, and everything that it must refuse."""

from __future__ import annotations

import json
import pickle
import re
from pathlib import Path

import pytest
import torch
from checkpoint_files import write_file, write_raw, write_shards
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from wantrn.model.checkpoints.tensor_store import PICKLE_SUFFIXES, TensorStore
from wantrn.model.errors import CheckpointError

A = torch.arange(6, dtype=torch.float32).reshape(2, 3)
B = torch.tensor([1.5, -2.0], dtype=torch.bfloat16)
SCALAR = torch.tensor(3.0)
CODES = torch.tensor([1.0, 448.0, -0.5]).to(torch.float8_e4m3fn)
ENTRY = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}

shared_folder = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def refused(path: Path, *words: str) -> str:
    """Opening fails, and the text has all ``words``."""
    with pytest.raises(CheckpointError) as caught:
        TensorStore.open(path)
    text = str(caught.value)
    for word in words:
        assert word in text, f"{word!r} not in {text!r}"
    return text


def test_reads_what_was_written(tmp_path: Path) -> None:
    tensors = {"a": A, "b": B, "scalar": SCALAR, "codes": CODES, "empty": torch.zeros(0, 4)}
    file = write_file(tmp_path / "model.safetensors", tensors)
    for path in (file, tmp_path):
        store = TensorStore.open(path)
        assert set(store.names) == set(tensors)
        assert store.files == (file,)
        for name, tensor in tensors.items():
            info = store.info(name)
            assert (info.dtype, info.shape) == (tensor.dtype, tuple(tensor.shape))
            assert (info.file, info.nbytes) == (file, tensor.nbytes)
            assert torch.equal(store.read(name).float(), tensor.float())


def test_reads_shards_by_their_index(tmp_path: Path) -> None:
    write_shards(tmp_path, {"s-1.safetensors": {"a": A}, "s-2.safetensors": {"b": B, "c": A}})
    (tmp_path / "config.json").write_text("{}")
    for path in (tmp_path, tmp_path / "diffusion_pytorch_model.safetensors.index.json"):
        store = TensorStore.open(path)
        assert set(store.names) == {"a", "b", "c"}
        assert store.info("b").file == tmp_path / "s-2.safetensors"
        assert torch.equal(store.read("a"), A) and torch.equal(store.read("b"), B)


def test_users_cannot_change_a_store(tmp_path: Path) -> None:
    store = TensorStore.open(write_file(tmp_path / "m.safetensors", {"a": A}))
    with pytest.raises(TypeError):
        store.tensors["a"] = store.info("a")  # type: ignore[index]
    with pytest.raises(AttributeError):
        store.source = tmp_path  # type: ignore[misc]
    shapes = store.shapes
    shapes.clear()
    assert store.names == ("a",)


def test_names_an_absent_tensor(tmp_path: Path) -> None:
    file = write_file(tmp_path / "m.safetensors", {"a": A})
    store = TensorStore.open(file)
    for act in (store.info, store.read):
        with pytest.raises(CheckpointError, match="'b'") as caught:
            act("b")
        assert str(file) in str(caught.value)


@given(kept=st.integers(0, 10_000))
@shared_folder
def test_refuses_a_truncated_file_wherever_it_ends(tmp_path: Path, kept: int) -> None:
    whole = write_file(tmp_path / "whole.safetensors", {"a": A, "b": B}).read_bytes()
    cut = tmp_path / "cut.safetensors"
    cut.write_bytes(whole[: kept % len(whole)])
    refused(cut, "cut.safetensors")


def test_names_the_key_at_which_a_file_is_truncated(tmp_path: Path) -> None:
    file = write_file(tmp_path / "m.safetensors", {"a": A})
    file.write_bytes(file.read_bytes()[:-1])
    refused(file, "m.safetensors", "a: truncated")


@given(position=st.integers(0, 10_000), value=st.integers(0, 255))
@shared_folder
def test_a_damaged_header_is_an_error_or_harmless(
    tmp_path: Path, position: int, value: int
) -> None:
    file = write_file(tmp_path / "damaged.safetensors", {"a": A, "b": B})
    data = bytearray(file.read_bytes())
    header_end = 8 + int.from_bytes(data[:8], "little")
    data[position % header_end] = value
    file.write_bytes(data)
    try:
        store = TensorStore.open(file)
        for name in store.names:
            store.read(name)
    except CheckpointError as error:
        assert "damaged.safetensors" in str(error)


@pytest.mark.parametrize(
    ("header", "data", "words"),
    [
        (b"", b"", ["not valid JSON"]),
        (b"{", b"", ["not valid JSON"]),
        (b"\xff\xfe", b"", ["not valid JSON"]),
        (b"[" * 100_000, b"", ["not valid JSON"]),
        (b"[]", b"", ["not a JSON object"]),
        (b'{"a": 1, "a": 2}', b"", ["'a' occurs twice"]),
        ({}, b"", ["no tensor"]),
        ({"__metadata__": {"format": "pt"}}, b"", ["no tensor"]),
        ({"__metadata__": 3}, b"", ["__metadata__"]),
        ({"a": 1}, b"", ["a: ", "not an object"]),
        ({"a": ENTRY | {"dtype": "F4"}}, bytes(8), ["a: ", "'F4'"]),
        ({"a": ENTRY | {"dtype": ["F32"]}}, bytes(8), ["a: ", "dtype"]),
        ({"a": ENTRY | {"shape": [-2]}}, bytes(8), ["a: ", "[-2]"]),
        ({"a": ENTRY | {"shape": [True, 2]}}, bytes(8), ["a: ", "shape"]),
        ({"a": ENTRY | {"shape": 2}}, bytes(8), ["a: ", "shape"]),
        ({"a": ENTRY | {"data_offsets": [0]}}, bytes(8), ["a: ", "data_offsets"]),
        ({"a": ENTRY | {"data_offsets": [8, 0]}}, bytes(8), ["a: ", "8 bytes"]),
        ({"a": ENTRY | {"shape": [3]}}, bytes(8), ["a: ", "12 bytes"]),
        ({"a": {"dtype": "F32", "shape": [2]}}, bytes(8), ["a: ", "data_offsets"]),
        ({"a": ENTRY}, bytes(9), ["1 bytes after the last tensor"]),
        ({"a": ENTRY, "b": ENTRY}, bytes(8), ["b: ", "overlaps"]),
        ({"a": ENTRY, "b": ENTRY | {"data_offsets": [12, 20]}}, bytes(20), ["b: ", "gap"]),
        ({"a": ENTRY | {"data_offsets": [4, 12]}}, bytes(12), ["a: ", "gap"]),
        ({"a": ENTRY, "b": ENTRY | {"data_offsets": [8, 16]}}, bytes(12), ["b: ", "truncated"]),
    ],
)
def test_refuses_a_bad_header(
    tmp_path: Path, header: object, data: bytes, words: list[str]
) -> None:
    refused(write_raw(tmp_path / "bad.safetensors", header, data), "bad.safetensors", *words)


def test_refuses_a_header_longer_than_the_file(tmp_path: Path) -> None:
    file = tmp_path / "m.safetensors"
    file.write_bytes((50).to_bytes(8, "little") + b"{}")
    refused(file, "m.safetensors", "truncated", "50 bytes")


TWO = {"s1.safetensors": {"a": A}, "s2.safetensors": {"b": B}}


@pytest.mark.parametrize(
    ("weight_map", "words"),
    [
        ({"a": "s1.safetensors", "b": "s3.safetensors"}, ["s3.safetensors", "for b"]),
        (
            {"a": "s1.safetensors", "b": "s2.safetensors", "c": "s2.safetensors"},
            ["c is not in s2.safetensors"],
        ),
        ({"a": "s1.safetensors", "b": "../s2.safetensors"}, ["b: ", "same folder"]),
        ({"a": "s1.safetensors", "b": "/s2.safetensors"}, ["b: ", "same folder"]),
        ({"a": "s1.safetensors", "b": "x\\s2.safetensors"}, ["b: ", "same folder"]),
        ({"a": "s1.safetensors", "b": "s2.bin"}, ["b: ", "s2.bin"]),
        ({"a": "s1.safetensors", "b": 2}, ["b: "]),
        ({"a": "s2.safetensors", "b": "s1.safetensors"}, ["a is not in s2.safetensors"]),
    ],
)
def test_refuses_an_index_that_does_not_fit(
    tmp_path: Path, weight_map: dict[str, object], words: list[str]
) -> None:
    folder = write_shards(tmp_path / "m", TWO, weight_map)
    refused(folder / "diffusion_pytorch_model.safetensors.index.json", "index.json", *words)


def test_an_index_cannot_reach_a_file_outside_the_folder(tmp_path: Path) -> None:
    write_file(tmp_path / "outside.safetensors", {"b": B})
    folder = write_shards(
        tmp_path / "m", TWO, {"a": "s1.safetensors", "b": "../outside.safetensors"}
    )
    (folder / "s2.safetensors").unlink()
    refused(folder, "'../outside.safetensors'")


def test_refuses_a_tensor_that_the_index_does_not_list(tmp_path: Path) -> None:
    shards = {"s1.safetensors": {"a": A, "extra": B}}
    refused(write_shards(tmp_path, shards, {"a": "s1.safetensors"}), "extra is in s1.safetensors")


def test_refuses_a_tensor_in_two_shards(tmp_path: Path) -> None:
    shards = {"s1.safetensors": {"a": A, "b": B}, "s2.safetensors": {"b": B, "c": A}}
    refused(write_shards(tmp_path, shards), "b is in both s1.safetensors and s2.safetensors")


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"weight_map": []}', '{"weight_map": 1'])
def test_refuses_an_index_without_a_map(tmp_path: Path, text: str) -> None:
    write_shards(tmp_path, TWO)
    (tmp_path / "diffusion_pytorch_model.safetensors.index.json").write_text(text)
    refused(tmp_path, "index.json")


def test_refuses_an_index_that_names_a_tensor_twice(tmp_path: Path) -> None:
    write_shards(tmp_path, TWO)
    text = '{"weight_map": {"a": "s1.safetensors", "a": "s2.safetensors"}}'
    (tmp_path / "diffusion_pytorch_model.safetensors.index.json").write_text(text)
    refused(tmp_path, "'a' occurs twice")


def test_refuses_an_ambiguous_folder(tmp_path: Path) -> None:
    write_file(tmp_path / "one.safetensors", {"a": A})
    write_file(tmp_path / "two.safetensors", {"a": A})
    refused(tmp_path, "one.safetensors, two.safetensors", "no *.safetensors.index.json")
    write_shards(tmp_path, {"two.safetensors": {"a": A}})
    refused(tmp_path, "one.safetensors", "diffusion_pytorch_model.safetensors.index.json")
    write_shards(tmp_path, {"one.safetensors": {"a": A}}, stem="other")
    refused(tmp_path, "more than one index", "other.safetensors.index.json")


def test_refuses_what_is_not_there_and_what_it_does_not_know(tmp_path: Path) -> None:
    refused(tmp_path / "absent", "absent", "no such")
    refused(tmp_path, "no .safetensors")
    (tmp_path / "model.gguf").write_bytes(b"GGUF")
    refused(tmp_path / "model.gguf", "model.gguf")


class _Bomb:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[Path]]:
        return Path.touch, (self.path,)


@pytest.mark.parametrize("suffix", [*PICKLE_SUFFIXES, ".safetensors"])
def test_never_unpickles(tmp_path: Path, suffix: str) -> None:
    exploded = tmp_path / "exploded"
    folder = tmp_path / "m"
    folder.mkdir()
    file = folder / f"weights{suffix}"
    file.write_bytes(pickle.dumps(_Bomb(exploded)))
    for path in (file, folder):
        text = refused(path, f"weights{suffix}")
        assert suffix == ".safetensors" or re.search("pickle.*runs any code", text)
    assert not exploded.exists()


def test_a_torch_archive_under_a_false_name_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    torch.save({"a": A}, file)
    refused(file, "model.safetensors", "no safetensors file")


def test_pickles_beside_safetensors_are_left_alone(tmp_path: Path) -> None:
    write_file(tmp_path / "model.safetensors", {"a": A})
    (tmp_path / "other.pth").write_bytes(b"pickle")
    assert TensorStore.open(tmp_path).names == ("a",)


@pytest.mark.parametrize("change", ["truncate", "remove", "other shape", "other dtype"])
def test_notices_that_a_file_has_changed(tmp_path: Path, change: str) -> None:
    file = write_file(tmp_path / "m.safetensors", {"a": A})
    store = TensorStore.open(file)
    if change == "truncate":
        file.write_bytes(file.read_bytes()[:-4])
    elif change == "remove":
        file.unlink()
    else:
        write_file(file, {"a": A.reshape(3, 2) if change == "other shape" else A.double()})
    with pytest.raises(CheckpointError, match="a: ") as caught:
        store.read("a")
    assert "m.safetensors" in str(caught.value)


def test_an_index_may_carry_other_metadata(tmp_path: Path) -> None:
    write_shards(tmp_path, TWO)
    index = tmp_path / "diffusion_pytorch_model.safetensors.index.json"
    index.write_text(json.dumps(json.loads(index.read_text()) | {"metadata": {"total_size": 1}}))
    assert set(TensorStore.open(tmp_path).names) == {"a", "b"}
