"""What a stage of vLLM-Omni is told, as what our pipelines know; the rest is refused by name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import torch
from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from pydantic import dataclasses as checked
from torch import Tensor

from wantrn.model.device import find_device
from wantrn.model.errors import RequestError
from wantrn.model.features import Feature
from wantrn.model.info import ModelInfo, read_model_info
from wantrn.parallel.attention import Strategy
from wantrn.parallel.launch import threads_per_rank
from wantrn.serving.engines.omni.hardware import CPU, find_platform
from wantrn.serving.engines.omni.plugin import model_class
from wantrn.serving.engines.options import EngineOptions, check_ranks
from wantrn.serving.rank_options import RankOptions
from wantrn.serving.shapes import Shape

NEEDS_STEPS = "step_execution is False; our pipelines need True"
OURS = "wantrn"
"""The key in a stage's ``custom_pipeline_args`` with the options that vLLM-Omni has not."""
APART = frozenset({Feature.ALL_GATHER, Feature.ULYSSES})
"""What goes together but on vLLM-Omni, which makes no such groups."""

# What the pipelines carry out, or check for themselves; see ``StageOptions.of``.
_READ = {
    *("model", "model_class_name", "dtype", "parallel_config", "num_gpus", "step_execution"),
    *("max_num_seqs", "vae_use_tiling", "boundary_ratio", "flow_shift", "custom_pipeline_args"),
    # FP8 is a property of the checkpoint
    *("quantization_config", "quantization_config_is_auto_detected"),
}
# What vLLM-Omni uses by itself, around the pipelines.
_ITS_OWN = {
    *("stage_id", "master_port", "nccl_port", "dist_timeout", "host", "port", "scheduler_port"),
    *("engine_backend", "distributed_executor_backend", "log_level", "trust_remote_code"),
    *("revision", "model_config", "tf_model_config", "omni_kv_config", "additional_config"),
    *("supports_multimodal_inputs", "max_multimodal_image_inputs"),
    *("supports_mixed_reference_inputs", "diffusion_attention_config", "output_type"),
    *("cache_config", "max_cpu_loras", "enable_stage_verification", "max_num_batched_tokens"),
    *("gpu_memory_utilization", "max_model_len", "profiler_config", "request_batch_max_wait_ms"),
    # of other models
    "extras",
    # the transformers run as they are, compiled or not
    "enforce_eager",
}
_PARALLEL_READ = {
    *("tensor_parallel_size", "ring_degree", "ulysses_degree", "allgather_degree"),
    *("sequence_parallel_size", "cfg_parallel_size", "vae_patch_parallel_size"),
    # one video at a time is shared by all ranks
    "data_parallel_size",
}


_NOTHING: tuple[object, ...] = (None, {}, [], ())


class StageOptionError(ValueError):
    """A stage option that cannot be carried out. The text names it, its value, what is allowed."""


@checked.dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class OwnOptions:
    """Options of a stage that vLLM-Omni has no names for.

    ``threads`` are the CPU threads of each rank; None is an even share of the processors.
    ``warm_up`` are shapes of which a video is made before the stage is ready. The others are those
    of ``RankOptions``.
    """

    threads: int | None = Field(default=None, ge=1)
    warm_up: tuple[Shape, ...] = ()
    batch_guidance: bool = False
    sequence_sharding: bool = False
    replicate_cross_attention: bool = False
    strict_tokens: bool = False

    @classmethod
    def of(cls, values: Mapping[str, Any] | None) -> OwnOptions:
        """Of ``custom_pipeline_args``."""
        given = dict(values or {})
        own = given.pop(OURS, {})
        known = {field.name for field in fields(cls)}
        for name in sorted(given.keys() | (own.keys() - known)):
            raise StageOptionError(
                f"custom_pipeline_args has {name!r}; allowed is {OURS!r}, with "
                f"{', '.join(sorted(known))}"
            )
        try:
            return TypeAdapter(cls).validate_python(own)
        except ValidationError as error:
            first = error.errors(include_url=False, include_context=False)[0]
            path = ".".join(map(str, (OURS, *first["loc"])))
            raise StageOptionError(
                f"custom_pipeline_args has {path} of {first['input']!r}: {first['msg']}"
            ) from error


