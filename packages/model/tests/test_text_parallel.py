"""UMT5 shared by ranks against transformers' own encoder, and what is relied upon in it."""

from __future__ import annotations

import math
from pathlib import Path
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from rank_processes import run_ranks
from torch import Tensor, nn
from transformers import AutoTokenizer, UMT5Config, UMT5EncoderModel

from wantrn.model.info import ModelKind
from wantrn.model.text import TIED_PARAMETERS, TextEncoder
from wantrn.model.text_parallel import text_encoder_part
from wantrn.parallel.group import Group

PROMPTS = ("", "a red ball", "Ein roter Ball rollt über die Wiese. " * 6)

# UMT5-XXL, as Wan has it
XXL = UMT5Config(
    vocab_size=256384,
    d_model=4096,
    d_kv=64,
    d_ff=10240,
    num_layers=24,
    num_heads=64,
    feed_forward_proj="gated-gelu",
)


def small_config(**changes: object) -> UMT5Config:
    """Heads and units for 2, 3 and 4 ranks; a prime number of tokens."""
    options: dict[str, object] = {
        "vocab_size": 263,
        "d_model": 32,
        "d_kv": 8,
        "d_ff": 48,
        "num_layers": 2,
        "num_heads": 12,
        "feed_forward_proj": "gated-gelu",
        "pad_token_id": 0,
        "eos_token_id": 1,
    }
    return UMT5Config(**(options | changes))


def as_one_of(size: int, position: int) -> Group:
    """As much of a group as building a part takes."""
    group: Group = mock.Mock(spec=Group, size=size, position=position)
    return group


@pytest.fixture(scope="module")
def encoders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Folders of small encoders, with the feed-forward of Wan's UMT5 and with the plain one."""
    folders = []
    for kind in ("gated-gelu", "relu"):
        torch.manual_seed(11)
        encoder = UMT5EncoderModel(small_config(feed_forward_proj=kind))
        for block in encoder.encoder.block:  # so that distances matter
            block.layer[0].SelfAttention.relative_attention_bias.weight.data *= 8
        folders.append(tmp_path_factory.mktemp(kind))
        encoder.save_pretrained(folders[-1])
    return folders


@pytest.fixture(scope="module")
def tokenizer(checkpoints: dict[ModelKind, Path]) -> Path:
    return checkpoints[ModelKind.T2V] / "tokenizer"


