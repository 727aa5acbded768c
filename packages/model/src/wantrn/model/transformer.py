"""The Wan2.2 diffusion transformer (DiT)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from wantrn.kernels import ops
from wantrn.kernels.ops import Rotary
from wantrn.model.attention import CrossAttention, SelfAttention, TextKV
from wantrn.model.cached_steps import CachedPass
from wantrn.model.config import WanConfig
from wantrn.model.embedding import PatchEmbedding, TextEmbedding, TimeEmbedding, unpatchify
from wantrn.model.feed_forward import FeedForward
from wantrn.model.local_tokens import LocalTokens
from wantrn.model.lora.adapters import NONE, Adapters
from wantrn.model.modulation import BlockModulation, output_modulation
from wantrn.model.parallelism import Parallelism
from wantrn.model.quantization.groups import Group
from wantrn.model.rope import rotary_tables

Through = Callable[[Tensor, Callable[[Tensor], Tensor]], Tensor]
"""The last block's stream, from the first one's and from what runs the others."""


@dataclass(frozen=True)
class TextContext:
    """A prompt as one expert sees it: keys and values of every block's cross-attention.

    It depends on the prompt, on the expert and on what adapters add to it, not on the step: compute
    it once for all steps.
    """

    blocks: tuple[TextKV, ...]


def stacked(contexts: Sequence[TextContext]) -> TextContext:
    """Several prompts of one length as a batch."""
    kvs = zip(*[context.blocks for context in contexts], strict=True)
    return TextContext(
        tuple(TextKV(torch.cat([t.k for t in kv]), torch.cat([t.v for t in kv])) for kv in kvs)
    )


@dataclass(frozen=True)
class AttendedVideo:
    """What a block has computed before it reads the text."""

    stream: Tensor  # [B, S, H], after self-attention
    normed: Tensor  # its normalisation, the input of cross-attention; perhaps packed rows
    modulation: BlockModulation

    def repeated(self, count: int) -> AttendedVideo:
        """For a batch of ``count`` texts that read it."""
        return AttendedVideo(
            self.stream.repeat(count, 1, 1),
            self.normed.repeat(count, 1, 1),
            self.modulation.repeated(count),
        )


@dataclass(frozen=True)
class VideoInputs:
    """What all blocks are told of the video's tokens."""

    rows: Tensor  # [B, G, 6, H] fp32, the timestep's modulation of this rank's tokens
    rotary: Rotary  # of the tokens that this rank attends from
    total: int  # tokens of the sequence, on all ranks


class Block(nn.Module):
    """Self-attention, cross-attention and feed-forward on one residual stream.

    What comes before a layer in FP8 quantizes its result from fp32, without bf16 in between.
    """

    def __init__(
        self, config: WanConfig, parallel: Parallelism, quantized: frozenset[Group] = frozenset()
    ) -> None:
        super().__init__()
        self.eps = config.eps
        self.modulation = nn.Parameter(torch.empty(1, 6, config.hidden_size))
        self.self_attention = SelfAttention(config, parallel, Group.SELF_ATTENTION in quantized)
        self.cross_norm = nn.LayerNorm(config.hidden_size, eps=config.eps)
        self.cross_attention = CrossAttention(config, parallel, Group.CROSS_ATTENTION in quantized)
        self.feed_forward = FeedForward(config, parallel, Group.FEED_FORWARD in quantized)

    def forward(
        self,
        stream: Tensor | AttendedVideo,
        video: VideoInputs,
        text: TextKV,
        adapters: Adapters = NONE,
    ) -> Tensor:
        """The new stream, of ``stream`` ``[B, S, H]``: this rank's tokens; or of what
        ``attend_to_video`` has made of it, where several texts have that in common."""
        if not isinstance(stream, AttendedVideo):
            stream = self.attend_to_video(stream, video, adapters)
        return self.attend_to_text(stream, text, adapters)

    def attend_to_video(
        self, stream: Tensor, video: VideoInputs, adapters: Adapters = NONE
    ) -> AttendedVideo:
        """The block up to the first use of the text."""
        mod = BlockModulation.of(adapters.shifted("modulation", self.modulation), video.rows)
        x = ops.adaln_modulate(
            stream,
            mod.attention_scale,
            mod.attention_shift,
            eps=self.eps,
            packed=self.self_attention.quantized,
        )
        x = self.self_attention(x, video.rotary, video.total, adapters.of("self_attention"))
        cross_norm = adapters.of("cross_norm")
        stream, x = ops.gated_adaln_modulate(
            x,
            stream,
            mod.attention_gate,
            cross_norm.shifted("weight", self.cross_norm.weight),
            cross_norm.shifted("bias", self.cross_norm.bias),
            eps=self.eps,
            packed=self.cross_attention.quantized,
        )
        return AttendedVideo(stream, x, mod)

    def attend_to_text(
        self, video: AttendedVideo, text: TextKV, adapters: Adapters = NONE
    ) -> Tensor:
        """The rest of the block; the new stream."""
        mod, stream = video.modulation, video.stream
        x = self.cross_attention(video.normed, text, adapters.of("cross_attention"))
        stream, x = ops.gated_adaln_modulate(
            x,
            stream,
            None,
            mod.feed_forward_scale,
            mod.feed_forward_shift,
            eps=self.eps,
            packed=self.feed_forward.quantized,
        )
        x = self.feed_forward(x, adapters.of("feed_forward"))
        return ops.gated_add(x, stream, mod.feed_forward_gate)


