"""What a rank has its pipeline in."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from wantrn.serving.engines.omni.compatibility import DiffusionModelRegistry, DiffusionModelRunner
from wantrn.serving.engines.omni.pipeline import StepWanPipeline


class WanRunner(DiffusionModelRunner):  # type: ignore[misc]
    """vLLM-Omni's runner, with a pipeline that loads itself."""

    pipeline: StepWanPipeline | None

    def load_model(
        self,
        memory_pool_context_fn: Callable[[str], Any] | None = None,
        load_format: str = "default",
        custom_pipeline_name: str | None = None,
    ) -> None:
        """Make the pipeline of the stage's model class.

        vLLM-Omni's loader would look in it for modules to fill, shard, offload and compile.
        """
        if load_format != "default" or custom_pipeline_name is not None:
            raise ValueError(f"load_format is {load_format!r}; allowed is 'default'")
        name = self.od_config.model_class_name
        pipeline_class = DiffusionModelRegistry._try_load_model_cls(name)
        if pipeline_class is None or not issubclass(pipeline_class, StepWanPipeline):
            raise ValueError(f"model_class_name is {name!r}, which is none of our pipelines")
        self.pipeline = pipeline_class(od_config=self.od_config)

    def execute_stepwise(self, scheduler_output: Any) -> Any:
        """Make one step of all requests that are being made.

        A request that was dropped while it was the only one is in no list of finished ones that
        reaches the ranks, and its latents would stay. All that go on are in each list.
        """
        live = set(scheduler_output.scheduled_request_ids)
        for id in self.state_cache.keys() - live:
            del self.state_cache[id]
        return super().execute_stepwise(scheduler_output)
