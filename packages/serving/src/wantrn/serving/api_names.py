"""What the videos API calls the fields that the model and the commands know by other names."""

from __future__ import annotations

from collections.abc import Mapping

API_NAMES: Mapping[str, str] = {
    "frames": "num_frames",
    "steps": "num_inference_steps",
    "guidance": "guidance_scale",
    "guidance_2": "guidance_scale_2",
    "shift": "flow_shift",
    "image": "input_reference",
}
"""By the name in ``VideoRequest``, which is also that of the option."""
