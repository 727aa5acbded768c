"""Tiles of the autoencoder: the plan by its properties, the pixels against diffusers, the ranks
against one alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from diffusers import AutoencoderKLWan
from hypothesis import given
from hypothesis import strategies as st
from rank_processes import run_ranks
from torch import Tensor

from wantrn.model.info import ModelKind
from wantrn.model.vae import VideoAutoencoder
from wantrn.model.vae_tiles import Cuts, TilePlan, Tiling
from wantrn.parallel.group import Group

KINDS = [ModelKind.T2V, ModelKind.TI2V]  # Wan2.1's autoencoder and Wan2.2's


@st.composite
def tilings(draw: st.DrawFn) -> Tiling:
    tile = draw(st.integers(1, 48))
    return Tiling(tile, draw(st.integers(0, tile // 3)))


class TestPlan:
    @given(size=st.integers(1, 300), tiling=tilings())
    def test_pieces_cover_an_axis_and_overlap_enough(self, size: int, tiling: Tiling) -> None:
        cuts = Cuts.of(size, tiling)
        assert cuts.starts[0] == 0
        assert cuts.starts[-1] + cuts.length == size
        assert 1 <= cuts.length <= tiling.tile
        assert all(tiling.overlap <= shared <= tiling.overlap + 1 for shared in cuts.overlaps)
        assert all(stride >= 1 for stride in cuts.strides)

    @given(size=st.integers(1, 300), tiling=tilings())
    def test_one_piece_less_would_not_do(self, size: int, tiling: Tiling) -> None:
        cuts = Cuts.of(size, tiling)
        fewer = len(cuts.starts) - 1
        assert fewer == 0 or fewer * tiling.tile - (fewer - 1) * tiling.overlap < size

    @given(size=st.integers(1, 100), tiling=tilings(), scale=st.sampled_from([1, 8, 16]))
    def test_weights_of_a_pixel_sum_to_one(self, size: int, tiling: Tiling, scale: int) -> None:
        cuts = Cuts.of(size, tiling)
        total = torch.zeros(size * scale, dtype=torch.float64)
        pieces = torch.zeros(size * scale)
        for index, start in enumerate(cuts.starts):
            weights = cuts.weights(index, scale)
            assert weights.min() >= 0 and weights.max() <= 1
            total[start * scale :][: len(weights)] += weights
            pieces[start * scale :][: len(weights)] += 1
        assert (total - 1).abs().max() < 1e-15
        assert pieces.max() <= 2

    def test_the_plan_of_480p(self) -> None:
        plan = TilePlan.of(60, 104, Tiling(), 8)
        assert plan.rows == Cuts(60, 26, (0, 17, 34))
        assert plan.columns == Cuts(104, 32, (0, 24, 48, 72))
        assert len(plan) == len(plan.latents) == len(plan.pixels) == 12
        assert plan.latents[5] == (slice(17, 43), slice(24, 56))
        assert plan.pixels[5] == (slice(136, 344), slice(192, 448))
        assert (plan.tile_pixels, plan.picture_pixels) == ((208, 256), (480, 832))
        assert (plan.rows.overlaps, plan.columns.overlaps) == ((9, 9), (8, 8, 8))

    def test_what_fits_a_tile_is_one_tile(self) -> None:
        plan = TilePlan.of(7, 5, Tiling(8, 2), 8)
        assert plan.latents == ((slice(0, 7), slice(0, 5)),)
        assert torch.equal(plan.weights(0), torch.ones(56, 40, dtype=torch.float64))

    @pytest.mark.parametrize(
        ("tile", "overlap", "message"),
        [
            (0, 0, "tile must be at least 1 latent, got 0"),
            (8, 3, "overlap must be 0 to 2 latents, a third of the tile of 8, got 3"),
            (8, 8, "overlap .* got 8"),
            (8, -1, "overlap .* got -1"),
        ],
    )
    def test_impossible_tilings_are_refused(self, tile: int, overlap: int, message: str) -> None:
        with pytest.raises(ValueError, match=message):
            Tiling(tile, overlap)

    def test_a_latent_of_no_size_is_refused(self) -> None:
        with pytest.raises(ValueError, match="size must be at least 1 latent, got 0"):
            TilePlan.of(0, 4, Tiling(), 8)


def random_latents(kind: ModelKind, frames: int, height: int, width: int) -> Tensor:
    channels = 48 if kind is ModelKind.TI2V else 16
    generator = torch.Generator().manual_seed(7)
    return torch.randn((1, channels, frames, height, width), generator=generator)


def dim_autoencoder(folder: Path) -> AutoencoderKLWan:
    """With a last layer so weak that no pixel is clamped: diffusers clamps after the blend."""
    vae = AutoencoderKLWan.from_pretrained(folder).eval().requires_grad_(False)
    vae.decoder.conv_out.weight *= 0.1
    vae.decoder.conv_out.bias *= 0.1
    return vae


class Autoencoders:
    """Ours and diffusers' own of one checkpoint."""

    def __init__(self, folder: Path, kind: ModelKind) -> None:
        self.ours = VideoAutoencoder(dim_autoencoder(folder))
        self.diffusers = dim_autoencoder(folder)
        self.kind = kind
        self.scale: int = self.diffusers.config.scale_factor_spatial

    @torch.no_grad()
    def by_diffusers(
        self, latents: Tensor, tiles: tuple[tuple[int, int], tuple[int, int]]
    ) -> Tensor:
        """``tiles``: length and stride of rows and of columns, in latents."""
        config = self.diffusers.config
        channels = (1, -1, 1, 1, 1)
        std = torch.tensor(config.latents_std).view(channels)
        mean = torch.tensor(config.latents_mean).view(channels)
        (height, down), (width, across) = tiles
        sizes = [size * self.scale for size in (height, width, down, across)]
        self.diffusers.enable_tiling(*sizes)
        video: Tensor = self.diffusers.decode(latents * std + mean).sample[0]
        assert video.abs().max() < 1
        return (video / 2 + 0.5).permute(1, 2, 3, 0)


