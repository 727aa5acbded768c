"""Pictures in, videos out."""

from wantrn.model.media.image import cover, read_image, to_tensor
from wantrn.model.media.video import check_output, read_frames, read_video, to_uint8, write_video

__all__ = [
    "check_output",
    "cover",
    "read_frames",
    "read_image",
    "read_video",
    "to_tensor",
    "to_uint8",
    "write_video",
]
