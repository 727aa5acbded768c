"""Kernels of the Wan2.2 diffusion transformer, as torch operators."""

__version__ = "0.1.0"
