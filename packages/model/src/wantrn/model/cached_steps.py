"""What a step cache knows of a run between two steps, and one step's use of it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from wantrn.model.reuse import Reuse
from wantrn.model.step_cache import StepCache
from wantrn.parallel import Group
from wantrn.parallel.pending import Pending

_logger = logging.getLogger(__name__)

_BRANCHES = 2  # of guidance


@dataclass(frozen=True)
class Place:
    """Where a step stands in its run.

    Attributes:
        expert: the transformer that makes it, from 0.
        level: the noise level, sigma, of its latents.
        last: no step follows.
    """

    expert: int
    level: float
    last: bool = False


@dataclass(frozen=True, eq=False)
class Residuals:
    """What blocks have added to the residual stream, for one text or a batch of them.

    Each is ``[B, S, H]`` of this rank's tokens, in the stream's dtype.

    Attributes:
        first: the first block, in the last step.
        others: all other blocks, in the last step in full.
        before: the same, in the step in full before that; None if there is none.
    """

    first: Tensor
    others: Tensor
    before: Tensor | None = None


@dataclass(frozen=True, eq=False)
class CachedSteps:
    """A run's steps as far as they matter to the next. It never changes: a step makes another one,
    so a step that failed can be made again.

    It holds three tensors ``[B, S, H]`` of this rank's tokens for each branch of guidance that the
    rank computes, and during a step in full two more. Those of the high-noise expert go when the
    first step of the low-noise one is made.

    Attributes:
        experts: what decides for each.
        expert: the last step's; what follows is of this one alone.
        level: of the last step.
        distance: by how much that differs from the level of the step before it.
        full: the levels of the last two steps in full, the newest first.
        residuals: by pass through the blocks; empty before the first step.
        sums: of all ranks, for the last step; None where nothing could be compared.
        drifts: this rank's sums for the drift of the last step, which go with the next one's.
        reused: the last step did.
    """

    experts: tuple[Reuse, ...]
    expert: int = 0
    level: float = 0.0
    distance: float = 0.0
    full: tuple[float, ...] = ()
    residuals: tuple[Residuals, ...] = ()
    sums: Pending | None = None
    drifts: tuple[Tensor, ...] = ()
    reused: bool = False

    @classmethod
    def of(cls, cache: StepCache, experts: int) -> CachedSteps:
        """Of a run that has made no step, on a model with so many experts."""
        return cls((Reuse(cache),) * experts)

    def anew(self) -> CachedSteps:
        """Of such a run that has made no step."""
        return CachedSteps.of(self.experts[0].cache, len(self.experts))

    @property
    def steps_reused(self) -> int:
        """Of all experts."""
        return sum(expert.reused for expert in self.experts)

    def begin(self, place: Place, branches: Sequence[bool], group: Group) -> CachedPass:
        """Decide about the next step.

        Args:
            place: the step's.
            branches: of guidance, that this rank computes in it: whether each is the negative one.
            group: the ranks that make the video, which all decide the same.
        """
        before = self if place.expert == self.expert else CachedSteps(self.experts, place.expert)
        reuse, distance = before._heard(tells=group.position == 0), abs(place.level - before.level)
        reuses = bool(before.residuals) and reuse.next_reuses(distance, place.last)
        return CachedPass(before, reuse, place, reuses, tuple(branches), group)

    def _heard(self, tells: bool) -> Reuse:
        """What decides about this expert, with the last step's sums. One rank tells of its end."""
        reuse = self.experts[self.expert]
        if self.sums is None:
            return reuse
        rows: list[list[float]] = self.sums.wait().tolist()
        changes, drifts = rows[:_BRANCHES], rows[_BRANCHES:]
        heard = reuse.heard(_largest(changes), self.distance, _largest(drifts))
        if tells and heard.stopped and not reuse.stopped:
            _logger.warning(
                "the step cache of expert %d stops: what was reused is %.3f off, above %g",
                *(self.expert, heard.drift, heard.cache.drift_limit),
            )
        return heard


