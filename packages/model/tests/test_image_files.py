"""Pictures as users bring them: turned, transparent, deep, broken, hostile."""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from wantrn.model.errors import RequestError
from wantrn.model.media import cover, read_image, to_tensor

Pixels = npt.NDArray[np.uint8]


def picture(height: int = 6, width: int = 8) -> Pixels:
    return np.random.default_rng(0).integers(0, 256, (height, width, 3), np.uint8)


def encoded(kind: str) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(picture(16, 16)).save(buffer, kind)
    return buffer.getvalue()


@pytest.mark.parametrize("suffix", ["png", "bmp", "tiff"])
def test_lossless_formats_are_read_exactly(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"picture.{suffix}"
    Image.fromarray(picture()).save(path)
    image = read_image(path)
    assert image.mode == "RGB"
    assert np.array_equal(np.asarray(image), picture())


# How a viewer has to turn the stored pixels: EXIF 2.32, section 4.6.4, tag 274.
ORIENTATIONS: dict[int, Callable[[Pixels], Pixels]] = {
    1: lambda a: a,
    2: lambda a: a[:, ::-1],
    3: lambda a: a[::-1, ::-1],
    4: lambda a: a[::-1],
    5: lambda a: a.transpose(1, 0, 2),
    6: lambda a: np.rot90(a, -1),
    7: lambda a: a[::-1, ::-1].transpose(1, 0, 2),
    8: lambda a: np.rot90(a, 1),
}


@pytest.mark.parametrize(("orientation", "turn"), ORIENTATIONS.items())
def test_exif_orientation_is_applied(
    tmp_path: Path, orientation: int, turn: Callable[[Pixels], Pixels]
) -> None:
    exif = Image.new("RGB", (1, 1)).getexif()
    exif[274] = orientation
    path = tmp_path / "turned.png"
    Image.fromarray(picture()).save(path, exif=exif)
    expected = turn(picture())
    assert np.array_equal(np.asarray(read_image(path)), expected)


@pytest.mark.parametrize("mode", ["RGBA", "LA", "PA-like"])
def test_transparent_parts_lie_on_white(tmp_path: Path, mode: str) -> None:
    path = tmp_path / "glass.png"
    if mode == "PA-like":
        image = Image.new("P", (3, 1))
        image.putpalette([0, 0, 0, 100, 100, 100])
        image.putdata([0, 1, 1])
        image.save(path, transparency=0)
        expected = [255, 100, 100]
    else:
        image = Image.new(mode, (3, 1))
        grey = (lambda v, a: (v, v, v, a)) if mode == "RGBA" else (lambda v, a: (v, a))
        image.putdata([grey(0, 0), grey(100, 255), grey(0, 51)])
        image.save(path)
        expected = [255, 100, 204]
    pixels = np.asarray(read_image(path))[0]
    assert np.array_equal(pixels, np.repeat(np.array(expected)[:, None], 3, axis=1))


def test_16_bit_grey_keeps_its_range(tmp_path: Path) -> None:
    path = tmp_path / "deep.png"
    Image.fromarray(np.array([[0, 255, 32768, 65535]], np.uint16)).save(path)
    assert np.asarray(read_image(path))[0, :, 0].tolist() == [0, 0, 128, 255]


def test_cmyk_and_grey_and_one_bit_are_read(tmp_path: Path) -> None:
    for mode, name in (("CMYK", "a.jpg"), ("L", "b.png"), ("1", "c.png"), ("P", "d.gif")):
        Image.new(mode, (4, 4)).save(tmp_path / name)
        assert read_image(tmp_path / name).mode == "RGB"


def test_of_an_animation_the_first_picture(tmp_path: Path) -> None:
    path = tmp_path / "moving.gif"
    first, second = Image.new("RGB", (4, 4), "red"), Image.new("RGB", (4, 4), "blue")
    first.save(path, save_all=True, append_images=[second])
    assert read_image(path).getpixel((1, 1)) == (255, 0, 0)


def assert_refused(path: Path, message: str) -> None:
    with pytest.raises(RequestError, match=message) as caught:
        read_image(path)
    assert caught.value.field == "image"
    assert str(path) in str(caught.value)


def test_what_is_no_file(tmp_path: Path) -> None:
    assert_refused(tmp_path / "absent.png", "does not exist")
    assert_refused(tmp_path, "is not a file")
    os.mkfifo(tmp_path / "pipe.png")
    assert_refused(tmp_path / "pipe.png", "is not a file")


@pytest.mark.parametrize(
    "content", [b"", b"\0" * 100, b"%!PS-Adobe-3.0 EPSF-3.0\n", b"a red ball", b"\x89PNG\r\n\x1a\n"]
)
def test_what_is_no_picture(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "picture.png"
    path.write_bytes(content)
    assert_refused(path, "is not a picture.*JPEG, PNG|cannot be read")


def test_postscript_never_reaches_a_program(tmp_path: Path) -> None:
    path = tmp_path / "picture.eps"
    Image.fromarray(picture()).save(path)
    assert_refused(path, "is not a picture")


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "BMP", "WEBP"])
def test_cut_short(tmp_path: Path, kind: str) -> None:
    whole = encoded(kind)
    for part in (0.3, 0.6, 0.9):
        path = tmp_path / "cut"
        path.write_bytes(whole[: int(len(whole) * part)])
        assert_refused(path, "cannot be read|is not a picture")