class WanTransformer(nn.Module):
    """One expert. Predicts the velocity of the flow from noise to video latents.

    Parameters are created uninitialised; ``pipeline.load_transformer`` fills them from files, and
    ``quantized_transformer`` makes one whose ``quantized_groups`` are in FP8.

    The parameters never change. What LoRAs add to them is given to each call as ``adapters``, so
    calls with different ones may alternate.

    With ``parallel`` each rank has its shard of the parameters and of the tokens. Arguments and
    results of all methods are whole, and the same on every rank of ``tp`` and ``cp``, which call
    them together.

    Raises:
        ValueError: dimensions that cannot be spread over the ranks, by name.
    """

    def __init__(
        self,
        config: WanConfig,
        quantized_groups: frozenset[Group] = frozenset(),
        parallel: Parallelism | None = None,
    ) -> None:
        super().__init__()
        parallel = Parallelism() if parallel is None else parallel
        parallel.check(config)
        self.config = config
        self.quantized_groups = quantized_groups
        self.parallel = parallel
        self.patch_embedding = PatchEmbedding(config)
        self.time_embedding = TimeEmbedding(config)
        self.text_embedding = TextEmbedding(config)
        self.blocks = nn.ModuleList(
            Block(config, parallel, quantized_groups) for _ in range(config.num_layers)
        )
        self.modulation = nn.Parameter(torch.empty(1, 2, config.hidden_size))
        self.proj_out = nn.Linear(config.hidden_size, config.out_channels * config.patch_volume)

    @staticmethod
    def parameter_dtype(name: str, dtype: torch.dtype) -> torch.dtype:
        """The dtype of parameter ``name`` in a model of ``dtype``.

        The time embedding, the modulation tables and the norms' weights are fp32 in every model.
        """
        keeps_fp32 = name.startswith("time_embedding.") or any(
            part == "modulation" or part.endswith("_norm") for part in name.split(".")
        )
        return torch.float32 if keeps_fp32 else dtype

    def token_grid(self, latents: Tensor) -> tuple[int, int, int]:
        """Tokens along frames, rows and columns of ``latents`` ``[B, C, T, height, width]``.

        Raises:
            ValueError: another number of axes or channels, or a size that patches do not divide.
        """
        channels, patch = self.config.in_channels, self.config.patch_size
        if latents.ndim != 5 or latents.shape[1] != channels:
            raise ValueError(
                f"latents must be [B, {channels}, T, height, width], got {list(latents.shape)}"
            )
        sizes = latents.shape[2:]
        if any(size % p for size, p in zip(sizes, patch, strict=True)):
            raise ValueError(f"latents' {list(sizes)} must be multiples of the patch {patch}")
        return (sizes[0] // patch[0], sizes[1] // patch[1], sizes[2] // patch[2])

    def rotary(self, latents: Tensor) -> Rotary:
        """The rotary tables for latents of this shape; compute them once for each shape."""
        return rotary_tables(
            self.token_grid(latents),
            self.config.attention_head_dim,
            self.config.rope_max_seq_len,
            latents.device,
        )

    def text_context(self, text: Tensor, adapters: Adapters = NONE) -> TextContext:
        """Project the encoded prompt ``[B, L, text_dim]`` for every block's cross-attention."""
        if text.ndim != 3 or text.shape[2] != self.config.text_dim:
            raise ValueError(f"text must be [B, L, {self.config.text_dim}], got {list(text.shape)}")
        embedded = self.text_embedding(text, adapters.of("text_embedding"))
        return TextContext(
            tuple(
                block.cross_attention.project(embedded, own.of("cross_attention"))
                for block, own in self._blocks(adapters)
            )
        )

    def forward(
        self,
        latents: Tensor,
        timestep: Tensor,
        text: TextContext,
        rotary: Rotary,
        adapters: Adapters = NONE,
    ) -> Tensor:
        """The velocity for one prompt, fp32 ``[B, C_out, T, height, width]``.

        Arguments and errors are those of ``velocities``, with a single text.
        """
        return self.velocities(latents, timestep, (text,), rotary, adapters=adapters)[0]

    def velocities(
        self,
        latents: Tensor,
        timestep: Tensor,
        texts: Sequence[TextContext],
        rotary: Rotary,
        batched: bool = False,
        adapters: Adapters = NONE,
        cached: CachedPass | None = None,
    ) -> tuple[Tensor, ...]:
        """The velocities of the same latents for several prompts.

        What comes before the first use of the text (embeddings, self-attention of the first block)
        is the same for all and computed once. One text after the other, the result has the bits of
        separate passes; as a batch, weights are read once, and roundings differ.

        Args:
            latents: ``[B, C_in, T, height, width]``, fp32.
            timestep: in 0..1000; ``[B]``, or ``[B, G]`` where ``G`` divides the number of tokens:
                one value for each run of ``S/G`` tokens. ``G = T`` is a timestep for each latent
                frame, ``G = S`` one for each token.
            texts: from ``text_context`` of this model with the same ``adapters``.
            rotary: from ``rotary`` for latents of this shape.
            batched: the texts, of one length, pass through the blocks as a batch.
            adapters: what LoRAs add to the model, by the names of its modules.
            cached: decides whether the blocks after the first are run, and is told what they add.

        Returns:
            For each text, fp32 ``[B, C_out, T, height, width]``.

        Raises:
            ValueError: a shape that does not fit the model or the other arguments.
        """
        grid = self.token_grid(latents)
        self._check(latents, timestep, texts)
        tokens = LocalTokens.of(math.prod(grid), self.parallel)
        timestep = timestep.view(timestep.shape[0], -1)
        vector, rows = self._embedded_time(timestep, tokens, adapters.of("time_embedding"))
        video = VideoInputs(rows, tokens.rotary(rotary), tokens.total)
        stream = self.patch_embedding(latents, tokens, adapters.delta("patch_embedding"))
        through = None if cached is None else partial(cached.through, stream, tokens.shards.real)
        streams = self._streams(stream, video, texts, batched, adapters, through)
        projected = [
            tokens.join(self._project_out(x, vector, adapters), self.parallel) for x in streams
        ]
        patch, channels = self.config.patch_size, self.config.out_channels
        return tuple(unpatchify(x, grid, patch, channels) for x in projected)

    def _embedded_time(
        self, timestep: Tensor, tokens: LocalTokens, adapters: Adapters
    ) -> tuple[Tensor, Tensor]:
        """``TimeEmbedding`` of ``[B, G]``, for this rank's tokens."""
        local = tokens.rows(timestep)
        if local.shape[1] <= timestep.shape[1]:
            return cast(tuple[Tensor, Tensor], self.time_embedding(local, adapters))
        vector, rows = self.time_embedding(timestep, adapters)
        return tokens.rows(vector), tokens.rows(rows)

    def _streams(
        self,
        stream: Tensor,
        video: VideoInputs,
        texts: Sequence[TextContext],
        batched: bool,
        adapters: Adapters,
        through: Through | None,
    ) -> list[Tensor]:
        """What the last block gives for each text."""
        (first, added), *_ = self._blocks(adapters)
        attended = first.attend_to_video(stream, video, added)
        passes = list(texts)
        if batched:
            attended, passes = attended.repeated(len(texts)), [stacked(texts)]
            video = replace(video, rows=video.rows.repeat(len(texts), 1, 1, 1))
        found = []
        for text in passes:
            x = first(attended, video, text.blocks[0], added)
            others = partial(self._others, video=video, text=text, adapters=adapters)
            found.append(others(x) if through is None else through(x, others))
        return list(found[0].chunk(len(texts))) if batched else found

    def _others(
        self, stream: Tensor, video: VideoInputs, text: TextContext, adapters: Adapters
    ) -> Tensor:
        """What the last block makes of the first one's stream."""
        _, *others = self._blocks(adapters)
        for (block, own), text_kv in zip(others, text.blocks[1:], strict=True):
            stream = block(stream, video, text_kv, own)
        return stream

    def _check(self, latents: Tensor, timestep: Tensor, texts: Sequence[TextContext]) -> None:
        if timestep.ndim not in (1, 2) or timestep.shape[0] != latents.shape[0]:
            raise ValueError(
                f"timestep must be [{latents.shape[0]}] or [{latents.shape[0]}, G], "
                f"got {list(timestep.shape)}"
            )
        for text in texts:
            if len(text.blocks) != len(self.blocks):
                raise ValueError(f"text is of {len(text.blocks)} blocks, not {len(self.blocks)}")

    def _project_out(self, stream: Tensor, vector: Tensor, adapters: Adapters) -> Tensor:
        """``[B, S, pt * ph * pw * C]`` fp32."""
        scale, shift = output_modulation(adapters.shifted("modulation", self.modulation), vector)
        # fp32 from here on: 64 columns cost nothing, and the scheduler works in fp32
        x = ops.adaln_modulate(stream.float(), scale, shift, eps=self.config.eps)
        bias, delta = self.proj_out.bias.float(), adapters.delta("proj_out")
        if delta is None:
            return F.linear(x, self.proj_out.weight.float(), bias)
        return delta.add_to(F.linear(x, self.proj_out.weight.float(), delta.bias_of(bias)), x)

    def _blocks(self, adapters: Adapters) -> Iterable[tuple[Block, Adapters]]:
        """The blocks, and what is added to each."""
        own = adapters.of("blocks")
        for index, block in enumerate(self.blocks):
            yield cast(Block, block), own.of(str(index))
