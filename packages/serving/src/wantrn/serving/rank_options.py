"""How many ranks make a video, and how they share the work."""

from __future__ import annotations

from dataclasses import fields
from typing import Literal

from pydantic import ConfigDict
from pydantic.dataclasses import dataclass

from wantrn.model.errors import RequestError
from wantrn.model.execution import Execution
from wantrn.model.features import Feature, check_together
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
        try:
            check_together(self.features())
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

    def features(self) -> frozenset[Feature]:
        """What of this departs from one rank that computes everything as it is."""
        asked = {
            Feature.TP: self.tp > 1,
            Feature.RING: self.ring > 1,
            Feature.ULYSSES: self.ulysses > 1,
            Feature.CFG_PARALLEL: self.cfg_parallel,
            Feature.BATCH_GUIDANCE: self.batch_guidance,
            Feature.SEQUENCE_SHARDING: self.sequence_sharding,
            Feature.REPLICATE_CROSS_ATTENTION: self.replicate_cross_attention,
            Feature.ALL_GATHER: self.context == Strategy.ALL_GATHER.value,
            Feature.STRICT_TOKENS: self.strict_tokens,
            Feature.TILE_VAE: self.tile_vae,
            Feature.VAE_PARALLEL: self.vae_parallel,
        }
        return frozenset(feature for feature, there in asked.items() if there)

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
    """An error whose text begins with the name of an argument or feature, as one about the option
    that asks for it."""
    field, _, rest = str(error).partition(" ")
    return RequestError("context" if field == Feature.ALL_GATHER else field, rest)
