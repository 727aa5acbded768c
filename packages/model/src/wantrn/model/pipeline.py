"""The pipeline of all three models: ``prepare -> step* -> decode``. The caller owns the loop."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from wantrn.kernels.ops import Rotary
from wantrn.model.byte_cache import CacheCounts
from wantrn.model.cached_steps import CachedPass, CachedSteps, Place
from wantrn.model.caches import CacheLimits
from wantrn.model.checkpoints import TensorStore, load_transformer_state
from wantrn.model.conditioning import Conditioning, FirstFrame, ImageChannels, TextOnly
from wantrn.model.config import WanConfig
from wantrn.model.denoising import Denoising, DenoisingError
from wantrn.model.execution import Execution
from wantrn.model.info import ModelInfo, ModelKind, read_model_info
from wantrn.model.lora import LoraLibrary, LoraReader
from wantrn.model.media.image import cover, to_tensor
from wantrn.model.parallelism import Parallelism
from wantrn.model.preview import LatentPreview
from wantrn.model.quantized_transformer import load_quantized_transformer
from wantrn.model.schedulers import make_scheduler
from wantrn.model.settings import Settings
from wantrn.model.step_cache import StepCache
from wantrn.model.text import TextEncoder
from wantrn.model.transformer import TextContext, WanTransformer
from wantrn.model.vae import VideoAutoencoder
from wantrn.model.vae_tiles import Tiling


class WanPipeline:
    """A Wan2.2 checkpoint in memory, ready to make videos. Holds nothing of any run, but for the
    prompts and LoRAs that it keeps for others.

    Ranks that share the work call the same methods together with the same arguments, and get the
    same results.
    """

    def __init__(
        self,
        info: ModelInfo,
        experts: tuple[WanTransformer, ...],
        text_encoder: TextEncoder,
        vae: VideoAutoencoder,
        execution: Execution | None = None,
        caches: CacheLimits | None = None,
    ) -> None:
        caches = CacheLimits() if caches is None else caches
        self.info = info
        self.execution = Execution() if execution is None else execution
        self._experts = experts
        self._text_encoder = text_encoder
        self._vae = vae
        self._loras = LoraLibrary(self._lora_reader(), len(experts), caches.loras)

    @classmethod
    def load(
        cls,
        directory: Path,
        dtype: torch.dtype = torch.bfloat16,
        execution: Execution | None = None,
        caches: CacheLimits | None = None,
    ) -> WanPipeline:
        """Load a checkpoint folder; the transformers and the text encoder in ``dtype``.

        Where ``wantrn quantize`` has made it, its FP8 layers stay in FP8, and ``dtype`` is bf16.

        Raises:
            CheckpointError: naming file and key, if any part is missing or wrong.
            RequestError: a ``dtype`` that a model with FP8 layers does not have.
            ValueError: dimensions that cannot be spread over the ranks of ``execution``, by name.
        """
        info = read_model_info(directory)
        info.check_dtype(dtype)
        execution = Execution() if execution is None else execution
        caches = CacheLimits() if caches is None else caches
        parallel = execution.parallel
        return cls(
            info,
            tuple(
                _load_expert(expert, info, dtype, parallel).to(execution.device)
                for expert in info.experts
            ),
            TextEncoder.load(
                directory / "tokenizer",
                directory / "text_encoder",
                dtype,
                parallel.groups.tp,
                caches.prompts,
            ),
            VideoAutoencoder.load(directory / "vae"),
            execution,
            caches,
        )

    @property
    def experts(self) -> tuple[WanTransformer, ...]:
        """The high-noise (or only) one, and the low-noise one."""
        return self._experts

    @property
    def cache_counts(self) -> Mapping[str, CacheCounts]:
        """How the caches of ``prompts`` and of ``loras`` have served so far."""
        return {"prompts": self._text_encoder.cache_counts, "loras": self._loras.counts}

    @torch.inference_mode()
    def prepare(self, settings: Settings, noise: Tensor | None = None) -> Denoising:
        """Encode the prompts and the image, read the LoRAs, and draw the noise.

        ``noise`` ``[1, z, T, h, w]`` fp32 takes the place of the seed's.

        Raises:
            ValueError: it has another shape or dtype.
            RequestError: a LoRA cannot be read, or is no longer what ``resolve`` has seen.
        """
        shape = self.latent_shape(settings)
        if noise is None:
            generator = torch.Generator().manual_seed(settings.seed)
            noise = torch.randn(shape, generator=generator)
        elif tuple(noise.shape) != shape or noise.dtype != torch.float32:
            raise ValueError(
                f"noise must be {list(shape)} float32, got {list(noise.shape)} {noise.dtype}"
            )
        adapters = tuple(
            self._loras.adapters(settings.loras, expert) for expert in range(len(self._experts))
        )
        scheduler = make_scheduler(
            self.info.scheduler_config, settings.steps, settings.scheduler, settings.shift
        )
        conditioning = self._conditioning(settings)
        guided = any(scale not in (None, 1) for scale in (settings.guidance, settings.guidance_2))
        encode = self._text_encoder.encode
        return Denoising(
            settings=settings,
            scheduler=scheduler,
            conditioning=conditioning,
            rotary=self._rotary(conditioning.apply(noise, torch.zeros(()))[0]),
            prompt=encode(settings.prompt),
            negative_prompt=encode(settings.negative_prompt) if guided else None,
            latents=noise,
            solver_state=scheduler.start(),
            adapters=adapters,
            cached=self._cached_steps(settings),
        )

    @torch.inference_mode()
    def step(self, run: Denoising) -> None:
        """Make one denoising step.

        Raises:
            ValueError: the run has no steps left.
            DenoisingError: the new latents are not finite; the run stays as it was.
        """
        if run.done:
            raise ValueError(f"the run has made all of its {run.steps} steps")
        velocity, cached = self._velocity(run)
        latents, state = run.scheduler.step(run.solver_state, velocity, run.latents)
        if not torch.isfinite(latents).all():
            raise DenoisingError(
                f"latents are not finite after step {run.step_index + 1} of {run.steps} "
                f"(timestep {float(run.scheduler.timesteps[run.step_index]):g})"
            )
        # a flow's velocity is noise - clean, and its sample (1 - sigma) * clean + sigma * noise
        run.estimate = run.latents - run.scheduler.sigmas[run.step_index] * velocity
        run.latents, run.solver_state, run.velocity = latents, state, velocity
        run.cached = cached
        run.step_index += 1

    @property
    def decodes_together(self) -> bool:
        """Whether ``decode`` needs the other ranks; else it is enough that one calls it."""
        return self.execution.vae_group.size > 1

    def take_up(self, run: Denoising, latents: Tensor) -> None:
        """Let a run that was just prepared be one whose steps are all made.

        ``latents`` are those of such a run with the same settings. Raises ``ValueError`` if they
        have another shape or dtype.
        """
        run.check_latents(latents)
        run.latents, run.step_index = latents, run.steps

    def decode(self, run: Denoising, *, tiled: bool = False) -> Tensor:
        """The video of a finished run: fp32 ``[F, height, width, 3]`` in [0, 1].

        ``tiled`` decodes in tiles, which takes less memory, whatever the execution says. Raises
        ``ValueError`` if steps are left.
        """
        if not run.done:
            raise ValueError(f"the run has made {run.step_index} of its {run.steps} steps")
        latents = run.conditioning.finish(run.latents)
        tiling = Tiling() if tiled and self.execution.tiling is None else self.execution.tiling
        return self._vae.decode(latents, tiling, self.execution.vae_group)

    def fit_preview(self) -> LatentPreview:
        """What draws ``Denoising.estimate`` as a picture; takes about the time of eight frames."""
        return LatentPreview.fit(self._vae, self.info.spatial_stride)

    def expert_of(self, run: Denoising, step: int) -> int:
        """Which transformer makes step ``step``, from 0: 0 the high-noise (or only) one, 1 the
        low-noise one."""
        boundary = run.settings.boundary_ratio
        if boundary is None or run.settings.guidance_2 is None:
            return 0
        return int(run.scheduler.timesteps[step] < boundary * 1000)

    def guidance_of(self, run: Denoising, step: int) -> float:
        """The guidance of step ``step``, from 0; at 1 the negative prompt has no part in it."""
        low = run.settings.guidance_2
        return low if self.expert_of(run, step) and low is not None else run.settings.guidance

    def latent_shape(self, settings: Settings) -> tuple[int, int, int, int, int]:
        """``(1, z, T, h, w)`` for these settings."""
        info = self.info
        return (
            1,
            info.latent_channels,
            (settings.frames - 1) // info.temporal_stride + 1,
            settings.height // info.spatial_stride,
            settings.width // info.spatial_stride,
        )

    def _conditioning(self, settings: Settings) -> Conditioning:
        if settings.image is None:
            return TextOnly()
        image = to_tensor(cover(settings.image, settings.width, settings.height))
        if self.info.kind is ModelKind.TI2V:
            return FirstFrame(self._vae.encode(image))
        rest = image.new_zeros((1, 3, settings.frames - 1, settings.height, settings.width))
        latents = self._vae.encode(torch.cat([image, rest], dim=2))
        return ImageChannels.of(latents, self.info.temporal_stride)

    def _velocity(self, run: Denoising) -> tuple[Tensor, CachedSteps | None]:
        """The guided velocity ``uncond + guidance * (cond - uncond)`` of the next step's expert,
        and what is known of the run's steps then."""
        guidance = self.guidance_of(run, run.step_index)
        group = self.execution.parallel.groups.cfg
        if guidance == 1:
            branches: tuple[bool, ...] = (False,)
        else:
            branches = (False, True) if group.size == 1 else (group.position == 1,)
        cached = self._cached_pass(run, branches)
        found = self._branches(run, branches, cached)
        velocity = found[0]
        if guidance != 1:
            cond, uncond = found if group.size == 1 else group.gather(velocity)
            velocity = uncond + guidance * (cond - uncond)
        return velocity, None if cached is None else cached.end()

    def _branches(
        self, run: Denoising, negative: tuple[bool, ...], cached: CachedPass | None
    ) -> tuple[Tensor, ...]:
        """The velocities for the prompt, or the negative prompt where ``negative`` says so."""
        expert = self.expert_of(run, run.step_index)
        t = run.scheduler.timesteps[run.step_index]
        latents, timestep = run.conditioning.apply(run.latents, t)
        device = self.execution.device
        velocities = self._experts[expert].velocities(
            latents.to(device),
            timestep.to(device),
            [self._context(run, expert, branch) for branch in negative],
            run.rotary,
            batched=self.execution.batched_guidance,
            adapters=run.adapters[expert],
            cached=cached,
        )
        return tuple(velocity.cpu() for velocity in velocities)

    def _cached_steps(self, settings: Settings) -> CachedSteps | None:
        if settings.step_cache is None:
            return None
        return CachedSteps.of(StepCache(settings.step_cache), len(self._experts))

    def _cached_pass(self, run: Denoising, branches: tuple[bool, ...]) -> CachedPass | None:
        if run.cached is None:
            return None
        step, last = run.step_index, run.step_index == run.steps - 1
        place = Place(self.expert_of(run, step), float(run.scheduler.sigmas[step]), last)
        return run.cached.begin(place, branches, self.execution.parallel.groups.video)

    def _rotary(self, latents: Tensor) -> Rotary:
        """The tables for latents of this shape, where the transformers are."""
        tables = self._experts[0].rotary(latents)
        device = self.execution.device
        return Rotary(tables.cos.to(device), tables.sin.to(device))

    def _context(self, run: Denoising, expert: int, negative: bool) -> TextContext:
        """A prompt's keys and values for one expert, computed at its first step."""
        key = (expert, negative)
        if key not in run.contexts:
            text = run.negative_prompt if negative else run.prompt
            assert text is not None, "prepare() encodes the negative prompt where it is used"
            text = text.to(self.execution.device)
            run.contexts[key] = self._experts[expert].text_context(text, run.adapters[expert])
        return run.contexts[key]

    def _lora_reader(self) -> LoraReader:
        """Reads LoRAs in the dtypes that the experts compute in."""
        expert = self._experts[0]
        dtype = expert.patch_embedding.weight.dtype

        def computes_in(name: str) -> torch.dtype:
            # the last layer is in fp32 whatever the dtype of its weight
            last = name.startswith("proj_out.")
            return torch.float32 if last else expert.parameter_dtype(name, dtype)

        shard, device = self.execution.parallel.shard, self.execution.device
        return LoraReader(expert.config, computes_in, shard, device)


def _load_expert(
    folder: Path, info: ModelInfo, dtype: torch.dtype, parallel: Parallelism
) -> WanTransformer:
    if info.quantization is not None:
        return load_quantized_transformer(folder, parallel)
    return load_transformer(folder, info.config, dtype, parallel)


def load_transformer(
    folder: Path, config: WanConfig, dtype: torch.dtype, parallel: Parallelism | None = None
) -> WanTransformer:
    """One expert from a folder or file in any known format, with every parameter checked.

    With ``parallel`` only this rank's shard of the parameters is read.
    """
    parallel = Parallelism() if parallel is None else parallel
    with torch.device("meta"):
        model = WanTransformer(config, parallel=parallel)
    state = load_transformer_state(
        TensorStore.open(folder),
        config,
        lambda name: model.parameter_dtype(name, dtype),
        parallel.shard,
    )
    model.load_state_dict(state, strict=True, assign=True)
    return model.eval().requires_grad_(False)
