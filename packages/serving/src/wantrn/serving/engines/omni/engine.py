"""The engine of vLLM-Omni in this process, with ranks of ours."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from wantrn.model.device import find_device
from wantrn.model.errors import RequestError
from wantrn.model.info import read_model_info
from wantrn.model.media import read_image, write_video
from wantrn.model.settings import Settings
from wantrn.serving.computation import describe_computation
from wantrn.serving.engines.omni.compatibility import OmniUnavailableError, check_versions
from wantrn.serving.engines.omni.hardware import find_platform
from wantrn.serving.engines.omni.plugin import model_class
from wantrn.serving.engines.omni.request_settings import Prepared
from wantrn.serving.engines.omni.stage_options import StageOptionError, stage_arguments
from wantrn.serving.engines.options import EngineOptions, check_ranks
from wantrn.serving.engines.protocol import (
    Cancelled,
    EngineError,
    Event,
    Failed,
    Finished,
    Health,
    Lost,
    Ready,
    Started,
    Stepped,
    Work,
)
from wantrn.serving.engines.state import EngineState
from wantrn.serving.stages import Stages

STAGES = ("text and noise", "denoise", "decode")
_EXECUTOR = "wantrn.serving.engines.omni.executor.RankExecutor"


@dataclass
class _Given:
    """A piece of work that the engine has. ``reused`` counts steps that a step cache made;
    ``failure`` is what a rank said of its end."""

    cancelled: bool = False
    reused: int = 0
    failure: Failed | None = None


class OmniEngine(EngineState):
    """See ``Engine``. ``options`` are checked when it is made.

    Each piece of work is a request to vLLM-Omni; what its step execution makes of them is one step
    of each in turn, and a request that is aborted is in no step that begins later. The file is
    written in this process, from frames that come from the first rank.

    Raises:
        EngineError: vLLM-Omni is not there, or of an untested version, or cannot be asked for this.
        CheckpointError: the folder holds no checkpoint.
        RequestError: an option that the model or this machine does not have, by name.
    """

    def __init__(self, options: EngineOptions) -> None:
        platform = find_platform()
        if platform is None:
            raise EngineError("the engine omni has no platform for this machine's accelerator")
        info = read_model_info(options.model)
        dtype, device = info.choose_dtype(options.dtype), find_device(platform)
        check_ranks(options.ranks, options.warm_up, info)
        try:
            version = check_versions()
            self._arguments = {
                **stage_arguments(options),
                "model": str(options.model),
                "model_class_name": model_class(info.kind),
                "dtype": dtype,
                "max_num_seqs": options.slots,
                "step_execution": True,
                "enforce_eager": True,
                "distributed_executor_backend": _EXECUTOR,
            }
        except (OmniUnavailableError, StageOptionError) as error:
            raise EngineError(str(error)) from error
        computation = describe_computation(info, dtype, device, options.ranks)
        super().__init__(options, info, {**computation, "engine": f"vllm-omni {version}"})
        self._given: dict[str, _Given] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._engine: Any = None
        self._starter: asyncio.Task[None] | None = None

    @property
    def pids(self) -> tuple[int, ...]:
        """The processes of the ranks, in their order; none while they are not there."""
        return () if self._engine is None else tuple(self._engine.executor.pids)

    async def start(self) -> None:
        if self._starter is not None:
            raise EngineError("the engine has been started already")
        self._starter = asyncio.create_task(self._start())

    async def stop(self) -> None:
        self._stopping = True
        self._given.clear()  # no end of it is told any more
        if self._starter is not None:
            await self._starter
        if self._engine is not None:
            # before the engine's thread is asked to end: it may be waiting for the ranks
            await asyncio.to_thread(self._engine.executor.shutdown)
            await asyncio.to_thread(self._engine.close)
        for task in [*self._tasks]:
            await task
        self._events.put_nowait(None)

    async def submit(self, work: Work) -> None:
        self._check_room(self._given)
        self._given[work.id] = _Given()
        task = asyncio.create_task(self._make(work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def cancel(self, id: str) -> None:
        if id in self._given:
            self._given[id].cancelled = True
            self._engine.abort(id)

    async def _start(self) -> None:
        """Make vLLM-Omni's engine, which begins to start the ranks."""
        loop = asyncio.get_running_loop()

        def hear(event: Event) -> None:
            loop.call_soon_threadsafe(self._hear, event)

        try:
            # importing it takes seconds
            self._engine = await asyncio.to_thread(_make_engine, self._arguments)
        except Exception as error:
            self._hear(Lost(f"vLLM-Omni cannot be started: {error}", broken=True))
            return
        self._engine.executor.listen(hear)

    def _hear(self, event: Event) -> None:
        """What the executor tells, in this loop's thread."""
        if self._stopping:
            return
        if isinstance(event, Ready):
            self._health = Health.READY
        elif isinstance(event, Lost):
            self._health = Health.BROKEN if event.broken else Health.RESTARTING
            lost, self._given = self._given, {}
            if self._engine is not None and lost:
                self._engine.abort(list(lost))
        else:
            given = self._given.get(event.id)
            if given is None:
                return  # what its ranks did not know yet
            if isinstance(event, Failed):
                given.failure = event  # its request will end soon, and then it is told
                return
            if isinstance(event, Stepped):
                given.reused += event.reused
            if isinstance(event, Started) and given.cancelled:
                self._engine.abort(event.id)  # it was not there when it was to be dropped
        self._events.put_nowait(event)

    async def _make(self, work: Work) -> None:
        """Have one video made, and tell its end, unless it was lost meanwhile."""
        given = self._given[work.id]
        end: Finished | Failed | Cancelled
        try:
            settings = await _with_image(work)
            frames, stages = await self._frames(work.id, Prepared(settings, exact=False))
        except RequestError as error:
            end = Failed(work.id, "invalid_input", str(error))
        except Exception as error:
            if _aborted(error):
                end = Cancelled(work.id)
            else:
                end = given.failure or Failed(work.id, "engine_error", str(error))
        else:
            if work.settings.step_cache is not None:
                metadata = {**work.metadata, "steps_reused": given.reused}
                work = replace(work, metadata=metadata)
            end = await _write(work, frames, stages)
        if self._given.get(work.id) is given:
            del self._given[work.id]
            self._events.put_nowait(end)
        elif isinstance(end, Finished):
            work.output.unlink(missing_ok=True)

    async def _frames(
        self, id: str, prepared: Prepared
    ) -> tuple[npt.NDArray[np.uint8], dict[str, float]]:
        """The video of a request, ``[F, H, W, 3]``, and the seconds of its stages."""
        stream = self._engine.step_streaming(_request(id, prepared))
        # there is but one, at the end
        ((output,),) = [outputs async for outputs in stream]
        ((frames,),) = output.images
        seconds = output.stage_durations
        return frames, {name: seconds[name] for name in STAGES}


