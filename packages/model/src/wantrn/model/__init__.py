"""The Wan2.2 video diffusion models: checkpoints, transformer, schedulers and pipeline."""

from wantrn.kernels import __version__ as kernels_version
from wantrn.model.config import WanConfig
from wantrn.model.errors import CheckpointError, RequestError

__all__ = ["CheckpointError", "RequestError", "WanConfig", "kernels_version"]
__version__ = "0.1.0"
