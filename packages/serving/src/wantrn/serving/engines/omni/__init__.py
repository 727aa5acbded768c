"""The engine of production: vLLM-Omni, with our pipelines, platforms, workers and executor in it.

Only ``compatibility`` imports from vLLM and vLLM-Omni, which need not be installed.
"""
