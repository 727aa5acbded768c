"""What collectives refuse: operands, groups and channels, and the HBM tensors they may not use."""

from __future__ import annotations

import numpy as np
import pytest
from isa_tiles import STRICT
from rank_support import LNCS, fails, handed_over, quiet, share, staged

import nkisim.collectives as ncc
import nkisim.isa as nisa
import nkisim.language as nl
from nkisim.errors import NkiMismatchError, NkiValidationError, NkiWarning
from nkisim.settings import Rules
from nkisim.simulation import World


def rejected(body, text, kind=NkiValidationError, ranks=2, lnc=1, x=None, **options):
    array = np.ones((4, 512), np.float32) if x is None else x

    def kernel(x):
        body(x)
        return x

    return fails(
        kind, lambda: World(ranks, lnc, **options).run(kernel, [(array.copy(),)] * ranks), text
    )


def hbm(name, shape=(4, 512), dtype=nl.float32, buffer=nl.shared_hbm):
    made = nl.ndarray(shape, dtype, buffer, name=name)
    if buffer is nl.shared_hbm:
        share(made, nl.zeros(shape, dtype))
    return made


def sbuf(shape=(4, 512), dtype=nl.float32):
    return nl.zeros(shape, dtype)


@pytest.mark.parametrize(
    ("body", "kind", "text"),
    [
        (lambda x: ncc.all_reduce([hbm("a")], [hbm("b", (4, 4))], (), nl.add),
         NkiValidationError, "dst is NkiTensor('b'"),
        (lambda x: ncc.all_reduce([hbm("a")], [hbm("b", dtype=nl.bfloat16)], (), nl.add),
         NkiValidationError, "dst is bfloat16, src float32"),
        (lambda x: ncc.all_reduce([hbm("a")], [sbuf()], (), nl.add),
         NkiValidationError, "sbuf and shared_hbm"),
        (lambda x: ncc.all_reduce([nl.zeros((4, 512), nl.float32, nl.psum)], [sbuf()], (), nl.add),
         NkiValidationError, "in psum"),
        (lambda x: ncc.all_reduce([sbuf((4, 511))], [sbuf((4, 511))], (), nl.add),
         NkiValidationError, "at least 512"),
        (lambda x: ncc.all_reduce([sbuf(), sbuf()], [sbuf(), sbuf()], (), nl.add),
         NkiValidationError, "srcs has 2 tensors"),
        (lambda x: ncc.all_reduce([hbm("a")], [hbm("b"), hbm("c")], (), nl.add),
         NkiValidationError, "dsts 2"),
        (lambda x: ncc.all_reduce([], [], (), nl.add), NkiValidationError, "at least one"),
        (lambda x: ncc.all_reduce([hbm("a")], [hbm("b")], (), nl.multiply),
         NkiValidationError, "op is 'multiply'"),
        (lambda x: ncc.all_reduce([hbm("a")], [hbm("b")], (), None),
         NkiValidationError, "op is None"),
        (lambda x: ncc.all_reduce(hbm("a"), [hbm("b")], (), nl.add),
         TypeError, "srcs is NkiTensor"),
        (lambda x: ncc.all_reduce([hbm("a")], [3], (), nl.add), TypeError, "dsts is [3]"),
        (lambda x: ncc.all_reduce([hbm("a")], [hbm("b")], (), nl.add, priority=4),
         NkiValidationError, "priority is 4"),
        (lambda x: ncc.all_reduce([hbm("a")], [hbm("b")], [[0]], nl.add),
         NkiValidationError, "must be in one of the groups"),
        (lambda x: ncc.all_reduce([hbm("a")], [hbm("b")], [[0, 5], [1]], nl.add),
         NkiValidationError, "rank 5"),
        (lambda x: ncc.all_gather([hbm("a")], [hbm("b", (8, 512))], (), 1),
         NkiValidationError, "collective_dim is 1; in HBM"),
        (lambda x: ncc.all_gather([hbm("a")], [hbm("b")], (), 0),
         NkiValidationError, "its shape must be [8, 512]"),
        (lambda x: ncc.all_gather([sbuf((2, 3, 4))], [sbuf((2, 6, 4))], (), 1),
         NkiValidationError, "2 dimensions"),
        (lambda x: ncc.reduce_scatter([hbm("a", (3, 2))], [hbm("b", (1, 2))], (), 0, nl.add),
         NkiValidationError, "multiple of the 2 ranks"),
        (lambda x: ncc.all_to_all([sbuf()], [sbuf()], (), 0), NkiValidationError, "must be in HBM"),
        (lambda x: ncc.collective_permute([hbm("a")], [hbm("b")], [(0, 1), (1, 1)]),
         NkiValidationError, "rank 1 as a target twice"),
        (lambda x: ncc.collective_permute([hbm("a")], [hbm("b")], [(0, 1, 1)]),
         NkiValidationError, "(0, 1, 1)"),
        (lambda x: ncc.collective_permute([hbm("a")], [hbm("b")], [(0, 2)]),
         NkiValidationError, "ranks are 0 to 1"),
        (lambda x: ncc.collective_permute_implicit([hbm("a")], [[hbm("b")]], ()),
         TypeError, "srcs_by_channel[0]"),
        (lambda x: ncc.collective_permute_implicit([[hbm("a"), hbm("c")]], [[hbm("b")]], ()),
         NkiValidationError, "srcs_by_channel[0] has 2 tensors"),
        (lambda x: ncc.collective_permute_implicit([[hbm("a")]], [[hbm("b")]], (), [0, 1]),
         NkiValidationError, "channel_ids is [0, 1]"),
        (lambda x: ncc.collective_permute_implicit([[hbm("a")]], [[hbm("b")]], (), [4]),
         NkiValidationError, "channels are 0 to 3"),
        (lambda x: ncc.collective_permute_implicit([], [], (), []), NkiValidationError, "1 to 4"),
        (lambda x: ncc.collective_permute_implicit_reduce(
            [[hbm("a")]], [[sbuf()]], [[hbm("b")]], (), nl.add),
         NkiValidationError, "memory of NkiTensor('a'"),
        (lambda x: ncc.collective_permute_implicit_reduce(
            [[hbm("a")]], [[hbm("c", (2, 2))]], [[hbm("b")]], (), nl.add),
         NkiValidationError, "srcs1_by_channel is NkiTensor('c'"),
    ],
)  # fmt: skip
def test_constraints(body, kind, text):
    rejected(body, text, kind)


