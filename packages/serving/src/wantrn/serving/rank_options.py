"""How many ranks make a video, and how they share the work."""

from __future__ import annotations

from dataclasses import fields
from typing import Literal

from pydantic import ConfigDict
from pydantic.dataclasses import dataclass

from wantrn.model.errors import RequestError
from wantrn.model.execution import Execution
from wantrn.model.info import ModelInfo
from wantrn.model.parallelism import Parallelism
from wantrn.model.quantization.state import check_shard
from wantrn.model.settings import Settings, token_count
from wantrn.model.sharding import Shard
from wantrn.model.vae_tiles import Tiling
from wantrn.parallel import Degrees, Group, Groups
from wantrn.parallel.attention import Strategy
from wantrn.parallel.tokens import TokenShards

STRATEGIES = tuple(strategy.value for strategy in Strategy)


@dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class RankOptions:
    """The command's arguments about ranks. Each has the name of its option."""

    tp: int = 1
    ring: int = 1
    ulysses: int = 1
    cfg_parallel: bool = False
    batch_guidance: bool = False
    sequence_sharding: bool = False
    replicate_cross_attention: bool = False
    context: Literal["ring", "all_gather"] = "ring"
    strict_tokens: bool = False
    tile_vae: bool = False
    vae_parallel: bool = False

    def degrees(self) -> Degrees:
        """How many ranks along each axis; ``RequestError`` names an option that cannot be."""
        try:
            return Degrees(
                tp=self.tp,
                ring=self.ring,
                ulysses=self.ulysses,
                cfg=2 if self.cfg_parallel else 1,
                sequence_sharding=self.sequence_sharding,
            )
        except ValueError as error:
            raise request_error(error) from error

    def check(self, info: ModelInfo, settings: Settings) -> None:
        """Raise ``RequestError`` naming the option if the model or the video cannot be spread this
        way, or an option has nothing to act on."""
        self.check_model(info)
        try:
            TokenShards(token_count(settings, info), self.degrees().cp, 0, self.strict_tokens)
        except ValueError as error:
            raise RequestError("strict_tokens", str(error).replace("\n", " ")) from error

    def check_model(self, info: ModelInfo) -> None:
        """``check`` for all videos of a model."""
        degrees = self.degrees()
        self._check_options(degrees)
        try:
            degrees.check_heads(info.config.num_attention_heads)
        except ValueError as error:
            raise request_error(error) from error
        shard = Shard(self.tp, 0, self.replicate_cross_attention)
        try:
            if info.quantization is None:
                shard.check(info.config)
            else:
                check_shard(info.config, info.quantization.groups, shard)
        except ValueError as error:
            raise RequestError("tp", f"got {self.tp}, but {error}") from error

    def _check_options(self, degrees: Degrees) -> None:
        if self.batch_guidance and self.cfg_parallel:
            raise RequestError(
                "batch_guidance", "cannot be with --cfg-parallel, which gives each branch a rank"
            )
        if self.replicate_cross_attention and self.tp == 1:
            raise RequestError("replicate_cross_attention", "needs --tp of at least 2, got 1")
        if self.context != Strategy.RING.value and self.ring == 1:
            raise RequestError("context", f"got {self.context}, but needs --ring of at least 2")
        if self.strict_tokens and degrees.cp == 1:
            raise RequestError("strict_tokens", "needs --ring or --ulysses of at least 2")
        if self.vae_parallel and degrees.world == 1:
            raise RequestError("vae_parallel", "needs more than one rank")

    def execution(self, groups: Groups) -> Execution:
        """How this rank, which has these groups, computes."""
        tiled = self.tile_vae or self.vae_parallel
        return Execution(
            Parallelism(
                groups,
                Strategy(self.context),
                self.strict_tokens,
                self.replicate_cross_attention,
            ),
            batched_guidance=self.batch_guidance,
            tiling=Tiling() if tiled else None,
            vae_group=groups.world if self.vae_parallel else Group.single(),
        )

    def describe(self) -> dict[str, str]:
        """What departs from one rank, for people; empty for one rank."""
        parts = []
        for field in fields(self):
            value = getattr(self, field.name)
            if value == field.default:
                continue
            name = field.name.replace("_", " ")
            parts.append(name if value is True else f"{name} {value}")
        return {"ranks": f"{self.degrees().world}: {', '.join(parts)}"} if parts else {}


def request_error(error: ValueError) -> RequestError:
    """An error whose text begins with the name of an argument, as one about the option."""
    field, _, rest = str(error).partition(" ")
    return RequestError(field, rest)
