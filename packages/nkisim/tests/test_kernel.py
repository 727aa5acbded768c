"""`jit`: the ways to make and to launch a kernel."""

from __future__ import annotations

import enum
from dataclasses import dataclass

import numpy as np
import pytest
from rank_support import bounded, fails, share

import nkisim.isa as nisa
import nkisim.language as nl
from nkisim.errors import NkiValidationError
from nkisim.kernel import Kernel, jit
from nkisim.settings import Settings
from nkisim.simulation import World, simulate

X = np.arange(8, dtype=np.float32).reshape(2, 4)


def add(x, by=1.0):
    """Adds a number."""
    tile = nl.ndarray(x.shape, x.dtype, nl.sbuf)
    nisa.dma_copy(tile, x)
    nisa.tensor_scalar(tile, tile, nl.add, by, name="sum")
    out = nl.ndarray(x.shape, x.dtype, nl.shared_hbm)
    share(out, tile)
    return out


def grid(x):
    """What the kernel sees of its launch, in a row for each core."""
    seen = (nl.program_ndim(), nl.num_programs(), nl.num_programs(axes=None), nl.program_id(axis=0))
    row = nl.ndarray((1, 4), nl.float32, nl.sbuf)
    for i, value in enumerate(seen):
        nisa.memset(row[:, i : i + 1], float(value))
    out = nl.ndarray((nl.num_programs(), 4), nl.float32, nl.shared_hbm)
    nisa.dma_copy(out[nl.program_id(0)].reshape((1, 4)), row)
    return out


LEGACY = {
    "mode": "auto",
    "debug_kernel": True,
    "show_compiler_tb": True,
    "experimental_flags": "x",
    "platform_target": "trn2",
    "version": 2,
    "additional_compile_opt": "-O1",
}


@pytest.mark.parametrize(
    "made",
    [jit(add), jit()(add), jit(**LEGACY)(add), jit(add, **LEGACY), jit(mode="trace")(add),
     jit(jit(add))],
)  # fmt: skip
def test_ways_to_make_a_kernel(made):
    assert type(made) is Kernel
    np.testing.assert_array_equal(made(X), X + 1)
    np.testing.assert_array_equal(made[1](X, by=2.0), X + 2)
    np.testing.assert_array_equal(made[2](X, 3.0), X + 3)
    np.testing.assert_array_equal(made[(2,)](X), X + 1)
    assert (made.__name__, made.__doc__) == ("add", "Adds a number.")
    assert made.__wrapped__ is add


def test_as_a_decorator():
    @jit
    def plain(x):
        return add(x)

    @jit(mode="auto")
    def with_options(x):
        return add(x)

    np.testing.assert_array_equal(plain(X), X + 1)
    np.testing.assert_array_equal(with_options[2](X), X + 1)
    assert repr(plain) == "<kernel plain>" and repr(plain[2]) == "<kernel plain[2]>"


def test_options_that_never_were():
    with pytest.raises(TypeError, match="unexpected keyword argument 'modes'"):
        jit(modes="auto")
    with pytest.raises(TypeError, match="unexpected keyword argument 'grid'"):
        jit(add, grid=2)
    with pytest.raises(TypeError, match="takes a function, not 3"):
        jit(3)


@pytest.mark.parametrize("value", [0, 3, -1, True, (2, 1), (), "2", 2.0, None, [2]])
def test_a_grid_is_one_or_two_cores(value):
    with pytest.raises(NkiValidationError, match="the launch grid is"):
        jit(add)[value]
    with pytest.raises(NkiValidationError, match="the launch grid is"):
        simulate(add)[value]


@pytest.mark.parametrize("launch", [jit, simulate, lambda kernel: simulate(jit(kernel))])
def test_what_a_kernel_sees_of_its_launch(launch):
    kernel = launch(grid)
    np.testing.assert_array_equal(kernel(X), [[0, 1, 1, 0]])
    np.testing.assert_array_equal(kernel[1](X), [[1, 1, 1, 0]])
    np.testing.assert_array_equal(kernel[2](X), [[1, 2, 2, 0], [1, 2, 2, 1]])
    np.testing.assert_array_equal(kernel[(2,)](X), [[1, 2, 2, 0], [1, 2, 2, 1]])


def test_brackets_may_stand_on_either_side():
    np.testing.assert_array_equal(simulate(jit(grid)[2])(X), simulate(grid)[2](X))
    # the last ones count
    np.testing.assert_array_equal(simulate(jit(grid)[2])[1](X), [[1, 1, 1, 0]])


