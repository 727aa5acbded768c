"""Our pipelines, cut into the four parts that vLLM-Omni's step execution calls."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from wantrn.model.denoising import Denoising, DenoisingError
from wantrn.model.errors import RequestError
from wantrn.model.media import to_uint8
from wantrn.model.pipeline import WanPipeline
from wantrn.serving.engines.omni.compatibility import DiffusionOutput, OmniClientError
from wantrn.serving.engines.omni.groups import adopt_groups
from wantrn.serving.engines.omni.request_settings import Prepared, prepare_request
from wantrn.serving.engines.omni.stage_options import StageOptions
from wantrn.serving.engines.previews import Previews
from wantrn.serving.engines.protocol import (
    Decoding,
    Failed,
    Started,
    Stepped,
    WorkEvent,
)
from wantrn.serving.warm_up import warm_up

Tell = Callable[[WorkEvent], None]

# keys of a request's state
_RUN, _FAILURE, _SECONDS, _SHOWN = "run", "failure", "seconds", "shown"


class StepWanPipeline:
    """T2V and TI2V: one video a request, requests of any shapes at once.

    Weights are loaded by our own loaders, each rank's share of them by the rank itself, so there
    are none for vLLM-Omni to load. Of a request's state the runner sees no latents: it would put
    those of all requests into one tensor, for which they would need the same shape.
    """

    supports_step_execution: ClassVar[bool] = True
    support_image_input: ClassVar[bool] = False
    weights_sources: ClassVar[tuple[object, ...]] = ()
    # more steps or pixels in vLLM-Omni's first run would show nothing more
    dummy_run_num_frames: ClassVar[int] = 1

    def __init__(self, *, od_config: Any, prefix: str = "") -> None:
        options = StageOptions.of(od_config)
        groups = adopt_groups(options.ranks.degrees())
        execution = replace(options.ranks.execution(groups), device=options.device)
        self._pipeline = WanPipeline.load(options.info.directory, options.dtype, execution)
        self._speaks = groups.rank == 0
        warm_up(self._pipeline, options.warm_up, tells=self._speaks)
        self._tell: Tell | None = None
        self._previews: Previews | None = None

    def report_to(self, tell: Tell) -> None:
        """Let ``tell`` hear of what happens to requests, on the rank that speaks for all."""
        if self._speaks:
            self._tell = tell
            self._previews = Previews(self._pipeline)

    def prepare_encode(self, state: Any, **_: Any) -> Any:
        """Encode the prompts and draw the noise."""
        self._say(Started(state.request_id))
        begun = time.perf_counter()
        try:
            run = self._pipeline.prepare(_prepared(state).settings)
        except Exception as error:
            self._say(_failed(state.request_id, error))
            raise
        state.extra[_RUN] = run
        state.scheduler = run.scheduler
        state.timesteps = run.scheduler.timesteps.float()
        state.latents = torch.zeros(1, 1)
        _count(state, "text and noise", begun)
        return state

    def denoise_step(self, input_batch: Any, *, states: Any = None, **_: Any) -> Tensor:
        """Make one step of each request.

        What fails here is kept for ``step_scheduler``, whose errors are those of one request.
        """
        for state in states:
            begun = time.perf_counter()
            try:
                self._pipeline.step(state.extra[_RUN])
            except Exception as error:
                state.extra[_FAILURE] = error
            state.extra[_SECONDS] = time.perf_counter() - begun
            _count(state, "denoise", begun)
        return torch.zeros(len(states), 1)

    def step_scheduler(self, state: Any, noise_pred: Tensor, **_: Any) -> None:
        """Tell how the step went."""
        failure = state.extra.pop(_FAILURE, None)
        if failure is not None:
            self._say(_failed(state.request_id, failure))
            raise failure
        run: Denoising = state.extra[_RUN]
        state.step_index = run.step_index
        expert = self._pipeline.expert_of(run, run.step_index - 1)
        seconds = state.extra[_SECONDS]
        told = (run.step_index, run.steps, seconds, expert, run.step_reused)
        self._say(Stepped(state.request_id, *told))
        self._show(state, run)

    def post_decode(self, state: Any, **_: Any) -> Any:
        """The video, on the rank that speaks: ``[F, height, width, 3]``."""
        run: Denoising = state.extra.pop(_RUN)
        self._say(Decoding(state.request_id))
        if not (self._speaks or self._pipeline.decodes_together):
            return DiffusionOutput()
        begun = time.perf_counter()
        video = self._pipeline.decode(run)
        _count(state, "decode", begun)
        if not self._speaks:
            return DiffusionOutput()
        if not _prepared(state).exact:
            video = torch.from_numpy(to_uint8(video))
        return DiffusionOutput(output=video)

    def _say(self, event: WorkEvent) -> None:
        if self._tell is not None:
            self._tell(event)

    def _show(self, state: Any, run: Denoising) -> None:
        """Tell what a video will be like, not too often."""
        last = state.extra.setdefault(_SHOWN, time.monotonic())
        if self._previews is None:
            return
        shown = self._previews.after_step(state.request_id, run, last)
        if shown is not None:
            state.extra[_SHOWN] = time.monotonic()
            self._say(shown)


class StepWanImageToVideoPipeline(StepWanPipeline):
    """I2V."""

    support_image_input: ClassVar[bool] = True


def get_pre_process_func(od_config: Any) -> Callable[[Any], Any]:
    """What a request goes through before it waits: its settings are resolved and checked here, so
    that all ranks get the same ones, and nothing of it can fail them."""
    options = StageOptions.of(od_config)

    def prepare(request: Any) -> Any:
        if not isinstance(request.prepared_layout, Prepared):
            try:
                request.prepared_layout = prepare_request(request, options)
            except RequestError as error:
                raise OmniClientError(str(error)) from error
        request.sampling_params.num_inference_steps = request.prepared_layout.settings.steps
        return request

    return prepare


def get_post_process_func(od_config: Any) -> Callable[[Tensor], dict[str, Any]]:
    """The video in vLLM-Omni's form: a batch of one, as NumPy."""

    def wrap(video: Tensor) -> dict[str, Any]:
        return {"payload": {"video": video[None].numpy()}, "metadata": {}}

    return wrap


def _prepared(state: Any) -> Prepared:
    prepared: Prepared = state.prepared_layout
    return prepared


def _count(state: Any, stage: str, begun: float) -> None:
    """Add the time since ``begun`` to a stage's."""
    seconds = time.perf_counter() - begun
    state.stage_durations[stage] = state.stage_durations.get(stage, 0.0) + seconds


def _failed(id: str, error: Exception) -> Failed:
    if isinstance(error, DenoisingError):
        return Failed(id, "not_finite", str(error))
    if isinstance(error, RequestError):
        return Failed(id, "invalid_input", str(error))
    return Failed(id, "engine_error", f"{type(error).__name__}: {error}")