def _make_engine(arguments: Mapping[str, Any]) -> Any:
    from wantrn.serving.engines.omni.compatibility import (
        DiffusionEngine,
        OmniDiffusionConfig,
        load_omni_general_plugins,
    )

    load_omni_general_plugins()
    return DiffusionEngine(OmniDiffusionConfig(**arguments))


def _request(id: str, prepared: Prepared) -> Any:
    """What vLLM-Omni's scheduler sees of work is the same for all, so that it lets all go on at
    once; by other parameters it would make videos of other shapes wait."""
    from wantrn.serving.engines.omni.compatibility import (
        OmniDiffusionRequest,
        OmniDiffusionSamplingParams,
    )

    settings = prepared.settings
    params = OmniDiffusionSamplingParams(
        seed=settings.seed, guidance_scale=1.0, num_inference_steps=settings.steps
    )
    return OmniDiffusionRequest(
        prompt=settings.prompt, sampling_params=params, request_id=id, prepared_layout=prepared
    )


def _aborted(error: Exception) -> bool:
    from wantrn.serving.engines.omni.compatibility import DiffusionRequestAbortedError

    return isinstance(error, DiffusionRequestAbortedError)


async def _with_image(work: Work) -> Settings:
    if work.image is None:
        return work.settings
    image = await asyncio.to_thread(read_image, work.image)
    return replace(work.settings, image=image)


async def _write(
    work: Work, frames: npt.NDArray[np.uint8], seconds: Mapping[str, float]
) -> Finished | Failed:
    stages = Stages()
    try:
        with stages.measure("write"):
            await asyncio.to_thread(
                write_video, work.output, frames, work.settings.fps, work.metadata
            )
    except (RequestError, OSError) as error:
        return Failed(work.id, "not_written", f"the video cannot be written: {error}")
    return Finished(work.id, {**seconds, **stages.seconds})