@dataclass(frozen=True)
class StageOptions:
    """How a stage computes.

    Attributes:
        shift: of the schedule, where a request has none; None is the checkpoint's.
        warm_up: the shapes of which a video is made before the stage is ready.
    """

    info: ModelInfo
    dtype: torch.dtype
    device: torch.device
    threads: int
    ranks: RankOptions
    shift: float | None
    warm_up: tuple[Shape, ...]

    @classmethod
    def of(cls, config: Any) -> StageOptions:
        """Of an ``OmniDiffusionConfig``.

        Raises:
            StageOptionError: an option that cannot be carried out.
            CheckpointError: there is no checkpoint that can be read.
        """
        _refuse_unknown(config, _READ | _ITS_OWN)
        _refuse_unknown(config.parallel_config, _PARALLEL_READ)
        if not config.step_execution:
            raise StageOptionError(NEEDS_STEPS)
        info = read_model_info(Path(config.model))
        if config.model_class_name != model_class(info.kind):
            raise StageOptionError(
                f"model_class_name is {config.model_class_name!r}; allowed for this checkpoint is "
                f"{model_class(info.kind)!r}"
            )
        if config.boundary_ratio not in (None, info.boundary_ratio):
            raise StageOptionError(
                f"boundary_ratio is {config.boundary_ratio}; allowed is the checkpoint's, "
                f"{info.boundary_ratio}"
            )
        if config.quantization_config is not None and info.quantization is None:
            raise StageOptionError(
                "quantization_config is given; FP8 is a property of the checkpoint, which "
                "wantrn quantize makes"
            )
        own = OwnOptions.of(config.custom_pipeline_args)
        ranks = _ranks(config, own)
        try:
            info.check_dtype(config.dtype)
            check_ranks(ranks, own.warm_up, info)
        except RequestError as error:
            raise StageOptionError(str(error)) from error
        return cls(
            info=info,
            dtype=config.dtype,
            device=find_device(find_platform() or CPU),
            threads=own.threads or threads_per_rank(ranks.degrees().world),
            ranks=ranks,
            shift=config.flow_shift,
            warm_up=own.warm_up,
        )


def stage_arguments(options: EngineOptions) -> dict[str, Any]:
    """Fields of an ``OmniDiffusionConfig`` that ``StageOptions.of`` reads as the same ranks,
    threads and shapes.

    Raises:
        StageOptionError: ranks that vLLM-Omni cannot be asked for.
    """
    ranks = options.ranks
    gathers = ranks.context == Strategy.ALL_GATHER.value
    if ranks.features() >= APART:
        raise StageOptionError(
            f"context is {ranks.context} with ulysses of {ranks.ulysses}; vLLM-Omni has no such "
            "groups, allowed is ulysses of 1"
        )
    own = OwnOptions(
        threads=options.threads,
        warm_up=options.warm_up,
        batch_guidance=ranks.batch_guidance,
        sequence_sharding=ranks.sequence_sharding,
        replicate_cross_attention=ranks.replicate_cross_attention,
        strict_tokens=ranks.strict_tokens,
    )
    world = ranks.degrees().world
    return {
        "parallel_config": {
            "tensor_parallel_size": ranks.tp,
            "ring_degree": 1 if gathers else ranks.ring,
            "allgather_degree": ranks.ring if gathers else 1,
            "ulysses_degree": ranks.ulysses,
            "cfg_parallel_size": 2 if ranks.cfg_parallel else 1,
            "vae_patch_parallel_size": world if ranks.vae_parallel else 1,
        },
        "vae_use_tiling": ranks.tile_vae,
        "custom_pipeline_args": {OURS: asdict(own)},
    }


def _ranks(config: Any, own: OwnOptions) -> RankOptions:
    parallel = config.parallel_config
    shares = parallel.vae_patch_parallel_size
    if shares not in (1, config.num_gpus):
        raise StageOptionError(
            f"vae_patch_parallel_size is {shares}; allowed are 1 and {config.num_gpus}, all ranks"
        )
    if parallel.data_parallel_size not in (None, 1):
        raise StageOptionError(
            f"data_parallel_size is {parallel.data_parallel_size}; allowed is 1, with num_gpus as "
            "many as the other degrees come to"
        )
    if parallel.cfg_parallel_size not in (1, 2):
        raise StageOptionError(
            f"cfg_parallel_size is {parallel.cfg_parallel_size}; allowed are 1 and 2"
        )
    gathers = parallel.allgather_degree > 1
    return RankOptions(
        tp=parallel.tensor_parallel_size,
        ring=parallel.allgather_degree if gathers else parallel.ring_degree,
        ulysses=parallel.ulysses_degree,
        cfg_parallel=parallel.cfg_parallel_size == 2,
        batch_guidance=own.batch_guidance,
        sequence_sharding=own.sequence_sharding,
        replicate_cross_attention=own.replicate_cross_attention,
        context=(Strategy.ALL_GATHER if gathers else Strategy.RING).value,
        strict_tokens=own.strict_tokens,
        tile_vae=config.vae_use_tiling,
        vae_parallel=shares > 1,
    )


def _refuse_unknown(options: Any, allowed: set[str]) -> None:
    """Whatever else is not as if it had never been mentioned would be ignored, so it is refused."""
    for name, value, default in unusual(options):
        if name not in allowed:
            raise StageOptionError(
                f"{name} is {value!r}, which our pipelines do not carry out; allowed is {default!r}"
            )


def unusual(options: Any) -> Iterator[tuple[str, Any, Any]]:
    """The fields of a dataclass of vLLM-Omni's that are not as they come: name, value, default."""
    untouched = type(options)()
    for field in fields(options):
        value, default = getattr(options, field.name), getattr(untouched, field.name)
        if isinstance(value, Tensor) or (value != default and value not in _NOTHING):
            yield field.name, value, default
