"""A tiny trained Wan2.2: a checkpoint in the layout of diffusers, which comes with this package."""

from pathlib import Path

__version__ = "0.1.0"

CHECKPOINT = Path(__file__).resolve().parent / "wantrn-tiny"
"""The checkpoint's folder, by whose name servers know the model.

Resolved at import, as the path of a module may be relative.
"""