def test_a_source_must_have_been_written():
    for lnc in LNCS:
        rejected(
            lambda x: ncc.all_reduce(
                [nl.ndarray((2, 2), nl.float32, nl.shared_hbm, name="a")],
                [hbm("b", (2, 2))],
                (),
                nl.add,
            ),
            "nothing has written",
            lnc=lnc,
            rules=STRICT,
        )


def test_priority_needs_gen4():
    rejected(
        lambda x: ncc.all_reduce([hbm("a")], [hbm("b")], (), nl.add, priority=1),
        "needs gen4",
        target="gen3",
    )


# Which HBM tensors


def reduce_from(src, dst):
    ncc.all_reduce([src], [dst], (), nl.add)


def gather_both_regions(x):
    srcs = [hbm("a"), hbm("c", buffer=nl.private_hbm)]
    ncc.all_gather(srcs, [hbm("b", (8, 512)), hbm("d", (8, 512))], (), 0)


BUFFERS = {
    "argument": (lambda x: reduce_from(x, hbm("b")), 1, "argument of the kernel"),
    "argument at LNC2": (lambda x: reduce_from(hbm("b"), x), 2, "argument of the kernel"),
    "unnamed": (lambda x: reduce_from(hbm(""), hbm("b")), 1, "without a name"),
    "unnamed at LNC2": (lambda x: reduce_from(hbm("a"), hbm("")), 2, "without a name"),
    "mixed": (gather_both_regions, 1, "private and in shared HBM"),
}


@pytest.mark.parametrize("case", BUFFERS)
def test_hbm_tensors_that_a_collective_may_not_use(case):
    body, lnc, text = BUFFERS[case]
    rejected(body, text, lnc=lnc)


def test_private_hbm_does_not_do_for_two_cores():
    def body(x):
        made = nl.ndarray((4, 512), nl.float32, nl.private_hbm, name="a")
        nisa.dma_copy(made, x)
        ncc.all_reduce([made], [hbm("b")], (), nl.add)

    rejected(body, "on shared HBM", lnc=2)


@pytest.mark.parametrize("lnc", LNCS)
def test_the_buffer_rule_has_levels(lnc):
    def kernel(x):
        out = nl.ndarray(x.shape, x.dtype, nl.shared_hbm)
        ncc.all_reduce([x], [out], (), nl.add)
        return out

    def run(level):
        xs = [np.full((2, 2), rank + 1, np.float32) for rank in range(2)]
        return World(2, lnc, rules=Rules(collective_buffers=level)).run(kernel, [(x,) for x in xs])

    fails(NkiValidationError, lambda: run("error"), "[collective_buffers]")
    with pytest.warns(NkiWarning) as seen:
        found = run("warn")
    told = "\n".join(str(warning.message) for warning in seen)
    for text in ("an argument of the kernel", "without a name", "which a collective used"):
        assert text in told
    assert [float(values[0, 0]) for values in found] == [3.0, 3.0]
    rules = Rules(collective_buffers="off")
    xs = [np.full((2, 2), rank + 1, np.float32) for rank in range(2)]
    found = quiet(World(2, lnc, rules=rules), kernel, [(x,) for x in xs])
    assert [float(values[0, 0]) for values in found] == [3.0, 3.0]


def test_a_result_may_not_be_a_collectives_tensor():
    def kernel(x):
        src = staged(x, "src")
        dst = nl.ndarray(x.shape, x.dtype, nl.shared_hbm, name="dst")
        ncc.all_reduce([src], [dst], (), nl.add)
        return dst

    xs = [(np.ones((2, 2), np.float32),)] * 2
    fails(NkiValidationError, lambda: World(2).run(kernel, xs), "'dst'", "which a collective used")


def test_the_cores_of_a_rank_must_mean_the_same_bytes():
    def kernel(x):
        src = staged(x, "src")
        dst = nl.ndarray(x.shape, x.dtype, nl.shared_hbm, name="dst")
        half = slice(0, 1) if nl.program_id(0) == 0 else slice(1, 2)
        ncc.all_reduce([src[half]], [dst[half]], (), nl.add)
        return handed_over(dst, "out")

    xs = [(np.ones((2, 2), np.float32),)] * 2
    fails(
        NkiMismatchError,
        lambda: World(2, 2).run(kernel, xs),
        "same tensors",
        "core 0 at",
        "core 1 at",
    )
