"""LoRA files: each dialect, what a file says of its strength, and what is refused."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoint_files import SMALL, write_file
from diffusers.loaders import lora_conversion_utils as conversion
from lora_files import (
    BLOCK,
    Made,
    diffusers_tensors,
    kohya_tensors,
    made,
    original_tensors,
    write_lora,
)
from torch import Tensor

from wantrn.model.checkpoints.diffusers import canonical_shapes
from wantrn.model.config import WanConfig
from wantrn.model.errors import CheckpointError
from wantrn.model.lora import Lora, LoraPlan, LoraReader
from wantrn.model.sharding import Shard, join, sharding_of

CONFIG = replace(SMALL, in_channels=36)


def canonical(config: WanConfig = CONFIG) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = canonical_shapes(config)
    return {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}


@pytest.fixture(scope="module")
def lora() -> Made:
    return made(canonical(), CONFIG, differences=True)


def read(path: Path, expert: int = 0, experts: int = 1, shard: Shard | None = None) -> Lora:
    reader = LoraReader(CONFIG, lambda name: torch.float32, shard or Shard.whole())
    return reader.read(LoraPlan.open(path, CONFIG, expert, experts))


def same(one: Lora, other: Lora) -> None:
    assert one.paths.keys() == other.paths.keys()
    for layer, paths in one.paths.items():
        ours = sorted(paths, key=lambda path: (path.begin, path.down is None))
        theirs = sorted(other.paths[layer], key=lambda path: (path.begin, path.down is None))
        for a, b in zip(ours, theirs, strict=True):
            assert (a.begin, a.scale) == (b.begin, b.scale)
            assert torch.equal(a.up, b.up)
            assert (a.down is None) == (b.down is None)
            assert a.down is None or b.down is None or torch.equal(a.down, b.down)
    assert one.offsets.keys() == other.offsets.keys()
    assert all(torch.equal(one.offsets[name], other.offsets[name]) for name in one.offsets)


def test_all_dialects_give_the_same(lora: Made, tmp_path: Path) -> None:
    dialects = {
        "original": original_tensors(lora, CONFIG),
        "original, A and B": original_tensors(lora, CONFIG, pair=("A", "B")),
        "original, default": {
            key.replace("lora_down.", "lora_A.default.").replace(
                "lora_up.", "lora_B.default."
            ): value
            for key, value in original_tensors(lora, CONFIG).items()
        },
        "comfyui": original_tensors(lora, CONFIG, "diffusion_model.", ("A", "B")),
        "comfyui, long": original_tensors(lora, CONFIG, "model.diffusion_model."),
        "kohya": kohya_tensors(lora, CONFIG),
    }
    found = {
        name: read(write_file(tmp_path / f"{name}.safetensors", tensors))
        for name, tensors in dialects.items()
    }
    for other in found.values():
        same(found["original"], other)


def test_dialects_without_alpha_give_the_same(tmp_path: Path) -> None:
    lora = made(canonical(), CONFIG, alpha=None)
    dialects = {
        "original": original_tensors(lora, CONFIG),
        "kohya": kohya_tensors(lora, CONFIG),
        **{
            f"diffusers, {prefix!r}": diffusers_tensors(lora, prefix)
            for prefix in ("", "transformer.", "base_model.model.", "transformer_2.")
        },
        "diffusers, old": {
            key.replace("lora_A", "lora.down").replace("lora_B", "lora.up"): value
            for key, value in diffusers_tensors(lora).items()
        },
    }
    found = [
        read(write_file(tmp_path / f"{number}.safetensors", tensors))
        for number, tensors in enumerate(dialects.values())
    ]
    for other in found:
        same(found[0], other)
    assert all(path.scale == 1 for paths in found[0].paths.values() for path in paths)


def changes(found: Lora) -> dict[tuple[str, int], Tensor]:
    """What is added to weights, by layer and first row."""
    return {
        (layer, path.begin): path.scale * path.up.double() @ path.down.double()
        for layer, paths in found.paths.items()
        for path in paths
        if path.down is not None
    }


def test_names_and_alpha_are_as_diffusers_converts_them(tmp_path: Path) -> None:
    """The files of others, through the functions with which diffusers reads them."""
    lora = made(canonical(), CONFIG, only=lambda name: name.startswith("blocks."))
    ways: dict[str, tuple[Callable[[Any], Any], dict[str, Tensor]]] = {
        "comfyui": (
            conversion._convert_non_diffusers_wan_lora_to_diffusers,
            original_tensors(lora, CONFIG, "diffusion_model."),
        ),
        "kohya": (conversion._convert_musubi_wan_lora_to_diffusers, kohya_tensors(lora, CONFIG)),
    }
    for name, (convert, tensors) in ways.items():
        ours = changes(read(write_file(tmp_path / f"{name}.safetensors", tensors)))
        converted = convert(dict(tensors))
        theirs = changes(read(write_file(tmp_path / f"{name}-2.safetensors", converted)))
        assert len(ours) == CONFIG.num_layers * len(BLOCK)
        torch.testing.assert_close(ours, theirs)


STEM = "diffusion_model.blocks.0.self_attn.q"
H = CONFIG.hidden_size


def pair(rank: int = 2) -> dict[str, Tensor]:
    return {
        f"{STEM}.lora_down.weight": torch.ones(rank, H),
        f"{STEM}.lora_up.weight": torch.ones(H, rank),
    }


def unknown(count: int) -> dict[str, Tensor]:
    return {f"diffusion_model.blocks.0.cross_attn.k_img.{i}": torch.ones(1) for i in range(count)}


FAULTS: dict[str, tuple[dict[str, Tensor], str]] = {
    "unknown keys": (
        pair() | unknown(3),
        "3 of 5 keys are unknown: diffusion_model.blocks.0.cross_attn.k_img.0, "
        "diffusion_model.blocks.0.cross_attn.k_img.1, diffusion_model.blocks.0.cross_attn.k_img.2",
    ),
    "another prefix": (
        pair() | {"blocks.1.self_attn.q.lora_down.weight": torch.ones(2, H)},
        "1 of 3 keys are unknown: blocks.1.self_attn.q.lora_down.weight",
    ),
    "a layer too many": (
        {
            f"diffusion_model.blocks.2.self_attn.q.lora_{way}.weight": torch.ones(2, 2)
            for way in "AB"
        },
        "2 of 2 keys are unknown: diffusion_model.blocks.2.self_attn.q.lora_A.weight, "
        "diffusion_model.blocks.2.self_attn.q.lora_B.weight",
    ),
    "of the text encoder": (
        pair() | {"text_encoder.shared.lora_A.weight": torch.ones(1)},
        "1 of 3 keys are unknown: text_encoder.shared.lora_A.weight",
    ),
    "DoRA": (
        pair() | {f"{STEM}.dora_scale": torch.ones(H)},
        f"1 of 3 keys are unknown: {STEM}.dora_scale",
    ),
    "twice": (
        pair() | {f"{STEM}.lora_A.weight": torch.ones(2, H)},
        f"{STEM}.lora_A.weight and {STEM}.lora_down.weight are both for blocks.0.attn1.to_q.weight",
    ),
    "no up": (
        {f"{STEM}.lora_down.weight": torch.ones(2, H)},
        f"{STEM}.lora_down.weight: there is no up that goes with it",
    ),
    "no down": (
        {f"{STEM}.lora_up.weight": torch.ones(H, 2)},
        f"{STEM}.lora_up.weight: there is no down that goes with it",
    ),
    "alpha alone": (
        {f"{STEM}.alpha": torch.tensor(1.0)},
        f"{STEM}.alpha: there is no down that goes with it",
    ),
    "alpha of a difference": (
        {f"{STEM}.diff": torch.ones(H, H), f"{STEM}.alpha": torch.tensor(1.0)},
        f"{STEM}.alpha: there is no down that goes with it",
    ),
    "alpha of several numbers": (
        pair() | {f"{STEM}.alpha": torch.ones(2)},
        f"{STEM}.alpha [2]: must be one number",
    ),
    "ranks": (
        pair() | {f"{STEM}.lora_up.weight": torch.ones(H, 3)},
        f"{STEM}.lora_down.weight [2, {H}] and {STEM}.lora_up.weight [{H}, 3] have different ranks",
    ),
    "input": (
        pair() | {f"{STEM}.lora_down.weight": torch.ones(2, H + 1)},
        f"{STEM}.lora_down.weight [2, {H + 1}] does not fit the model, where it would be [2, {H}]",
    ),
    "output": (
        pair() | {f"{STEM}.lora_up.weight": torch.ones(H - 1, 2)},
        f"{STEM}.lora_up.weight [{H - 1}, 2] does not fit the model, where it would be [{H}, 2]",
    ),
    "difference": (
        {f"{STEM}.diff": torch.ones(H, H + 1)},
        f"{STEM}.diff [{H}, {H + 1}] does not fit the model, where it would be [{H}, {H}]",
    ),
    "difference of a bias": (
        {f"{STEM}.diff_b": torch.ones(1)},
        f"{STEM}.diff_b [1] does not fit the model, where it would be [{H}]",
    ),
    "low rank of a norm": (
        {
            "blocks.0.norm3.lora_A.weight": torch.ones(1, H),
            "blocks.0.norm3.lora_B.weight": torch.ones(H, 1),
        },
        f"blocks.0.norm3.lora_A.weight: blocks.0.norm2.weight [{H}] has no change of low rank",
    ),
    "rank too large": (
        pair(1025),
        f"{STEM}.lora_down.weight [1025, {H}]: the rank must be 1 to 1024",
    ),
    "rank zero": (pair(0), f"{STEM}.lora_down.weight [0, {H}]: the rank must be 1 to 1024"),
    "FP8": (
        {key: tensor.to(torch.float8_e4m3fn) for key, tensor in pair().items()},
        f"{STEM}.lora_down.weight: is torch.float8_e4m3fn, expected floating point",
    ),
    "nothing": ({}, "holds no tensor"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_what_does_not_fit_is_named(fault: str, tmp_path: Path) -> None:
    tensors, message = FAULTS[fault]
    file = write_file(tmp_path / "lora.safetensors", tensors)
    with pytest.raises(CheckpointError) as raised:
        LoraPlan.open(file, CONFIG)
    assert str(raised.value) == f"{file}: {message}"


def test_a_long_list_of_keys_ends_with_a_number(tmp_path: Path) -> None:
    file = write_file(tmp_path / "lora.safetensors", pair() | unknown(64))
    with pytest.raises(CheckpointError) as raised:
        LoraPlan.open(file, CONFIG)
    text = str(raised.value)
    assert "64 of 66 keys are unknown: " in text
    assert text.count("k_img") == 50
    assert text.endswith(" and 14 more")


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("key", ["lora_down.weight", "lora_up.weight", "alpha"])
def test_what_is_no_number_is_named(bad: float, key: str, tmp_path: Path) -> None:
    tensors = pair() | {f"{STEM}.alpha": torch.tensor(1.0)}
    tensors[f"{STEM}.{key}"].view(-1)[0] = bad
    file = write_file(tmp_path / "lora.safetensors", tensors)
    # on each rank, whichever has the value
    for shard in (Shard.whole(), Shard(2, 0), Shard(2, 1)):
        with pytest.raises(CheckpointError, match=f"{STEM}.{key}"):
            read(file, shard=shard)


def test_files_of_other_kinds_are_refused(tmp_path: Path) -> None:
    torch.save(pair(), tmp_path / "lora.pt")
    for name, content, fault in (
        ("lora.pt", None, "is a pickle"),
        ("lora.txt", b"x", r"neither \.safetensors nor"),
        ("short.safetensors", b"abc", "no safetensors file"),
    ):
        if content is not None:
            (tmp_path / name).write_bytes(content)
        with pytest.raises(CheckpointError, match=fault):
            LoraPlan.open(tmp_path / name, CONFIG)


def test_a_file_too_large_is_refused_by_its_header(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("wantrn.model.lora.plan.MAX_BYTES", 2 * 4 * H * 2 - 1)
    file = write_file(tmp_path / "lora.safetensors", pair())
    with pytest.raises(CheckpointError, match=f"holds {16 * H} bytes; at most {16 * H - 1}"):
        LoraPlan.open(file, CONFIG)


@pytest.mark.parametrize("replicate", [False, True])
def test_the_parts_of_ranks_make_the_whole(lora: Made, tmp_path: Path, replicate: bool) -> None:
    """B of layers cut by output features, A of layers cut by input features, and vectors."""
    file = write_lora(tmp_path / "lora.safetensors", lora, CONFIG)
    whole = read(file)
    parts = [read(file, shard=Shard(2, rank, replicate)) for rank in range(2)]
    for layer, paths in whole.paths.items():
        cut = sharding_of(f"{layer}.weight", replicate)
        for index, path in enumerate(paths):
            ups = [part.paths[layer][index].up for part in parts]
            downs = [part.paths[layer][index].down for part in parts]
            name = cut.name
            if name in ("COLUMN", "QKV"):
                assert torch.equal(torch.cat(ups), path.up)
                assert path.down is None or all(
                    torch.equal(d, path.down) for d in downs if d is not None
                )
            elif name == "ROW" and path.down is None:
                assert torch.equal(torch.cat(ups, 1), path.up)
            elif name == "ROW":
                assert path.down is not None
                assert torch.equal(torch.cat([d for d in downs if d is not None], 1), path.down)
                assert all(torch.equal(up, path.up) for up in ups)
            else:
                assert all(torch.equal(up, path.up) for up in ups)
    for name, offset in whole.offsets.items():
        pieces = [part.offsets[name] for part in parts]
        assert torch.equal(join(pieces, sharding_of(name, replicate)), offset)
