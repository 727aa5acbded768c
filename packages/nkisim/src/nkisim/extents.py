"""Whether two operands touch a common byte."""

from __future__ import annotations

from functools import lru_cache
from math import gcd

from nkisim.trace import Access

# (step, count): 0, step, 2 * step, ... (count - 1) * step
Term = tuple[int, int]

# Choices of steps that `overlap` tries one by one before it answers "yes" without a proof. With
# three irregular steps in both operands together it is how often the largest may repeat.
SEARCH_LIMIT = 1024


def overlap(a: Access, b: Access) -> bool:
    """Whether `a` and `b` touch a common byte of the same memory.

    Operands of two different tensors overlap only on chip, where both have an address and belong to
    the same core; bytes are then compared by their physical addresses.

    The answer is exact for patterns of up to two steps in all (both operands together), and for
    any others as long as the search takes at most `SEARCH_LIMIT` choices, as it does for row,
    column and block slices of one tensor at any size. Beyond that it is `True`: no overlap is
    ever missed.
    """
    place, other = a.place, b.place
    if place is other:
        if a.hi <= b.lo or b.hi <= a.lo or a.p1 <= b.p0 or b.p1 <= a.p0:
            return False
        shift = b.lo - a.lo
    else:
        if place.region is not other.region or place.core != other.core or not place.on_chip:
            return False
        if place.address is None or other.address is None:
            return False
        apart = other.address - place.address
        if a.hi <= b.lo + apart or b.hi + apart <= a.lo or a.p1 <= b.p0 or b.p1 <= a.p0:
            return False
        shift = b.lo + apart - a.lo
    if shift == 0 or not (a.steps or b.steps) or a.dynamic or b.dynamic:
        # a dynamic operand may reach all of its bytes
        return True
    return _meet(shift, a.run, a.steps, b.run, b.steps)


# loops repeat the same few patterns, and a schedule asks about the same pairs again and again
@lru_cache(maxsize=1 << 16)
def _meet(
    shift: int, run_a: int, steps_a: tuple[Term, ...], run_b: int, steps_b: tuple[Term, ...]
) -> bool:
    """Whether a run of `a` meets a run of `b`, where `b` begins `shift` bytes after `a`.

    Runs at x of `a` and y of `b` meet when -run_a < x - y < run_b. Counting the steps of `b` from
    their far end turns the difference into a sum of non-negative terms, so the question is whether
    some sum of steps lies in a window of run_a + run_b - 1 integers.
    """
    low = shift - run_a + 1
    for step, count in steps_b:
        low += step * (count - 1)
    return _Search(_merged(steps_a + steps_b), run_a + run_b - 1).reaches(low)


def _merged(steps: tuple[Term, ...]) -> list[Term]:
    """The same sums with fewer terms, smallest step first."""
    merged: list[Term] = []
    for step, count in sorted(steps):
        if step == 0 or count == 1:
            continue
        if merged:
            inner, inner_count = merged[-1]
            # a step that lands on or next to the end of the finer one continues it
            if step % inner == 0 and step // inner <= inner_count:
                merged[-1] = (inner, inner_count + (step // inner) * (count - 1))
                continue
        merged.append((step, count))
    return merged


class _Search:
    """Whether some sum of `terms` lies in a window of `width` integers.

    Arguments:
        terms: smallest step first, all steps and counts positive
    """

    __slots__ = ("budget", "dense", "divisors", "reach", "terms", "width")

    def __init__(self, terms: list[Term], width: int) -> None:
        self.terms = terms
        self.width = width
        self.budget = SEARCH_LIMIT
        # of the first k terms: the largest sum, the common divisor, and how many of them leave
        # no gap that a window could fall into
        self.reach = [0]
        self.divisors = [0]
        self.dense = 0
        for step, count in terms:
            reach = self.reach[-1]
            if self.dense == len(self.reach) - 1 and step <= reach + width:
                self.dense += 1
            self.reach.append(reach + step * (count - 1))
            self.divisors.append(gcd(self.divisors[-1], step))

    def reaches(self, low: int) -> bool:
        return self._reaches(len(self.terms), low)

    def _reaches(self, used: int, low: int) -> bool:
        """Whether a sum of the first `used` terms lies in low ... low + width - 1."""
        high = low + self.width - 1
        if high < 0 or low > self.reach[used]:
            return False
        if low <= 0 or high >= self.reach[used] or used <= self.dense:
            return True
        divisor = self.divisors[used]
        if high // divisor * divisor < low:
            return False
        step, count = self.terms[used - 1]
        # the rest of the sum has to lie within what the smaller terms reach
        first = max(0, -((self.reach[used - 1] - low) // step))
        last = min(count - 1, high // step)
        if used == 2 and self.dense == 0:
            # a multiple of the inner step lies in x ... x + width - 1 when -x mod inner < width,
            # and is within its count because the window touches what it reaches
            inner = self.terms[0][0]
            hit = _first_hit(step % inner, (first * step - low) % inner, inner, self.width)
            return hit is not None and hit <= last - first
        for index in range(first, last + 1):
            self.budget -= 1
            if self.budget < 0 or self._reaches(used - 1, low - index * step):
                return True
        return False


def _first_hit(factor: int, start: int, modulus: int, width: int) -> int | None:
    """The smallest i >= 0 with (start + i * factor) mod modulus < width; None if there is none.

    Arguments:
        factor, start: 0 ... modulus - 1
        width: 1 ... modulus

    A Euclidean descent, so it takes a number of steps logarithmic in `modulus`: as long as the
    window is narrower than `factor`, it is hit right after a wrap or not at all, and the residues
    right after the wraps are a sequence of the same kind modulo `factor`.
    """
    if start < width:
        return 0
    if factor == 0:
        return None
    if 2 * factor > modulus:
        # count the other way round, which is the shorter one
        return _first_hit(modulus - factor, (width - 1 - start) % modulus, modulus, width)
    if width >= factor:
        wraps: int | None = 1
    else:
        later = _first_hit(-modulus % factor, (start - modulus) % factor, factor, width)
        wraps = None if later is None else later + 1
    # the first i that is past so many wraps
    return None if wraps is None else -((start - wraps * modulus) // factor)
