"""Pictures of what videos are coming to, while they are made; not too many of them."""

from __future__ import annotations

import io
import time

from PIL import Image

from wantrn.model.denoising import Denoising
from wantrn.model.pipeline import WanPipeline
from wantrn.serving.engines.protocol import Previewed

_SECONDS = 1.0
"""From one picture of a video to the next."""


class Previews:
    """Draws by what is fitted to the checkpoint's autoencoder, when this is made."""

    def __init__(self, pipeline: WanPipeline) -> None:
        self._preview = pipeline.fit_preview()

    def after_step(self, id: str, run: Denoising, last: float) -> Previewed | None:
        """A picture, if the ``last`` one (or the beginning) is long enough ago by
        ``time.monotonic``."""
        if run.estimate is None or time.monotonic() - last < _SECONDS:
            return None
        file = io.BytesIO()
        Image.fromarray(self._preview.picture(run.estimate).numpy()).save(file, "PNG")
        return Previewed(id, file.getvalue())