@pytest.mark.parametrize("lnc", [1, 2])
def test_a_kernel_within_a_kernel_runs_in_it(lnc):
    inner = jit(mode="auto")(add)

    @jit
    def outer(x):
        first = inner(x, by=1.0)
        assert type(first) is not np.ndarray and first.buffer is nl.shared_hbm
        if nl.num_programs() > 1:
            nisa.core_barrier(first, (0, 1))
        return inner[nl.num_programs()](first, 10.0)

    np.testing.assert_array_equal(bounded(lambda: outer[lnc](X)), X + 11)
    found = bounded(lambda: World(3, lnc).run(outer, [(X + rank,) for rank in range(3)]))
    np.testing.assert_array_equal(found, [X + 11, X + 12, X + 13])


def test_a_kernel_within_a_kernel_has_no_cores_of_its_own():
    fails(
        NkiValidationError, lambda: jit(lambda x: jit(add)[2](x))(X), "within a kernel on 1 cores"
    )
    fails(NkiValidationError, lambda: jit(lambda x: jit(add)[1](x))[2](X), "add[1]")


def test_a_kernel_as_a_method():
    class Scaled:
        def __init__(self, by):
            self.by = by

        @jit
        def run(self, x):
            return add(x, self.by)

    scaled = Scaled(5.0)
    np.testing.assert_array_equal(scaled.run(X), X + 5)
    np.testing.assert_array_equal(scaled.run[2](X), X + 5)
    assert isinstance(Scaled.run, Kernel)
    # arguments are named without the instance
    with pytest.raises(TypeError, match="argument x"):
        scaled.run(X.astype(np.float64))


class Kind(enum.Enum):
    A = "a"


@dataclass(frozen=True)
class Config:
    n: int = 3


def test_other_arguments_reach_the_kernel_as_they_are():
    seen = {}
    given = {
        "none": None, "flag": True, "count": 3, "scale": 0.5, "text": "bfloat16", "kind": Kind.A,
        "config": Config(), "dtype": nl.bfloat16, "numbers": (1, 2), "function": add,
    }  # fmt: skip

    def kernel(x, **others):
        seen.update(others)
        return x

    jit(kernel)(X, **given)
    assert seen == given
    assert all(seen[name] is given[name] for name in given if name != "numbers")


# with_schedule


def chain(x):
    tile = nl.ndarray(x.shape, x.dtype, nl.sbuf)
    nisa.dma_copy(tile, x, name="load")
    other = nl.ndarray(x.shape, x.dtype, nl.sbuf)
    for _ in range(2):
        nisa.memset(other, 0, name="clear")
        nisa.tensor_scalar(tile, tile, nl.add, 1.0, name="sum")
    out = nl.ndarray(x.shape, x.dtype, nl.shared_hbm)
    share(out, tile)
    return out


@pytest.mark.parametrize("lnc", [1, 2])
def test_a_schedule_is_recorded_and_changes_no_result(lnc):
    kernel = jit(chain).with_schedule([("clear", "load"), ("sum", ["load", "clear"])])
    assert (kernel[2].schedule, kernel.lnc) == (kernel.schedule, 1)
    (found,), trace = World(1, lnc).launch(kernel, [(X,)])
    np.testing.assert_array_equal(found, X + 2)
    for core in trace.cores:
        named = {name: [i for i in core if i.name == name] for name in ("load", "clear", "sum")}
        load, clear, total = named["load"], named["clear"], named["sum"]
        assert [i.after for i in load] == [()]
        assert [i.after for i in clear] == [(load[0],), (load[0],)]
        assert [set(i.after) for i in total] == [{load[0], clear[0]}, {load[0], *clear}]


@pytest.mark.parametrize(
    ("order", "text"),
    [([("sum", "nothing")], "names 'nothing'"), ([("nothing", "sum")], "names 'nothing'"),
     ([("load", "sum")], "puts 'sum' before 'load'")],
)  # fmt: skip
def test_a_schedule_names_what_is_there_and_comes_before(order, text):
    kernel = jit(chain).with_schedule(order)
    with pytest.raises(NkiValidationError, match=text):
        simulate(kernel)(X)
    # without a trace there is nothing to schedule
    np.testing.assert_array_equal(simulate(kernel, Settings(trace=False))(X), X + 2)


@pytest.mark.parametrize("order", [[(3, "sum")], [("sum", 3)], [("sum", [None])], [("sum",)]])
def test_a_schedule_is_made_of_names(order):
    with pytest.raises(TypeError, match="with_schedule"):
        jit(chain).with_schedule(order)