def by_transformers(tokenizer: Path, encoder: Path, prompt: str, dtype: torch.dtype) -> Tensor:
    """Rows of the prompt ``[1, S, H]``, filled up to a multiple of 16 as the encoder does it."""
    module = UMT5EncoderModel.from_pretrained(encoder).eval().to(dtype)
    ids = AutoTokenizer.from_pretrained(tokenizer)(prompt)["input_ids"]
    rows = math.ceil(len(ids) / 16) * 16
    tokens = torch.tensor([ids + [0] * (rows - len(ids))])
    mask = (torch.arange(rows) < len(ids)).long().unsqueeze(0)
    with torch.inference_mode():
        hidden: Tensor = module(tokens, mask).last_hidden_state
    return hidden[:, : len(ids)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_one_rank_gives_the_bits_of_transformers(
    tokenizer: Path, encoders: list[Path], dtype: torch.dtype
) -> None:
    ours = TextEncoder.load(tokenizer, encoders[0], dtype)
    for prompt in PROMPTS:
        expected = by_transformers(tokenizer, encoders[0], prompt.strip(), dtype)
        assert torch.equal(ours.encode(prompt)[:, : expected.shape[1]], expected)


def _encode_on_four(
    tokenizer: Path, encoders: list[Path]
) -> dict[tuple[int, int, torch.dtype], list[Tensor]]:
    """By number of ranks, encoder and dtype, what this rank has of each prompt: by all four, by
    three and by two, which are not in the backend's order."""
    rank = dist.get_rank()
    groups = [Group((0, 1, 2, 3), rank, ((0, 1, 2, 3),), dist.group.WORLD)]
    for members in ((2, 0, 1), (3, 1)):
        process_group = dist.new_group(sorted(members))
        if rank in members:
            rest = tuple((other,) for other in range(4) if other not in members)
            groups.append(Group(members, members.index(rank), (members, *rest), process_group))
    encoded = {}
    for group in groups:
        for index, encoder in enumerate(encoders):
            for dtype in (torch.float32, torch.bfloat16):
                ours = TextEncoder.load(tokenizer, encoder, dtype, group)
                encoded[group.size, index, dtype] = [ours.encode(prompt) for prompt in PROMPTS]
    return encoded


def test_ranks_give_what_transformers_does(tokenizer: Path, encoders: list[Path]) -> None:
    """fp32 within 1e-5 of float64, all ranks the same bits. In bf16 each rank rounds its share of a
    sum: the mean error is that of one rank, within a fifth."""
    by_rank = run_ranks(4, _encode_on_four, tokenizer, encoders)
    for index, encoder in enumerate(encoders):
        exact, alone = (
            [by_transformers(tokenizer, encoder, prompt.strip(), dtype) for prompt in PROMPTS]
            for dtype in (torch.float64, torch.bfloat16)
        )
        for size in (2, 3, 4):
            for dtype in (torch.float32, torch.bfloat16):
                first, *others = [
                    rank[size, index, dtype] for rank in by_rank if (size, index, dtype) in rank
                ]
                assert len(others) == size - 1
                for other in others:
                    assert all(map(torch.equal, first, other))
                for ours, expected in zip(first, exact, strict=True):
                    assert ours.dtype == dtype
                    assert not ours[:, expected.shape[1] :].any()
                errors = distances(first, exact)
                if dtype == torch.float32:
                    assert errors.max() < 1e-5
                else:
                    assert errors.mean() < 1.2 * distances(alone, exact).mean()


def distances(ours: list[Tensor], exact: list[Tensor]) -> Tensor:
    """Of all values of all prompts."""
    pairs = zip(ours, exact, strict=True)
    return torch.cat([(x[:, : y.shape[1]] - y).abs().flatten() for x, y in pairs])


class TestPart:
    @pytest.mark.parametrize("kind", ["gated-gelu", "relu"])
    @pytest.mark.parametrize("size", [1, 2, 3, 4])
    def test_parts_are_slices_that_make_the_whole(self, kind: str, size: int) -> None:
        """Of every parameter that transformers' encoder has, by the name that it has there."""
        config = small_config(feed_forward_proj=kind)
        parts = [text_encoder_part(config, as_one_of(size, at)) for at in range(size)]
        whole = UMT5EncoderModel(config).state_dict()
        for name, tensor in whole.items():
            slices = [part.slices(name) for part in parts]
            shapes = [tuple(part.module.state_dict()[name].shape) for part in parts]
            if name.rpartition(".")[0].endswith("layer_norm"):
                assert slices == [None] * size and shapes == [tuple(tensor.shape)] * size
                continue
            indices: list[int] = []
            for part, shape in zip(slices, shapes, strict=True):
                assert part is not None and part.whole_shape(shape) == tuple(tensor.shape)
                assert part.begin == len(indices)
                indices += range(part.begin, part.end)
                assert part.size == len(indices) or part is not slices[-1]
        assert all(part.module.state_dict().keys() == whole.keys() for part in parts)

    def test_what_is_relied_upon_in_transformers(self) -> None:
        """Sums come after linear layers without bias, which a sum would count more than once; heads
        are as many as the config says, whatever the width; the embedding is one and the same."""
        module = text_encoder_part(small_config(), as_one_of(4, 1)).module
        summed = [layer for layer in module.modules() if layer._forward_hooks]
        assert len(summed) == 2 * 2
        for layer in summed:
            assert type(layer) is nn.Linear and layer.bias is None
        for block in module.encoder.block:
            attention = block.layer[0].SelfAttention
            assert (attention.n_heads, attention.key_value_proj_dim) == (3, 8)
            assert attention.o in summed
            assert block.layer[1].DenseReluDense.wo in summed
        assert module.shared is module.encoder.embed_tokens
        assert set(TIED_PARAMETERS) < set(module.state_dict())

    @pytest.mark.parametrize("size", [2, 4, 8])
    def test_a_rank_of_xxl_has_little_more_than_its_share(self, size: int) -> None:
        with torch.device("meta"):
            whole = sum(p.numel() for p in UMT5EncoderModel(XXL).encoder.parameters())
        part = text_encoder_part(XXL, as_one_of(size, size - 1)).module
        assert whole / size < sum(p.numel() for p in part.parameters()) < 1.001 * whole / size

    @pytest.mark.parametrize(
        ("size", "changes", "message"),
        [
            (5, {}, "num_heads must be a multiple of the group's 5 ranks, got 12"),
            (4, {"d_ff": 50}, "d_ff must be a multiple of the group's 4 ranks, got 50"),
            (4, {"vocab_size": 3}, "vocab_size of 3 is less than the 4 ranks of the group"),
        ],
    )
    def test_what_ranks_cannot_share_is_refused(
        self, size: int, changes: dict[str, object], message: str
    ) -> None:
        with pytest.raises(ValueError, match=message):
            text_encoder_part(small_config(**changes), as_one_of(size, 0))

    def test_an_unknown_parameter_is_refused(self) -> None:
        part = text_encoder_part(small_config(), as_one_of(2, 0))
        with pytest.raises(ValueError, match="name must be .* got encoder.gate.weight"):
            part.slices("encoder.gate.weight")

    @pytest.mark.parametrize("token", [-1, 263])
    def test_a_token_that_no_rank_has_is_refused(self, token: int) -> None:
        embedding = text_encoder_part(small_config(), Group.single()).module.shared
        with pytest.raises(IndexError, match=f"ids must be 0 to 262, got {token}"):
            embedding(torch.tensor([[5, token]]))