@pytest.mark.parametrize("factor", [1.1, 2.1])  # Pillow warns above its limit, and raises above two
def test_a_decompression_bomb(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, factor: float
) -> None:
    path = tmp_path / "bomb.png"
    Image.fromarray(picture(10, 10)).save(path)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", int(100 / factor))
    assert_refused(path, "more than .* pixels")


def test_numbers_without_a_range(tmp_path: Path) -> None:
    path = tmp_path / "height.tiff"
    Image.fromarray(np.ones((4, 4), np.float32)).save(path)
    assert_refused(path, "mode F")


@settings(max_examples=150, deadline=None)
@given(
    kind=st.sampled_from(["PNG", "JPEG", "GIF", "BMP", "WEBP", "TIFF"]),
    changes=st.lists(st.tuples(st.floats(0, 1), st.integers(0, 255)), min_size=1, max_size=4),
)
def test_damage_is_refused_or_read_but_never_another_error(
    tmp_path_factory: pytest.TempPathFactory, kind: str, changes: list[tuple[float, int]]
) -> None:
    content = bytearray(encoded(kind))
    for place, value in changes:
        content[min(int(place * len(content)), len(content) - 1)] = value
    path = tmp_path_factory.getbasetemp() / "damaged"
    path.write_bytes(content)
    try:
        assert read_image(path).mode == "RGB"
    except RequestError as error:
        assert error.field == "image"


@settings(max_examples=50, deadline=None)
@given(*(st.integers(1, 40) for _ in range(4)))
def test_cover_fills_the_frame(from_w: int, from_h: int, to_w: int, to_h: int) -> None:
    plain = Image.new("RGB", (from_w, from_h), (10, 200, 90))
    covered = cover(plain, to_w, to_h)
    assert covered.size == (to_w, to_h)
    assert covered.getextrema() == ((10, 10), (200, 200), (90, 90))


def test_cover_of_the_same_size_changes_nothing() -> None:
    assert np.array_equal(np.asarray(cover(Image.fromarray(picture()), 8, 6)), picture())


@pytest.mark.parametrize("tall", [False, True])
def test_cover_keeps_the_middle_and_the_proportions(tall: bool) -> None:
    # black | white half and half, wider than the frame: the border stays in the middle
    wide = np.zeros((20, 80, 3), np.uint8)
    wide[:, 40:] = 255
    pixels = wide.transpose(1, 0, 2) if tall else wide
    covered = np.asarray(cover(Image.fromarray(pixels), 40, 40)).astype(int)
    covered = covered.transpose(1, 0, 2) if tall else covered
    assert covered[:, :17].max() <= 12
    assert covered[:, 23:].min() >= 243
    assert np.abs(covered[:, 19] + covered[:, 20] - 255).max() <= 2


def test_to_tensor_spelled_out() -> None:
    tensor = to_tensor(Image.fromarray(picture()))
    assert tensor.shape == (1, 3, 1, 6, 8)
    assert tensor.dtype == torch.float32
    expected = picture().astype(np.float64).transpose(2, 0, 1) / 255 * 2 - 1
    np.testing.assert_allclose(tensor[0, :, 0].numpy(), expected, atol=1e-6)
    assert (to_tensor(Image.new("RGB", (1, 1), "black")) == -1).all()
    assert (to_tensor(Image.new("RGB", (1, 1), "white")) == 1).all()
    with pytest.raises(ValueError, match="RGB, got L"):
        to_tensor(Image.new("L", (1, 1)))
