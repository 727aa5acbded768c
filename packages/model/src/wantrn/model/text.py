"""Prompts to text embeddings: tokenizer and UMT5 encoder, from transformers."""

from __future__ import annotations

import html
import logging
import math
import re
from pathlib import Path

import ftfy
import torch
from torch import Tensor
from transformers import AutoTokenizer, UMT5Config, UMT5EncoderModel
from transformers.tokenization_utils_base import PreTrainedTokenizerBase

from wantrn.model.byte_cache import ByteCache, CacheCounts
from wantrn.model.caches import CacheLimits
from wantrn.model.checkpoints import TensorStore, load_module
from wantrn.model.errors import CheckpointError
from wantrn.model.meta_module import meta_module
from wantrn.model.text_parallel import text_encoder_part
from wantrn.parallel.group import Group

MAX_TOKENS = 512  # Wan's text length
# MKL's products of 5, 7 or 11 rows depend on the number of threads in their last bits; those of
# multiples of 16 rows do not, and nor does then the video.
_ROW_MULTIPLE = 16

# UMT5's two names of one tensor: alias to name. A file may hold either.
TIED_PARAMETERS = {"encoder.embed_tokens.weight": "shared.weight"}

_ALONE = Group.single()

_logger = logging.getLogger(__name__)


def clean_prompt(prompt: str) -> str:
    """Mended Unicode, HTML entities resolved (twice, as in Wan's own code), single spaces."""
    mended = html.unescape(html.unescape(ftfy.fix_text(prompt)))
    return re.sub(r"\s+", " ", mended).strip()


def meta_text_encoder(folder: Path) -> UMT5EncoderModel:
    """The encoder of a checkpoint, without data; ``CheckpointError`` as ``meta_module``."""
    return meta_module(folder, lambda config: UMT5EncoderModel(UMT5Config(**config)))


class TextEncoder:
    """Encodes a prompt as the diffusion transformer was trained to see it.

    The prompts used last are kept encoded, in at most ``cache_bytes`` of memory.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        encoder: UMT5EncoderModel,
        cache_bytes: int = CacheLimits.prompts,
    ) -> None:
        self._tokenizer = tokenizer
        self._encoder = encoder
        self._cache: ByteCache[tuple[int, ...], Tensor] = ByteCache(cache_bytes)

    @classmethod
    def load(
        cls,
        tokenizer: Path,
        encoder: Path,
        dtype: torch.dtype,
        group: Group = _ALONE,
        cache_bytes: int = CacheLimits.prompts,
    ) -> TextEncoder:
        """From the folders of a checkpoint.

        The ranks of ``group`` share the encoder: each reads and holds its part, all encode the same
        prompt together, and each has the whole result.

        Raises:
            CheckpointError: naming what is missing or wrong.
            ValueError: the encoder cannot be shared by that many ranks.
        """
        part = text_encoder_part(meta_text_encoder(encoder).config, group)
        store = TensorStore.open(encoder)
        load_module(part.module, store, dtype, tied=TIED_PARAMETERS, slices=part.slices)
        if not tokenizer.is_dir():  # else transformers takes the path for a name on a hub
            raise CheckpointError(f"{tokenizer}: no such folder")
        try:
            words = AutoTokenizer.from_pretrained(tokenizer, local_files_only=True)
        except Exception as error:  # whatever the library's readers of many formats raise
            raise CheckpointError(f"{tokenizer}: no tokenizer can be read: {error}") from error
        return cls(words, part.module.eval(), cache_bytes)

    @property
    def cache_counts(self) -> CacheCounts:
        """How often a prompt was found encoded, and what is kept."""
        return self._cache.counts

    @torch.inference_mode()
    def encode(self, prompt: str) -> Tensor:
        """``[1, 512, text_dim]`` in the encoder's dtype; rows past the prompt's end are zero.

        The padding that upstream sends through the encoder is masked there, so most of it is left
        out here. A prompt of more than 512 tokens is cut, as the model reads no more, and a warning
        says so.
        """
        ids = self._tokenizer(clean_prompt(prompt), add_special_tokens=True)["input_ids"]
        if len(ids) > MAX_TOKENS:
            _logger.warning(
                "the prompt has %d tokens; the model reads the first %d", len(ids), MAX_TOKENS
            )
            # as a tokenizer truncates: the end mark stays
            ids = [*ids[: MAX_TOKENS - 1], ids[-1]]
        encoded = self._cache.get(tuple(ids))
        if encoded is None:  # on all ranks of a group, as they were asked for the same until now
            encoded = self._encode(ids)
            self._cache.put(tuple(ids), encoded, encoded.nbytes)
        padded = encoded.new_zeros((1, MAX_TOKENS, encoded.shape[-1]))
        padded[0, : len(ids)] = encoded
        return padded

    def _encode(self, ids: list[int]) -> Tensor:
        """``[len(ids), text_dim]``."""
        rows = math.ceil(len(ids) / _ROW_MULTIPLE) * _ROW_MULTIPLE
        tokens = torch.full((1, rows), self._encoder.config.pad_token_id, dtype=torch.int64)
        tokens[0, : len(ids)] = torch.tensor(ids)
        mask = (torch.arange(rows) < len(ids)).long().unsqueeze(0)
        encoded: Tensor = self._encoder(tokens, mask).last_hidden_state
        return encoded[0, : len(ids)].clone()
