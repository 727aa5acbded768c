"""The random number generators of a core.

The streams of the chip are not published, so these are others with the same interface: each
partition of each engine has a state of 32-bit words that a kernel can set and read, and equal
states give equal numbers. The numbers are those of Philox4x32-10 (Salmon, Moraes, Dror and Shaw,
"Parallel random numbers: as easy as 1, 2, 3", SC 2011).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from nkisim.enums import Engine

Words = npt.NDArray[np.uint32]

PARTITIONS = 128
# words of state of a partition; each six are a counter (4) and a key (2) of Philox
STATE_WORDS = {Engine.gpsimd: 6, Engine.vector: 24}

_STREAM_WORDS = 6
_BLOCK_WORDS = 4
_ROUNDS = 10
_MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_WEYL = (np.uint64(0x9E3779B9), np.uint64(0xBB67AE85))
_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)


class RandomStreams:
    """The states of the Vector and the GpSimd engine of one core, `[128, words]` each."""

    def __init__(self, generator: np.random.Generator) -> None:
        """`generator` chooses the states that the engines start from."""
        self._states = {
            engine: _random_state(generator, words) for engine, words in STATE_WORDS.items()
        }

    def reseed(self, engine: Engine, seed: int) -> None:
        """Let one number, at least 0, decide all states of an engine."""
        self._states[engine] = _random_state(np.random.default_rng(seed), STATE_WORDS[engine])

    def state(self, engine: Engine, first: int, partitions: int) -> Words:
        """A copy of the states of some partitions, uint32 `[partitions, words]`."""
        return self._states[engine][first : first + partitions].copy()

    def set_state(self, engine: Engine, first: int, state: Words) -> None:
        """The inverse of `state`."""
        self._states[engine][first : first + len(state)] = state

    def words(self, engine: Engine, first: int, partitions: int, count: int) -> Words:
        """The next `count` random words of each of some partitions, uint32 `[partitions, count]`.

        With several streams to a partition they take turns. What is left of the last block of each
        stream is not used.
        """
        rows = self._states[engine][first : first + partitions]
        streams = rows.reshape(partitions, -1, _STREAM_WORDS)
        blocks = -(-count // (_BLOCK_WORDS * streams.shape[1]))
        wide = streams.astype(np.uint64)
        counters = _advanced(wide[:, :, None, :_BLOCK_WORDS], np.arange(blocks, dtype=np.uint64))
        found = philox(counters, wide[:, :, None, _BLOCK_WORDS:])
        after = _advanced(wide[:, :, :_BLOCK_WORDS], np.asarray(blocks, np.uint64))
        streams[:, :, :_BLOCK_WORDS] = after.astype(np.uint32)
        # [partitions, streams, blocks, 4]: the streams take turns within each word of a block
        return found.transpose(0, 2, 3, 1).reshape(partitions, -1)[:, :count]


def uniform(words: Words) -> npt.NDArray[np.float32]:
    """Numbers in [0, 1), multiples of 2 ** -24, from random words."""
    return (words >> np.uint32(8)).astype(np.float32) * np.float32(2.0**-24)


def philox(counter: npt.NDArray[np.uint64], key: npt.NDArray[np.uint64]) -> Words:
    """Philox4x32-10: four random words for each counter.

    Args:
        counter: 32-bit words in uint64 `[..., 4]`.
        key: 32-bit words in uint64 `[..., 2]`; broadcasts against `counter`.

    Returns:
        uint32 `[..., 4]`.
    """
    a, b, c, d = (counter[..., i] for i in range(_BLOCK_WORDS))
    left, right = key[..., 0], key[..., 1]
    for _ in range(_ROUNDS):
        first, second = a * _MULTIPLIERS[0], c * _MULTIPLIERS[1]
        a, b = (second >> _HALF) ^ b ^ left, second & _LOW
        c, d = (first >> _HALF) ^ d ^ right, first & _LOW
        left, right = (left + _WEYL[0]) & _LOW, (right + _WEYL[1]) & _LOW
    return np.stack(np.broadcast_arrays(a, b, c, d), axis=-1).astype(np.uint32)


def _advanced(
    counter: npt.NDArray[np.uint64], steps: npt.NDArray[np.uint64]
) -> npt.NDArray[np.uint64]:
    """128-bit counters, least word first, plus `steps` < 2 ** 32 each."""
    carry = steps
    words = []
    for i in range(_BLOCK_WORDS):
        total = counter[..., i] + carry
        words.append(total & _LOW)
        carry = total >> _HALF
    return np.stack(np.broadcast_arrays(*words), axis=-1)


def _random_state(generator: np.random.Generator, words: int) -> Words:
    return generator.integers(0, 1 << 32, (PARTITIONS, words), np.uint32)
