"""UniPC, the unified predictor-corrector of Zhao et al. (arXiv:2302.04867), data prediction.

With ``alpha = 1 - sigma`` and ``lambda = log(alpha / sigma)``, a step from level ``s`` to ``t`` has
length ``h = lambda_t - lambda_s``. Let ``m_0`` be the clean sample that the model saw at ``s``, and
``m_k`` the one it saw ``r_k = (lambda_k - lambda_s) / h`` steps away. Both halves of a step are

    x_t = sigma_t / sigma_s * x_s - alpha_t * (expm1(-h) * m_0 + B * sum_k rho_k (m_k - m_0) / r_k)

where ``B`` is ``-h`` (bh1) or ``expm1(-h)`` (bh2), and the ``rho`` solve a small Vandermonde system
in the ``r``. The predictor uses earlier ``m_k``; the corrector runs one evaluation later and adds
the one at ``t`` itself (``r = 1``), at no further evaluation of the model. As a step is linear in
samples and predictions, a run is two tables of numbers; they are computed in float64 from the fp32
levels, and applied in fp32.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Literal

import numpy as np
import torch

from wantrn.model.schedulers.base import State, check_step

Basis = Literal["bh1", "bh2"]
MAX_ORDER = 3


@dataclass(frozen=True)
class LinearStep:
    """``sample_weight * x_s + sum_k weights[k] * m_k``."""

    sample_weight: float
    weights: tuple[float, ...]

    def apply(self, sample: torch.Tensor, predictions: tuple[torch.Tensor, ...]) -> torch.Tensor:
        """In fp32; ``predictions`` are at least as many as the weights."""
        result = self.sample_weight * sample
        for weight, prediction in zip(self.weights, predictions, strict=False):
            result = torch.add(result, prediction, alpha=weight)
        return result


@dataclass(frozen=True, eq=False)
class UniPC:
    """A UniPC run over given levels.

    ``sigmas``: [steps + 1] fp32, falling, below 1, positive but for the last, which may be 0; the
    last two may be equal (the last step then stands still). ``timesteps``: [steps].
    ``order``: 1 to 3; the first steps use what history there is. ``lower_order_final``: the last
    steps go down to order 1, which a run that ends at 0 needs. ``uncorrected``: the steps, from 0,
    whose result the next step leaves as predicted.
    """

    sigmas: torch.Tensor
    timesteps: torch.Tensor
    order: int = 2
    basis: Basis = "bh2"
    lower_order_final: bool = True
    uncorrected: frozenset[int] = frozenset()

    def __post_init__(self) -> None:
        if not 1 <= self.order <= MAX_ORDER:
            raise ValueError(f"order must be 1 to {MAX_ORDER}, got {self.order}")
        if self.sigmas.dtype != torch.float32 or len(self.sigmas) != len(self.timesteps) + 1:
            raise ValueError("sigmas must be torch.float32 and one longer than timesteps")
        levels = self.sigmas.tolist()
        falling = all(a > b for a, b in pairwise(levels[:-1]))
        if not (falling and levels[0] < 1 and levels[-2] > 0 and 0 <= levels[-1] <= levels[-2]):
            raise ValueError("sigmas must fall from below 1; only the last may be 0 or repeated")
        if levels[-1] == 0 and self.order > 1 and not self.lower_order_final:
            raise ValueError(
                "a run to sigma 0 has an infinite last step: it needs lower_order_final or order 1"
            )

    def start(self) -> State:
        return State()

    def step(
        self, state: State, velocity: torch.Tensor, sample: torch.Tensor
    ) -> tuple[torch.Tensor, State]:
        check_step(state, velocity, sample, self.sigmas)
        index = state.index
        clean = sample - float(self.sigmas[index]) * velocity.float()
        if index > 0 and index - 1 not in self.uncorrected:
            assert state.sample is not None, "a state past the first step holds its sample"
            sample = self._correctors[index - 1].apply(state.sample, (clean, *state.predictions))
        predictions = (clean, *state.predictions)[: self.order]
        next_sample = self._predictors[index].apply(sample, predictions)
        return next_sample, State(index + 1, predictions, sample)

    def _order_of(self, index: int) -> int:
        """The order of one step: what history, the end of the run and ``order`` leave."""
        left = len(self.timesteps) - index if self.lower_order_final else self.order
        return min(self.order, index + 1, left)

    @cached_property
    def _levels(self) -> list[float]:
        return [float(sigma) for sigma in self.sigmas]

    @cached_property
    def _predictors(self) -> tuple[LinearStep, ...]:
        """[steps]; weights belong to the predictions of this step, the one before, ..."""
        return tuple(
            _linear_step(self._levels, index, self._order_of(index), self.basis, corrector=False)
            for index in range(len(self.timesteps))
        )

    @cached_property
    def _correctors(self) -> tuple[LinearStep, ...]:
        """[steps - 1]; the first weight belongs to the prediction at the end of the step."""
        return tuple(
            _linear_step(self._levels, index, self._order_of(index), self.basis, corrector=True)
            for index in range(len(self.timesteps) - 1)
        )


def _linear_step(
    levels: list[float], index: int, order: int, basis: Basis, corrector: bool
) -> LinearStep:
    """The step from ``levels[index]`` to the next, of a given order, as one linear formula."""
    start, end = levels[index], levels[index + 1]
    if end == start:
        return LinearStep(1.0, ())
    length = _log_ratio(end) - _log_ratio(start)
    # Where the other predictions are, in units of the step: before it, and at its end (1).
    offsets = [
        (_log_ratio(levels[index - k]) - _log_ratio(start)) / length for k in range(1, order)
    ]
    if corrector:
        offsets.append(1.0)
    alpha = 1.0 - end
    growth = math.expm1(-length)
    scale = growth if basis == "bh2" else -length
    shares = _shares(offsets, length, scale, corrector)
    others = [-alpha * scale * rho / r for rho, r in zip(shares, offsets, strict=True)]
    own = -alpha * growth - sum(others)
    weights = (others[-1], own, *others[:-1]) if corrector else (own, *others)
    return LinearStep(end / start, weights)


def _log_ratio(sigma: float) -> float:
    """lambda, half the log of the signal-to-noise ratio; infinite for a clean sample."""
    return math.log(1.0 - sigma) - math.log(sigma) if sigma > 0 else math.inf


def _shares(offsets: list[float], length: float, scale: float, corrector: bool) -> list[float]:
    """The ``rho`` of the paper for predictions at ``offsets``.

    They solve ``sum_k rho_k r_k^(n-1) = n! z phi_(n+1)(z) / B`` for n = 1, 2, ..., with ``z = -h``,
    ``phi_1 = expm1(z) / z`` and ``phi_(n+1) = (phi_n - 1 / n!) / z``. A single unknown is 1/2 up
    to terms in h that do not change the order, and 1/2 is what the paper and diffusers take: for
    the predictor of order 2 and the corrector of order 1.
    """
    if not offsets:
        return []
    if len(offsets) == 1:
        return [0.5]
    z = -length
    phi = math.expm1(z) / z - 1.0  # z * phi_2
    right = []
    for n in range(1, len(offsets) + 1):
        right.append(phi * math.factorial(n) / scale)
        phi = phi / z - 1.0 / math.factorial(n + 1)
    matrix = np.vander(np.array(offsets), increasing=True).T
    return [float(rho) for rho in np.linalg.solve(matrix, np.array(right))]