@pytest.fixture(scope="module", params=KINDS, ids=lambda kind: kind.value)
def autoencoders(
    checkpoints: dict[ModelKind, Path], request: pytest.FixtureRequest
) -> Autoencoders:
    return Autoencoders(checkpoints[request.param] / "vae", request.param)


class TestPixels:
    def test_a_latent_that_fits_a_tile_is_decoded_whole(self, autoencoders: Autoencoders) -> None:
        latents = random_latents(autoencoders.kind, 2, 5, 3)
        whole = autoencoders.ours.decode(latents)
        assert torch.equal(autoencoders.ours.decode(latents, Tiling(5, 1)), whole)

    def test_a_pixel_of_one_tile_is_that_of_the_crop(self, autoencoders: Autoencoders) -> None:
        """Whatever was decoded before it, and with all frames."""
        latents = random_latents(autoencoders.kind, 2, 7, 6)
        plan = TilePlan.of(7, 6, Tiling(4, 1), autoencoders.scale)
        tiled = autoencoders.ours.decode(latents, Tiling(4, 1))
        for index in range(len(plan)):
            rows, columns = plan.latents[index]
            alone = autoencoders.ours.decode(latents[:, :, :, rows, columns])
            inner = plan.weights(index) == 1
            assert inner.any()
            assert torch.equal(tiled[:, *plan.pixels[index]][:, inner], alone[:, inner])

    @pytest.mark.parametrize("axis", [0, 1])
    def test_strips_are_those_of_diffusers(self, autoencoders: Autoencoders, axis: int) -> None:
        """Tiles of 4 with a stride of 3, along one axis: 4 + 3 + 3 latents.

        diffusers adds a tile of the last latent, which the third holds already. Up to there all
        bits are the same with Wan2.1's autoencoder. With Wan2.2's, diffusers blends before it
        makes 2 x 2 pixels of one, so every second pixel of a blend has a weight half a step off.
        """
        shape = (10, 3) if axis == 0 else (3, 10)
        latents = random_latents(autoencoders.kind, 2, *shape)
        ours = autoencoders.ours.decode(latents, Tiling(4, 1)).transpose(0, 1 + axis)
        tiles = ((4, 3), (4, 3))
        theirs = autoencoders.by_diffusers(latents, tiles).transpose(0, 1 + axis)
        scale = autoencoders.scale
        blends = [*range(3 * scale, 4 * scale), *range(6 * scale, 7 * scale)]
        others = [line for line in range(9 * scale) if line not in blends]
        assert torch.equal(ours[others], theirs[others])
        step = 2 if autoencoders.kind is ModelKind.TI2V else 1
        assert torch.equal(ours[blends][::step], theirs[blends][::step])
        half_step = (ours.max() - ours.min()) / scale  # a step is that of 2 pixels
        assert (ours[blends] - theirs[blends]).abs().max() < half_step
        assert not torch.equal(ours, autoencoders.ours.decode(latents).transpose(0, 1 + axis))

    def test_four_tiles_meet_as_a_plain_sum(self, autoencoders: Autoencoders) -> None:
        """Each tile by its weight, in float64; diffusers blends the corner of four differently."""
        latents = random_latents(autoencoders.kind, 2, 7, 6)
        plan = TilePlan.of(7, 6, Tiling(4, 1), autoencoders.scale)
        expected = torch.zeros(5, *plan.picture_pixels, 3, dtype=torch.float64)
        for index in range(len(plan)):
            rows, columns = plan.latents[index]
            alone = autoencoders.ours.decode(latents[:, :, :, rows, columns]).double()
            weights = plan.weights(index)
            expected[:, *plan.pixels[index]] += alone * weights[None, :, :, None]
        tiled = autoencoders.ours.decode(latents, Tiling(4, 1))
        assert (tiled - expected).abs().max() < 1e-6

    def test_seams_fade_with_the_overlap(
        self, autoencoders: Autoencoders, record_property: Callable[[str, object], None]
    ) -> None:
        """How far tiles are from the whole, in parts of the picture's own deviation."""
        latents = random_latents(autoencoders.kind, 1, 20, 16)
        whole = autoencoders.ours.decode(latents)
        seams = []
        for overlap in (0, 2, 4):
            tiled = autoencoders.ours.decode(latents, Tiling(12, overlap))
            seams.append(float((tiled - whole).square().mean().sqrt() / whole.std()))
        record_property("seams", seams)
        print(f"{autoencoders.kind.value}: {seams}")
        assert seams[0] > seams[1] > seams[2] > 0
        assert seams[2] < 0.3

    def test_ranks_without_tiles_are_refused(self, autoencoders: Autoencoders) -> None:
        pair = mock.Mock(spec=Group, size=2)  # no more is looked at before ranks speak
        with pytest.raises(ValueError, match="tiling must be given for a group of 2 ranks"):
            autoencoders.ours.decode(random_latents(autoencoders.kind, 1, 2, 2), group=pair)


