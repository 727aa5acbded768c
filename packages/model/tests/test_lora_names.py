"""The names of LoRA files, in all dialects, for models of any size."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lora_files import BLOCK, TOP, layer_names, vector_names
from test_lora_files import CONFIG

from wantrn.model.checkpoints.diffusers import canonical_shapes
from wantrn.model.config import WanConfig
from wantrn.model.errors import CheckpointError
from wantrn.model.lora.dialects import Role, Target, key_map, keys_for_expert

CONFIGS = st.builds(
    WanConfig,
    num_attention_heads=st.integers(1, 3),
    attention_head_dim=st.sampled_from([2, 4]),
    in_channels=st.integers(1, 3),
    out_channels=st.integers(1, 3),
    text_dim=st.integers(1, 4),
    freq_dim=st.sampled_from([2, 4]),
    ffn_dim=st.integers(1, 5),
    num_layers=st.integers(1, 12),
)
SPELLINGS: Mapping[str, Callable[[str, str], str]] = {
    "diffusers": lambda canonical, original: f"transformer.{canonical}",
    "peft": lambda canonical, original: f"base_model.model.{canonical}",
    "original": lambda canonical, original: original,
    "comfyui": lambda canonical, original: f"diffusion_model.{original}",
    "kohya": lambda canonical, original: "lora_unet_" + original.replace(".", "_"),
}


@given(CONFIGS, st.sampled_from(sorted(SPELLINGS)), st.data())
def test_every_name_means_its_tensor(config: WanConfig, spelling: str, data: st.DataObject) -> None:
    """Any choice of layers: each key is for the tensor that was meant, and no two for one."""
    spell, names = SPELLINGS[spelling], layer_names(config)
    chosen = data.draw(st.lists(st.sampled_from(sorted(names)), min_size=1, unique=True))
    expected = {}
    for name in chosen:
        stem, weight = spell(name, names[name]), f"{name}.weight"
        expected[f"{stem}.lora_down.weight"] = Target(weight, Role.DOWN)
        expected[f"{stem}.lora_up.weight"] = Target(weight, Role.UP)
        expected[f"{stem}.alpha"] = Target(weight, Role.ALPHA)
        expected[f"{stem}.diff"] = Target(weight, Role.DIFFERENCE)
        expected[f"{stem}.diff_b"] = Target(f"{name}.bias", Role.DIFFERENCE)
    assert key_map(tuple(expected), config) == expected


@given(
    CONFIGS,
    st.sampled_from(sorted(SPELLINGS)),
    st.lists(st.text("abz._01", min_size=1, max_size=12), min_size=1, max_size=5, unique=True),
)
def test_other_names_are_refused(config: WanConfig, spelling: str, others: list[str]) -> None:
    names = layer_names(config)
    known = [f"{SPELLINGS[spelling](name, names[name])}.lora_A.weight" for name in names]
    with pytest.raises(CheckpointError) as raised:
        key_map([*known, *others], config)
    assert str(raised.value) == (
        f"{len(others)} of {len(others) + len(known)} keys are unknown: {', '.join(others)}"
    )


def test_every_tensor_of_the_model_can_be_changed() -> None:
    """The names that these tests use are all there are."""
    layers, vectors = layer_names(CONFIG), vector_names(CONFIG)
    assert {f"{name}.weight" for name in layers} | vectors.keys() == canonical_shapes(CONFIG).keys()
    assert len(layers) == len(TOP) + CONFIG.num_layers * len(BLOCK)


@given(
    st.lists(st.sampled_from(["transformer.a", "transformer_2.a", "b"]), unique=True), st.booleans()
)
def test_keys_of_one_expert(keys: list[str], low: bool) -> None:
    found = keys_for_expert(keys, int(low))
    both = len({key.startswith("transformer_2.") for key in keys}) == 2
    assert list(found) == [
        key for key in keys if not both or key.startswith("transformer_2.") == low
    ]


@pytest.mark.parametrize("prefix", ["", "diffusion_model."])
def test_tables_have_two_names(prefix: str) -> None:
    keys = [f"{prefix}{table}" for table in ("blocks.1.{}", "head.{}", "blocks.0.{}")]
    for ending in ("diff_m", "modulation.diff"):
        found = key_map([key.format(ending) for key in keys], CONFIG)
        tables = ("blocks.1.scale_shift_table", "scale_shift_table", "blocks.0.scale_shift_table")
        assert list(found.values()) == [Target(table, Role.DIFFERENCE) for table in tables]
