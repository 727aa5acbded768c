"""The platform ``cpu``: ranks are processes, and their devices are the machine's processors."""

from __future__ import annotations

import os
import resource
import sys

import torch

from wantrn.serving.engines.omni.compatibility import CpuPlatform, OmniPlatform, OmniPlatformEnum


class CpuOmniPlatform(OmniPlatform, CpuPlatform):  # type: ignore[misc]
    """What vLLM-Omni asks of a platform, answered for a machine without an accelerator."""

    _omni_enum = OmniPlatformEnum.OOT
    device_type = "cpu"
    dist_backend = "gloo"

    @classmethod
    def get_diffusion_worker_cls(cls) -> str:
        return "wantrn.serving.engines.omni.worker.WanWorker"

    @classmethod
    def get_diffusion_model_runner_cls(cls) -> str:
        return "wantrn.serving.engines.omni.runner.WanRunner"

    @classmethod
    def get_default_stage_config_path(cls) -> str:
        return "vllm_omni/model_executor/stage_configs"

    @classmethod
    def supports_torch_inductor(cls) -> bool:
        return False

    @classmethod
    def get_torch_device(cls, local_rank: int | None = None) -> torch.device:
        return torch.device("cpu")

    @classmethod
    def get_device_count(cls) -> int:
        """Any number of ranks share the processors; vLLM-Omni wants to see one device for each."""
        return 1024

    @classmethod
    def device_count(cls) -> int:
        return cls.get_device_count()

    @classmethod
    def get_device_version(cls) -> str | None:
        return None

    @classmethod
    def set_device(cls, device: torch.device) -> None:
        """There is but one."""

    @classmethod
    def synchronize(cls) -> None:
        """Nothing runs behind the program's back."""

    @classmethod
    def empty_cache(cls) -> None:
        """There is none."""

    @classmethod
    def get_device_memory(cls, device: torch.device | None = None) -> tuple[int, int]:
        """Free and all memory, in bytes."""
        return cls.get_free_memory(), cls.get_device_total_memory()

    @classmethod
    def get_free_memory(cls, device: torch.device | None = None) -> int:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")

    @classmethod
    def get_device_total_memory(cls, device_id: int = 0) -> int:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")

    @classmethod
    def get_current_memory_usage(cls, device: torch.device | None = None) -> float:
        return float(cls.max_memory_allocated())

    @classmethod
    def reset_peak_memory_stats(cls, device: torch.device | None = None) -> None:
        """The system's peak of a process cannot be reset."""

    @classmethod
    def max_memory_allocated(cls, device: torch.device | None = None) -> int:
        """The most that this process has had, in bytes."""
        unit = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit

    @classmethod
    def max_memory_reserved(cls, device: torch.device | None = None) -> int:
        return cls.max_memory_allocated()