# tilings of a latent of 7 x 6, and how many tiles: fewer than ranks, full rounds, a round not full
SHARED = [(Tiling(8, 2), 1), (Tiling(6, 2), 2), (Tiling(4, 1), 4), (Tiling(3, 1), 9)]


def _decode_all(autoencoder: VideoAutoencoder, kind: ModelKind, group: Group) -> list[Tensor]:
    latents = random_latents(kind, 2, 7, 6)
    return [autoencoder.decode(latents, tiling, group) for tiling, _ in SHARED]


def _decode_on_three(folders: list[tuple[Path, ModelKind]]) -> list[Tensor]:
    """By all three, and by the first two; not in the order of the backend."""
    rank, two = dist.get_rank(), dist.new_group([0, 1])
    three = Group((2, 0, 1), (rank + 1) % 3, ((2, 0, 1),), dist.group.WORLD)
    pair = Group((1, 0), 1 - rank, ((1, 0), (2,)), two) if rank < 2 else Group.single(rank)
    decoded = []
    for folder, kind in folders:
        autoencoder = VideoAutoencoder.load(folder)
        for group in (three, pair):
            decoded += _decode_all(autoencoder, kind, group)
    return decoded


def test_ranks_give_the_bits_of_one(checkpoints: dict[ModelKind, Path]) -> None:
    assert [len(TilePlan.of(7, 6, tiling, 8)) for tiling, _ in SHARED] == [n for _, n in SHARED]
    folders = [(checkpoints[kind] / "vae", kind) for kind in KINDS]
    by_rank = run_ranks(3, _decode_on_three, folders)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as the ranks
    try:
        expected = []
        for folder, kind in folders:
            expected += 2 * _decode_all(VideoAutoencoder.load(folder), kind, Group.single())
    finally:
        torch.set_num_threads(threads)
    for frames in by_rank:
        assert len(frames) == len(expected)
        assert all(map(torch.equal, frames, expected))
