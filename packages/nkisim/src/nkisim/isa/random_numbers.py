"""Random numbers.

What the generators of the chip give is not published; `nkisim.random_streams` says what these give.
A kernel gets the same numbers in every run with the same `Settings.seed`, and other numbers on each
core until it sets their states.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from nkisim import dtypes
from nkisim.core import Core, current
from nkisim.enums import Engine, member
from nkisim.isa import checks, values
from nkisim.random_streams import STATE_WORDS, Words, uniform
from nkisim.tensor import NkiTensor
from nkisim.trace import Instruction

_ENGINES = (Engine.vector, Engine.gpsimd)


def rng(dst: NkiTensor, engine: Any = Engine.vector, name: str | None = None) -> Instruction:
    """Each element of `dst` gets the low bits of a random 32-bit word.

    Args:
        dst: an integer type; SBUF or PSUM, on GpSimd SBUF.
        engine: vector or gpsimd, each with its own state.

    Raises:
        NkiValidationError: an operand breaks a constraint.
    """
    core = current("nisa.rng")
    op = "rng"
    chosen = checks.choose_engine(core, op, engine, _ENGINES, Engine.vector)
    checks.operand(core, op, "dst", dst)
    checks.reach(core, op, chosen, dst=dst)
    if not dst.dtype.is_integer:
        core.violation("constraint", f"{op}: dst is {dst.dtype}; it must be an integer type")
    instruction = core.issue(op, chosen, (dst,), (), name)
    if core.numerics:
        words = _words(core, chosen, dst)
        # a cast would saturate
        dst.assign(words.astype(dst.dtype.numpy))
    return instruction


def rand2(dst: NkiTensor, min: Any, max: Any, name: str | None = None) -> Instruction:
    """Uniform fp32 numbers from `min` to `max`; Vector engine, gen4.

    Args:
        dst: SBUF or PSUM.
        min, max: numbers, or [P, 1] tensors; `min` at most `max`.

    Raises:
        NkiValidationError: an operand breaks a constraint.
    """
    core = current("nisa.rand2")
    op = "rand2"
    core.require_generation(op, 4)
    checks.operand(core, op, "dst", dst)
    checks.no_packed(core, op, dst=dst)
    reads: list[NkiTensor] = []
    checks.scalar_operand(core, op, "min", min, dst, reads)
    checks.scalar_operand(core, op, "max", max, dst, reads)
    if not reads and not min <= max:
        core.violation("constraint", f"{op}: min is {min} and max {max}; min must be at most max")
    instruction = core.issue(op, Engine.vector, (dst,), reads, name)
    if core.numerics:
        low, high = (np.float64(values.scalar(bound)) for bound in (min, max))
        part = uniform(_words(core, Engine.vector, dst))
        # max - min may be more than fp32 holds
        values.put(core, op, dst, (low + part * (high - low)).astype(np.float32))
    return instruction


def dropout(dst: NkiTensor, data: NkiTensor, prob: Any, name: str | None = None) -> Instruction:
    """`dst = data`, with each element replaced by 0 with probability `prob`; Vector engine.

    The others are not scaled.

    Args:
        dst, data: SBUF or PSUM, equal partitions and elements.
        prob: a number from 0 to 1, or a [P, 1] tensor.

    Raises:
        NkiValidationError: an operand breaks a constraint.
    """
    core = current("nisa.dropout")
    op = "dropout"
    checks.operand(core, op, "dst", dst)
    checks.operand(core, op, "data", data)
    checks.same_size(core, op, "dst", dst, "data", data)
    checks.no_packed(core, op, dst=dst, data=data)
    reads = [data]
    checks.scalar_operand(core, op, "prob", prob, dst, reads)
    if checks.is_number(prob) and not 0 <= prob <= 1:
        core.violation("constraint", f"{op}: prob is {prob}; it must be from 0 to 1")
    instruction = core.issue(op, Engine.vector, (dst,), reads, name)
    if core.numerics:
        kept = uniform(_words(core, Engine.vector, dst)) >= values.scalar(prob)
        if dst.dtype is data.dtype:
            dst.assign(np.where(kept, values.raw(data), np.zeros((), dst.dtype.numpy)))
        else:
            values.put(core, op, dst, np.where(kept, values.single(data), np.float32(0)))
    return instruction


def set_rng_seed(src_seeds: NkiTensor, name: str | None = None) -> Instruction:
    """Set the states of the Vector engine by one seed; equal seeds give equal numbers.

    Args:
        src_seeds: SBUF or PSUM, an integer [1, 1].

    Raises:
        NkiValidationError: an operand breaks a constraint.
    """
    core = current("nisa.set_rng_seed")
    op = "set_rng_seed"
    checks.operand(core, op, "src_seeds", src_seeds)
    if not src_seeds.dtype.is_integer:
        core.violation(
            "constraint", f"{op}: src_seeds is {src_seeds.dtype}; it must be an integer type"
        )
    if src_seeds.size != 1:
        core.violation("constraint", f"{op}: src_seeds is {src_seeds!r}; it must be [1, 1]")
    instruction = core.issue(op, Engine.vector, (), (src_seeds,), name)
    if core.numerics:
        seed = int(values.raw(src_seeds)[0, 0])
        core.random_streams.reseed(Engine.vector, seed & 0xFFFFFFFF)
    return instruction


def rand_set_state(
    src_seeds: NkiTensor, engine: Any = Engine.gpsimd, name: str | None = None
) -> Instruction:
    """Set the generator states of the partitions that `src_seeds` lies in.

    Args:
        src_seeds: SBUF, uint32; [P, 6] for GpSimd, [P, 24] for the Vector engine.
        engine: gpsimd (gen3 and later) or vector (gen4).

    Raises:
        NkiValidationError: an operand breaks a constraint.
    """
    core = current("nisa.rand_set_state")
    op = "rand_set_state"
    chosen = _check_state(core, op, "src_seeds", src_seeds, engine)
    instruction = core.issue(op, chosen, (), (src_seeds,), name)
    if core.numerics:
        first = src_seeds.access().p0
        core.random_streams.set_state(chosen, first, values.raw(src_seeds))
    return instruction


def rand_get_state(
    dst: NkiTensor, engine: Any = Engine.gpsimd, name: str | None = None
) -> Instruction:
    """The generator states of the partitions that `dst` lies in, as `rand_set_state` takes them.

    Args:
        dst: SBUF, uint32; [P, 6] for GpSimd, [P, 24] for the Vector engine.
        engine: gpsimd (gen3 and later) or vector (gen4).

    Raises:
        NkiValidationError: an operand breaks a constraint.
    """
    core = current("nisa.rand_get_state")
    op = "rand_get_state"
    chosen = _check_state(core, op, "dst", dst, engine)
    instruction = core.issue(op, chosen, (dst,), (), name)
    if core.numerics:
        dst.assign(core.random_streams.state(chosen, dst.access().p0, dst.shape[0]))
    return instruction


def _check_state(core: Core, op: str, operand_name: str, tensor: NkiTensor, engine: Any) -> Engine:
    chosen = member(Engine, engine, f"{op}: engine")
    if chosen is Engine.unknown:
        chosen = Engine.gpsimd
    checks.choose_engine(core, op, chosen, _ENGINES, chosen)
    core.require_generation(f"{op} on {chosen}", 4 if chosen is Engine.vector else 3)
    checks.operand(core, op, operand_name, tensor, checks.SBUF)
    checks.dtype_in(core, op, operand_name, tensor, (dtypes.uint32,))
    wanted = STATE_WORDS.get(chosen)
    if wanted is not None and tensor.access().elements != wanted:
        core.violation(
            "constraint",
            f"{op}: {operand_name} is {tensor!r}; for {chosen} it must be [P, {wanted}]",
        )
    return chosen


def _words(core: Core, engine: Engine, dst: NkiTensor) -> Words:
    """A random word for each element of `dst`, `[P, N]`."""
    access = dst.access()
    return core.random_streams.words(engine, access.p0, dst.shape[0], access.elements)
