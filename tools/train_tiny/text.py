"""The tokenizer, and the text encoder that is trained with the transformer."""

from __future__ import annotations

import torch
from tokenizers import (
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)
from torch import Tensor, nn
from transformers import PreTrainedTokenizerFast, UMT5Config, UMT5EncoderModel

from train_tiny.captions import all_words, caption

ROWS = 24
"""Of a batch of prompts in training: more than the longest caption has tokens."""

_SPECIAL_TOKENS = ["<pad>", "</s>", "<unk>"]  # ids 0, 1, 2 as in UMT5's own tokenizer
_VOCABULARY = 512


def make_tokenizer() -> PreTrainedTokenizerFast:
    """Byte-level BPE of the captions, which reads any other text too; always the same.

    The grammar's words are its own, so nothing that is kept out of training enters by it.
    """
    generator = torch.Generator().manual_seed(0)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFC(), normalizers.Lowercase()])
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=_VOCABULARY,
        special_tokens=_SPECIAL_TOKENS,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator((caption(words, generator) for words in all_words()), trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="$A </s>", special_tokens=[("</s>", 1)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        eos_token="</s>",
        unk_token="<unk>",
        model_max_length=512,
    )


class PromptEncoder(nn.Module):
    """Captions to what the transformer reads, as ``wantrn.model.text`` has it, with fewer rows."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast) -> None:
        super().__init__()
        self.tokenizer = tokenizer
        self.encoder = UMT5EncoderModel(
            UMT5Config(
                vocab_size=len(tokenizer),
                d_model=128,
                d_kv=32,
                d_ff=256,
                num_layers=2,
                num_heads=4,
                dropout_rate=0.0,
                feed_forward_proj="gated-gelu",
                pad_token_id=0,
                eos_token_id=1,
            )
        )

    @property
    def width(self) -> int:
        return int(self.encoder.config.d_model)

    def forward(self, captions: list[str]) -> Tensor:
        """``[B, ROWS, width]``; rows past a caption's end are zero, and the last one always is."""
        batch = self.tokenizer(captions, padding="max_length", max_length=ROWS, return_tensors="pt")
        ids, mask = batch["input_ids"], batch["attention_mask"]
        if ids.shape[1] != ROWS or bool(mask[:, -1].any()):
            raise ValueError(f"a caption has {ROWS} tokens or more: {captions}")
        encoded: Tensor = self.encoder(ids, mask).last_hidden_state
        return encoded.mul(mask.unsqueeze(-1))
