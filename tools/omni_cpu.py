"""A platform for a CPU for vLLM-Omni 0.30, which has none: what is compared with ours runs on it.

It is an out-of-tree plugin in a temporary folder on the path to modules: the server, its pipelines,
its models and its collectives are vLLM-Omni's, and its environment is not touched.

Two places of vLLM-Omni ask for an accelerator whatever the platform is: the thread that sends
videos from a rank to the server, and the kernel of ring attention. The first is given a loop
without an accelerator's streams; ring attention is not compared.
"""

from __future__ import annotations

import os
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

PLUGIN = "wantrn_stock_cpu"
"""For ``VLLM_PLUGINS``."""
THREADS = "WANTRN_STOCK_THREADS"
"""The variable with the threads of each rank of a server."""


def write_plugin(folder: Path) -> None:
    """Make ``folder`` one that announces our platforms, once it is on ``sys.path``."""
    info = folder / f"{PLUGIN}-0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {PLUGIN}\nVersion: 0\n")
    module = Path(__file__).stem
    (info / "entry_points.txt").write_text(
        f"[vllm.platform_plugins]\n{PLUGIN} = {module}:vllm_platform\n"
        f"[vllm_omni.platform_plugins]\n{PLUGIN} = {module}:omni_platform\n"
    )


def vllm_platform() -> str:
    """The entry point of vLLM's platform."""
    return "vllm.platforms.cpu.CpuPlatform"


def omni_platform() -> str:
    """The entry point of vLLM-Omni's platform: the name that `__getattr__` answers to."""
    return f"{__name__}.StockCpu"


def __getattr__(name: str) -> Any:
    """The classes whose bases are only importable where vLLM-Omni is."""
    makers = {"StockCpu": _platform_class, "StockWorker": _worker_class, "CpuSdpa": _attention}
    if name not in makers:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    made = globals()[name] = makers[name]()
    return made


def _platform_class() -> type:
    interface = import_module("vllm_omni.platforms.interface")
    omni_base: Any = interface.OmniPlatform
    cpu_base: Any = import_module("vllm.platforms.cpu").CpuPlatform

    class StockCpu(omni_base, cpu_base):  # type: ignore[misc]
        _omni_enum = interface.OmniPlatformEnum.OOT
        device_type = "cpu"
        dist_backend = "gloo"

        @classmethod
        def get_default_stage_config_path(cls) -> str:
            return "vllm_omni/model_executor/stage_configs"

        @classmethod
        def get_diffusion_worker_cls(cls) -> str:
            return f"{__name__}.StockWorker"

        @classmethod
        def get_diffusion_attn_backend_cls(cls, *_args: object, **_kwargs: object) -> str:
            return f"{__name__}.CpuSdpa"

        @classmethod
        def supports_torch_inductor(cls) -> bool:
            return False

        @classmethod
        def get_torch_device(cls, local_rank: int | None = None) -> torch.device:
            return torch.device("cpu")

        @classmethod
        def get_device_count(cls) -> int:
            return 8

        @classmethod
        def device_count(cls) -> int:
            return 8

        @classmethod
        def get_device_version(cls) -> None:
            return None

        @classmethod
        def set_device(cls, device: object) -> None:
            pass

        @classmethod
        def synchronize(cls) -> None:
            pass

        @classmethod
        def empty_cache(cls) -> None:
            pass

        @classmethod
        def is_initialized(cls) -> bool:
            return False

        @classmethod
        def current_device(cls) -> int:
            return 0

        @classmethod
        def get_free_memory(cls, device: object = None) -> int:
            return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")

        @classmethod
        def get_device_total_memory(cls, device_id: int = 0) -> int:
            return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")

        @classmethod
        def get_device_memory(cls, device: object = None) -> tuple[int, int]:
            return cls.get_free_memory(), cls.get_device_total_memory()

        @classmethod
        def get_current_memory_usage(cls, device: object = None) -> float:
            return 0.0

        @classmethod
        def reset_peak_memory_stats(cls, device: object = None) -> None:
            pass

        @classmethod
        def max_memory_allocated(cls, device: object = None) -> int:
            return 0

        @classmethod
        def max_memory_reserved(cls, device: object = None) -> int:
            return 0

    return StockCpu


def _attention() -> type:
    sdpa: Any = import_module("vllm_omni.diffusion.attention.backends.sdpa")

    class Implementation(sdpa.SDPAImpl):  # type: ignore[misc]
        def forward(self, *args: Any, **kwargs: Any) -> torch.Tensor:
            result: torch.Tensor = self.forward_cuda(*args, **kwargs)  # plain torch, on any device
            return result

    class CpuSdpa(sdpa.SDPABackend):  # type: ignore[misc]
        @staticmethod
        def get_impl_cls() -> type:
            return Implementation

    return CpuSdpa


def _worker_class() -> type:
    worker: Any = import_module("vllm_omni.diffusion.worker.diffusion_worker")
    worker.WorkerProc._async_output_loop = _send_outputs

    class StockWorker(worker.DiffusionWorker):  # type: ignore[misc]
        def init_device(self) -> None:
            super().init_device()
            torch.set_num_threads(int(os.environ[THREADS]))

    return StockWorker


def _send_outputs(process: Any) -> None:
    """A rank's thread that sends what it has made; without a stream of an accelerator."""
    data: Any = import_module("vllm_omni.diffusion.data")
    pack: Any = import_module("vllm_omni.diffusion.ipc").pack_diffusion_output_shm
    while (item := process._async_output_queue.get()) is not None:
        output, number, _event = item
        message = {"kind": data.AsyncOutputKind.OUTPUT_READY, "async_output_id": number}
        try:
            pack(output)
            message["output"] = output
        except Exception as error:
            message["error"] = f"the output cannot be sent: {error}"
        process._enqueue_result(data.AsyncDiffusionOutput(**message))
        with process._async_output_done:
            process._async_output_pending = max(0, process._async_output_pending - 1)
            process._async_output_done.notify_all()
