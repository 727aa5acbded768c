"""The LoRAs of settings, as records and processes pass them on."""

from __future__ import annotations

import json
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from wantrn.model.lora import LoraChoice
from wantrn.model.settings import Settings
from wantrn.serving.settings_json import settings_from_json, settings_to_json

PATHS = st.none() | st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1).map(
    Path
)
SCALES = st.floats(allow_nan=False, allow_infinity=False)
CHOICES = st.builds(LoraChoice, st.text(), PATHS, PATHS, SCALES, SCALES)


def settings(*loras: LoraChoice) -> Settings:
    return Settings(
        *("a ball", "", None, 64, 32, 5, 16, 4, 3.0, None, None, 5.0, "euler", 7), loras=loras
    )


@given(st.lists(CHOICES, max_size=3))
def test_choices_come_back(choices: list[LoraChoice]) -> None:
    given = settings(*choices)
    assert settings_from_json(settings_to_json(given)) == given


def test_records_from_before_have_none() -> None:
    values = json.loads(settings_to_json(settings()))
    del values["loras"]
    assert settings_from_json(json.dumps(values)) == settings()
