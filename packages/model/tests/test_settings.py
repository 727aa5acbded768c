from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from wantrn.model.config import WanConfig
from wantrn.model.errors import RequestError
from wantrn.model.info import GenerationDefaults, ModelInfo, ModelKind
from wantrn.model.settings import VideoRequest, resolve

T2V = ModelInfo(
    directory=Path("somewhere"),
    kind=ModelKind.T2V,
    config=WanConfig(),
    experts=(Path("transformer"), Path("transformer_2")),
    boundary_ratio=0.875,
    scheduler_config={
        "_class_name": "UniPCMultistepScheduler",
        "prediction_type": "flow_prediction",
        "use_flow_sigmas": True,
        "flow_shift": 3.0,
    },
    temporal_stride=4,
    spatial_stride=8,
    latent_channels=16,
    quantization=None,
    defaults=GenerationDefaults((832, 480), 81, 16, 40, 4.0, 3.0, torch.bfloat16),
)
I2V = dataclasses.replace(T2V, kind=ModelKind.I2V)
TI2V = dataclasses.replace(
    T2V,
    kind=ModelKind.TI2V,
    experts=(Path("transformer"),),
    boundary_ratio=None,
    spatial_stride=16,
    defaults=GenerationDefaults((1280, 704), 121, 24, 50, 5.0, None, torch.bfloat16),
)


def test_defaults_are_the_checkpoints() -> None:
    settings = resolve(VideoRequest("a cat"), T2V)
    assert (settings.width, settings.height, settings.frames, settings.fps) == (832, 480, 81, 16)
    assert (settings.steps, settings.guidance, settings.guidance_2) == (40, 4.0, 3.0)
    assert (settings.shift, settings.scheduler, settings.boundary_ratio) == (3.0, "unipc", 0.875)
    assert settings.negative_prompt == ""


def test_what_is_asked_for_is_used() -> None:
    request = VideoRequest("a cat", "dull", None, (320, 240), 17, 12, 7, 2.0, 1.0, 8.0, "euler", 99)
    settings = resolve(request, T2V)
    for field in dataclasses.fields(VideoRequest):
        if field.name != "size":
            assert getattr(settings, field.name) == getattr(request, field.name)
    assert (settings.width, settings.height) == (320, 240)
    assert settings.describe() == {
        "prompt": "a cat",
        "negative_prompt": "dull",
        "size": "320x240",
        "frames": 17,
        "fps": 12,
        "steps": 7,
        "guidance": 2.0,
        "guidance_2": 1.0,
        "boundary_ratio": 0.875,
        "shift": 8.0,
        "scheduler": "euler",
        "seed": 99,
    }


def test_a_seed_is_drawn_once_and_differs() -> None:
    seeds = {resolve(VideoRequest("a cat"), T2V).seed for _ in range(20)}
    assert len(seeds) == 20
    assert all(0 <= seed < 2**32 for seed in seeds)


REFUSED = [
    ({"size": (100, 70)}, T2V, "size", "100x70", ("96x64", "112x80")),
    ({"size": (96, 70)}, T2V, "size", "96x70", ("96x64", "96x80")),
    ({"size": (0, 64)}, T2V, "size", "0x64", ("16x64", "32x64")),
    ({"size": (16400, 64)}, T2V, "size", "16400x64", ("16368x64", "16384x64")),
    ({"size": (48, 32)}, TI2V, "size", "48x32", ("32x32", "64x32")),
    ({"frames": 10}, T2V, "frames", "10", ("9", "13")),
    ({"frames": 0}, T2V, "frames", "0", ("1", "5")),
    ({"frames": 5000}, T2V, "frames", "5000", ("4089", "4093")),
    ({"steps": 0}, T2V, "steps", "0", ("1", "2")),
    ({"steps": 1001}, T2V, "steps", "1001", ("999", "1000")),
    ({"fps": 0}, T2V, "fps", "0", ("1", "2")),
    ({"seed": -1}, T2V, "seed", "-1", ("0", "1")),
    ({"seed": 2**63}, T2V, "seed", str(2**63), (str(2**63 - 1),)),
    ({"guidance": 0.5}, T2V, "guidance", "0.5", ("from 1",)),
    ({"guidance": float("nan")}, T2V, "guidance", "nan", ("from 1",)),
    ({"guidance_2": float("inf")}, T2V, "guidance_2", "inf", ("from 1",)),
    ({"guidance_2": 3.0}, TI2V, "guidance_2", "3.0", ("one expert",)),
    ({"shift": 0.0}, T2V, "shift", "0.0", ("above 0",)),
    ({"shift": float("nan")}, T2V, "shift", "nan", ("above 0",)),
    ({"scheduler": "ddim"}, T2V, "scheduler", "ddim", ("unipc", "euler")),
    ({"image": Image.new("RGB", (8, 8))}, T2V, "image", "takes no image", ()),
    ({}, I2V, "image", "none was given", ()),
]


@pytest.mark.parametrize(("values", "info", "field", "value", "allowed"), REFUSED)
def test_refusals_name_value_and_what_is_allowed(
    values: dict[str, object], info: ModelInfo, field: str, value: str, allowed: tuple[str, ...]
) -> None:
    with pytest.raises(RequestError) as caught:
        resolve(VideoRequest("a cat", **values), info)  # type: ignore[arg-type]
    assert caught.value.field == field
    for word in (field, value, *allowed):
        assert word in str(caught.value)


@given(width=st.integers(-5, 20_000), height=st.integers(-5, 20_000))
def test_sizes_named_as_nearest_are_allowed(width: int, height: int) -> None:
    try:
        settings = resolve(VideoRequest("a cat", size=(width, height)), T2V)
    except RequestError as error:
        nearest = str(error).rpartition("the nearest are ")[2].split(" and ")
        for size in nearest:
            w, h = map(int, size.split("x"))
            again = resolve(VideoRequest("a cat", size=(w, h)), T2V)
            assert (again.width, again.height) == (w, h)
    else:
        assert (settings.width, settings.height) == (width, height)
        assert width % 16 == height % 16 == 0


@given(frames=st.integers(-5, 5000))
def test_frames_are_one_more_than_a_multiple_of_four(frames: int) -> None:
    try:
        settings = resolve(VideoRequest("a cat", frames=frames), T2V)
    except RequestError as error:
        nearest = str(error).rpartition("the nearest are ")[2].split(" and ")
        assert all(resolve(VideoRequest("a", frames=int(n)), T2V).frames == int(n) for n in nearest)
    else:
        assert settings.frames == frames
        assert frames % 4 == 1


@given(width=st.integers(1, 4000), height=st.integers(1, 4000))
def test_an_image_without_a_size_keeps_its_aspect(width: int, height: int) -> None:
    image = Image.new("1", (width, height))
    settings = resolve(VideoRequest("a cat", image=image), I2V)
    assert settings.width % 16 == settings.height % 16 == 0
    if 1 / 8 <= width / height <= 8:
        aspect = (settings.width / settings.height) / (width / height)
        assert 0.85 < aspect < 1.18
        assert 0.85 < settings.width * settings.height / (832 * 480) < 1.18