class CachedPass:
    """One step's passes through the blocks, which keep what the next step needs.

    The passes of a step, one for each text or one for a batch of all, come in the same order in
    every step of an expert.
    """

    def __init__(
        self,
        before: CachedSteps,
        reuse: Reuse,
        place: Place,
        reuses: bool,
        branches: tuple[bool, ...],
        group: Group,
    ) -> None:
        self._before = before
        self._reuse = reuse
        self._place = place
        self._reuses = reuses
        self._branches = branches
        self._group = group
        self._found: list[Residuals] = []
        self._changes: list[Tensor] = []  # see _sums
        self._drifts: list[Tensor] = []
        self._sums: Pending | None = None

    def through(
        self, stream: Tensor, real: int, first: Tensor, others: Callable[[Tensor], Tensor]
    ) -> Tensor:
        """The stream ``[n * B, S, H]`` after the last block, for ``n`` texts.

        Args:
            stream: before the first block, ``[B, S, H]``.
            real: of its ``S`` tokens, those that are no padding.
            first: the stream after it, ``[n * B, S, H]``.
            others: runs the blocks after the first.
        """
        texts = first.shape[0] // stream.shape[0]
        added = first - stream.repeat(texts, 1, 1)
        known = self._before.residuals[len(self._found)] if self._before.residuals else None
        if known is not None:
            self._changes += _sums(added - known.first, known.first, real, texts)
            self._send()
        if self._reuses:
            assert known is not None, "begin() decides so"
            self._found.append(replace(known, first=added))
            return first + self._estimate(known)
        last = others(first)
        rest = last - first
        if known is not None and self._before.reused:
            self._drifts += _sums(self._estimate(known) - rest, rest, real, texts)
        self._found.append(Residuals(added, rest, None if known is None else known.others))
        return last

    def end(self) -> CachedSteps:
        """What is known after the step, if it succeeds."""
        before, place = self._before, self._place
        experts = list(before.experts)
        experts[place.expert] = self._reuse.made(self._reuses)
        return CachedSteps(
            experts=tuple(experts),
            expert=place.expert,
            level=place.level,
            distance=abs(place.level - before.level),
            full=before.full if self._reuses else (place.level, *before.full[:1]),
            residuals=tuple(self._found),
            sums=self._sums,
            drifts=tuple(self._drifts),
            reused=self._reuses,
        )

    def _estimate(self, known: Residuals) -> Tensor:
        """What the other blocks would add in this step: what they added in the last two steps in
        full, continued along a line over the noise level."""
        if known.before is None:
            return known.others
        newest, older = self._before.full
        ahead = (self._place.level - newest) / (newest - older)
        return torch.lerp(known.before, known.others, 1 + ahead)

    def _send(self) -> None:
        """Begin to add up the changes of all ranks, once those of this one are complete."""
        if self._place.last or len(self._changes) < len(self._branches):
            return
        rows = torch.zeros(2 * _BRANCHES, 2, device=self._changes[0].device)
        for offset, found in ((0, self._changes), (_BRANCHES, self._before.drifts)):
            for branch, row in zip(self._branches, found, strict=False):
                rows[offset + branch] = row
        sums = self._group.start_all_reduce(rows)
        if rows.device.type != "cpu":
            # the device copies behind the sum; at its end, for which each step waits, it is there
            sums = Pending(sums.wait().to("cpu", non_blocking=True))
        self._sums = sums


def _sums(difference: Tensor, base: Tensor, real: int, texts: int) -> list[Tensor]:
    """For each text, ``[2]`` fp32: the sums of both tensors' magnitudes, without padding."""
    parts = [
        x[:, :real].abs().reshape(texts, -1).sum(1, dtype=torch.float32) for x in (difference, base)
    ]
    return list(torch.stack(parts, 1))


def _largest(rows: list[list[float]]) -> float | None:
    """The largest ratio of a branch's two sums; None if nothing was summed."""
    ratios = [change / base if base else float("inf") for change, base in rows if change or base]
    return max(ratios) if ratios else None
