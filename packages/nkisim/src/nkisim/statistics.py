"""Mean and variance, in the two steps of the Vector engine: `bn_stats` and `bn_aggr`."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from nkisim.errors import NkiValidationError

Single = npt.NDArray[np.float32]


def bn_stats(data: npt.NDArray[Any]) -> Single:
    """Count, mean and sum of squared deviations of the elements at even and at odd positions.

    Args:
        data: `[P, N]` with N >= 1, computed in float32.

    Returns:
        float32 `[P, 6]`: `[n, mean, n * variance]` of the even positions, then of the odd ones; the
        variance is that of a population. Without odd positions (N = 1) their three are 0.
    """
    single = data.astype(np.float32, copy=False)
    result = np.zeros((single.shape[0], 6), np.float32)
    with np.errstate(all="ignore"):
        for first in range(2):
            part = single[:, first::2].copy()
            count = part.shape[1]
            if count == 0:
                continue
            mean = part.mean(axis=1, keepdims=True)
            part -= mean
            np.square(part, part)
            result[:, 3 * first] = count
            result[:, 3 * first + 1] = mean[:, 0]
            result[:, 3 * first + 2] = part.sum(axis=1)
    return result


def bn_aggr(data: npt.NDArray[Any]) -> Single:
    """Mean and variance of all that `bn_stats` has seen.

    Args:
        data: `[P, 3 * k]`: k times count, mean and sum of squared deviations.

    Returns:
        float32 `[P, 2]`: mean, and variance of the population. NaN where all counts are 0.
    """
    if data.shape[1] == 0 or data.shape[1] % 3:
        raise NkiValidationError(
            f"data has {data.shape[1]} elements a partition; they must be a multiple of 3"
        )
    # deviations from the common mean, not squares less a square, which would cancel
    wide = data.astype(np.float64)
    count, mean, deviation = wide[:, 0::3], wide[:, 1::3], wide[:, 2::3]
    with np.errstate(all="ignore"):
        total = count.sum(axis=1, keepdims=True)
        centre = (count * mean).sum(axis=1, keepdims=True) / total
        spread = (deviation + count * np.square(mean - centre)).sum(axis=1, keepdims=True)
        result: Single = np.concatenate([centre, spread / total], axis=1).astype(np.float32)
    return result
