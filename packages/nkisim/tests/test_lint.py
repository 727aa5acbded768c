"""Each rule of the linter against a kernel that breaks it and one that does not.

The kernels here are read, never run. A comment `# here` marks the line that a rule has to name.
"""

from __future__ import annotations

import enum
import functools
import inspect
import linecache
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from lint_marks import marked as _marked

import nkisim.collectives as ncc
import nkisim.isa as nisa
import nkisim.language as nl
from nkisim.errors import NkiError
from nkisim.isa import engine as engines
from nkisim.isa.constants import dge_mode
from nkisim.kernel import jit
from nkisim.lint import RULES, SourceNotFoundError, lint

P = 128
TABLE: list[int] = []


def bad_is(x: nl.NkiTensor, bias: nl.NkiTensor | None):
    if bias is not None:  # here
        nisa.memset(x, 0.0)


def good_is(x: nl.NkiTensor, bias: nl.NkiTensor | None):
    if bias != None:  # noqa: E711
        nisa.memset(x, 0.0)


def bad_try(x):
    try:  # here
        nisa.memset(x, 0.0)
    except ValueError:
        return None


def good_try(x):
    assert x.shape[0] <= P
    nisa.memset(x, 0.0)


def bad_generator(x):
    total = sum(extent - 1 for extent in x.shape)  # here
    nisa.memset(x, total)


def good_generator(x):
    total = sum([extent - 1 for extent in x.shape])
    nisa.memset(x, total)


def bad_yield(x):
    yield x.shape  # here


def bad_with(x):
    with open("log") as log:  # here
        log.write("x")


def good_with(x):
    with nl.no_reorder():
        nisa.memset(x, 0.0)


def bad_set(x):
    kinds = {nl.float32, nl.bfloat16}  # here
    assert x.dtype in kinds


def bad_set_call(x):
    assert len(set(x.shape)) == 1  # here


def good_set(x):
    kinds = (nl.float32, nl.bfloat16)
    assert x.dtype in kinds


def bad_sorted(x):
    for extent in sorted(x.shape):  # here
        print(extent)


def bad_sort(x):
    extents = list(x.shape)
    extents.sort()  # here


def good_sorted(x):
    for extent in [min(x.shape), max(x.shape)]:
        print(extent)


class Derived(nl.NKIObject):
    width: int = 4


class Deeper(Derived):  # here
    def double(self):
        return 2 * self.width


class Plain:  # here
    width = 4


class Mode(enum.Enum):
    FAST = 1


def bad_bases(x):
    settings = Deeper()
    nisa.memset(x, settings.double())


def bad_no_base(x, settings: Plain):
    nisa.memset(x, settings.width)


def good_bases(x, settings: Derived, mode: Mode):
    if mode == Mode.FAST:
        nisa.memset(x, settings.width)


class WithProperty(nl.NKIObject):
    width: int = 4

    @property
    def double(self):  # here
        return 2 * self.width


def bad_property(x, settings: WithProperty):
    nisa.memset(x, settings.double)


def bad_keyword_only(
    x,
    *,
    width,  # here
):
    nisa.memset(x, width)


def _helper_with_keyword(x, *, width):
    nisa.memset(x, width)


def good_keyword_only(x, width):
    _helper_with_keyword(x, width=width)


def bad_list(
    x,
    sizes: list[int],  # here
):
    nisa.memset(x, sizes[0])


def bad_list_default(
    x,
    sizes=[1, 2],  # noqa: B006  # here
):
    nisa.memset(x, sizes[0])


def good_list(x, sizes: tuple[int, ...] = (1, 2)):
    nisa.memset(x, sizes[0])


def bad_dict(x):
    names = {0: "a", 1: "b"}  # here
    assert names


def good_dict(x):
    names = {"a": 0, "b": 1}
    assert names


def bad_register_if(x):
    rank = ncc.rank_id()
    if rank:  # here
        nisa.memset(x, 0.0)


def bad_register_range(x):
    count = nisa.register_alloc(0)
    for _ in range(count):  # here
        nisa.memset(x, 0.0)


def good_register(table, x):
    rank = ncc.rank_id()
    nisa.dma_copy(x, table.ap([[1, 1], [1, 1]], scalar_offset=rank))


def bad_while(x):
    left = nisa.register_alloc(4)
    while left:  # here
        nisa.memset(x, 0.0)


def good_while(x):
    left = nisa.register_alloc(4)

    def step(register):
        nisa.memset(x, 0.0)
        return register

    nl.while_loop(left, step)


def bad_dynamic_range(x):
    for i in nl.dynamic_range(4):  # here
        nisa.memset(x[:, nl.ds(i, 1)], 0.0)


def good_dynamic_range(x):
    nl.fori_loop(0, 4, lambda i: nisa.memset(x[:, nl.ds(i, 1)], 0.0))


def bad_global(x):
    TABLE.append(x.shape[0])  # here


def bad_global_item(x):
    TABLE[0] = x.shape[0]  # here


def good_global(x):
    table = list(TABLE)
    table.append(x.shape[0])


def bad_foreign(x):
    nisa.memset(x, np.sqrt(2.0))  # here


def good_foreign(x):
    identity = nl.shared_constant(np.eye(P, dtype=np.float32))
    nisa.dma_copy(x, identity)
    nisa.memset(x, math.sqrt(2.0))


def bad_print(x: nl.NkiTensor):
    print(f"{x} of {P}")  # here


def good_print(x: nl.NkiTensor):
    print(f"{x.shape} of {P}")
    nl.device_print("x", x)


def bad_neuronxcc(x):
    import neuronxcc.nki.typing as nt  # here  # pants: no-infer-dep

    assert isinstance(x, nt.tensor)  # here


def good_neuronxcc(x):
    import nki.typing as nt  # pants: no-infer-dep

    assert isinstance(x, nt.tensor)


def bad_beta1(x):
    tile = nl.load(x, mask=x.shape[0] < P)  # here
    nisa.memset(tile, 0.0)


def bad_arange(x):
    return x[nl.arange(P)]  # here


def good_beta1(x):
    tile = nl.load(x[0:P])
    nisa.memset(tile, 0.0)


def bad_arithmetic(x):
    rank = ncc.rank_id()
    nisa.dma_copy(x, x.ap([[1, 1], [1, 1]], scalar_offset=rank * 2))  # here


def bad_loop_arithmetic(x):
    nl.fori_loop(0, 4, lambda i: nisa.memset(x[:, nl.ds(i + 1, 1)], 0.0))  # here


def good_arithmetic(x, offset: int):
    rank = ncc.rank_id()
    if rank != None:  # noqa: E711
        nisa.dma_copy(x, x.ap([[1, 1], [1, 1]], offset=2 * offset, scalar_offset=rank))


def bad_stationary(x):
    weights = nl.ndarray((P, 4, 32), nl.bfloat16)
    out = nl.ndarray((P, 512), nl.float32, buffer=nl.psum)
    nisa.nc_matmul(out, weights, x)  # here


def good_stationary(x):
    weights = nl.ndarray((P, 4, 32), nl.bfloat16)
    out = nl.ndarray((P, 512), nl.float32, buffer=nl.psum)
    nisa.nc_matmul(out, weights.reshape((P, 128)), x)
    nisa.nc_matmul(out, weights[:, 0, :], x)
    nisa.nc_matmul(out, weights[:, 0:2, :], x, perf_mode="double_row")


def bad_broadcast():
    wide = nl.ndarray((P, 512), nl.float32)
    narrow = nl.ndarray((P, 1), nl.float32)
    nisa.tensor_tensor(wide, wide, narrow, nl.add)  # here


def bad_broadcast_nl():
    wide = nl.ndarray((P, 512), nl.float32)
    return nl.add(wide, wide[:, 0])  # here


def good_broadcast():
    wide = nl.ndarray((P, 4, 128), nl.float32)
    narrow = nl.ndarray((P, 1), nl.float32)
    flat = nl.ndarray((P, 512), nl.float32)
    nisa.tensor_tensor(wide, wide, flat, nl.add)
    nisa.tensor_tensor(wide, wide, narrow.broadcast(1, 512), nl.add)
    nisa.tensor_scalar(wide, wide, nl.add, narrow)


def bad_divide(x):
    tile = nl.load(x)
    nisa.tensor_tensor(tile, tile, tile, op=nl.divide)  # here


def good_divide(x):
    tile = nl.load(x)
    nisa.reciprocal(tile, tile)
    nisa.tensor_tensor(tile, tile, tile, op=nl.multiply)


def bad_power(x):
    root = nl.power(x, 0.5)  # here
    nisa.memset(root, 0.0)


def good_power(x):
    tile = nl.load(x)
    nisa.tensor_scalar(tile, tile, nl.power, 0.5)


def bad_gpsimd():
    out = nl.ndarray((P, 512), nl.float32, buffer=nl.psum)
    nisa.iota(out, [[1, 512]])  # here


def bad_gpsimd_engine():
    out = nl.ndarray((P, 512), nl.float32, buffer=nl.psum)
    nisa.memset(out, 0.0, engine=engines.gpsimd)  # here


def good_gpsimd():
    out = nl.ndarray((P, 512), nl.float32, buffer=nl.psum)
    ramp = nl.ndarray((P, 512), nl.float32)
    nisa.iota(ramp, [[1, 512]])
    nisa.tensor_copy(ramp, out, engine=engines.vector)


def bad_both_psum():
    first = nl.ndarray((P, 512), nl.float32, buffer=nl.psum)
    second = nl.ndarray((P, 512), nl.float32, buffer=nl.psum)
    tile = nl.ndarray((P, 512), nl.float32)
    nisa.tensor_tensor(tile, first, second[...], nl.add)  # here


def good_both_psum():
    first = nl.ndarray((P, 512), nl.float32, buffer=nl.psum)
    tile = nl.ndarray((P, 512), nl.float32)
    nisa.tensor_tensor(tile, first, tile, nl.add)


def bad_dma(out):
    tile = nl.ndarray((P, 512), nl.float32, buffer=nl.psum)
    nisa.dma_copy(dst=out, src=tile[0:64, :])  # here


def good_dma(out):
    tile = nl.ndarray((P, 512), nl.float32, buffer=nl.psum)
    nisa.dma_copy(dst=out, src=nl.copy(tile))


def bad_start():
    tile = nl.ndarray((P, 512), nl.float32)
    nisa.memset(tile[5:10, :], 0.0)  # here


def bad_start_of_view():
    tile = nl.ndarray((P, 512), nl.float32)
    half = tile[nl.ds(32, 64)]
    nisa.memset(half[8:16], 0.0)  # here


def good_start(x):
    tile = nl.ndarray((P, 512), nl.float32)
    nisa.memset(tile[32:40, :], 0.0)
    nisa.dma_copy(tile[5:10, :], x)
    for i in range(4):
        nisa.memset(tile[nl.ds(32 * i, 32)], 0.0)


def bad_memset():
    counts = nl.ndarray((P, 8), nl.int32)
    nisa.memset(counts, 1.0)  # here


def bad_memset_packed():
    packed = nl.ndarray((P, 8), nl.float8_e4m3fn_x4)
    nisa.memset(packed, value=1)  # here


def good_memset():
    counts = nl.ndarray((P, 8), nl.int32)
    packed = nl.ndarray((P, 8), nl.float8_e4m3fn_x4)
    values = nl.ndarray((P, 8), nl.float32)
    nisa.memset(counts, 1)
    nisa.memset(packed, 0)
    nisa.memset(values, 1)


def bad_hwdge():
    wide = nl.ndarray((P, 8), nl.float32)
    narrow = nl.ndarray((P, 8), nl.bfloat16)
    nisa.dma_copy(narrow, wide, dge_mode=dge_mode.hwdge)  # here


def good_hwdge():
    wide = nl.ndarray((P, 8), nl.float32)
    narrow = nl.ndarray((P, 8), nl.bfloat16)
    nisa.dma_copy(narrow, wide, dge_mode=dge_mode.swdge)
    nisa.dma_copy(nl.ndarray((P, 8), wide.dtype), wide, dge_mode=dge_mode.hwdge)


def bad_enum(x):
    nisa.memset(x, 0.0, engine=5)  # here


def good_enum(x):
    nisa.memset(x, 0.0, engine=nisa.engine.vector)


def bad_buffer():
    nl.ndarray((P, 8), nl.float32, buffer="sbuf")  # here


def good_buffer():
    nl.ndarray((P, 8), nl.float32, nl.sbuf)


def bad_output(x):  # here
    out = nl.ndarray((P, 8), nl.float32, buffer=nl.private_hbm)
    nisa.dma_copy(out, x)
    return out, x


def good_output(x):
    out = nl.ndarray((P, 8), nl.float32, buffer=nl.shared_hbm)
    nisa.dma_copy(out, x)
    return out.reshape((8, P))


def bad_collective_argument(x, group):
    out = nl.ndarray((P, 512), nl.float32, buffer=nl.shared_hbm, name="out")
    ncc.all_reduce(srcs=[x], dsts=[out], replica_group=group, op=nl.add)  # here


def bad_collective_result(x, group):
    scratch = nl.ndarray((P, 512), nl.float32, buffer=nl.shared_hbm, name="scratch")
    out = nl.ndarray((P, 512), nl.float32, buffer=nl.shared_hbm, name="out")
    nisa.dma_copy(scratch, x)
    ncc.all_reduce(srcs=[scratch], dsts=[out], replica_group=group, op=nl.add)  # here
    return out


def _named(shape, name):
    return nl.ndarray(shape, nl.float32, buffer=nl.shared_hbm, name=name)


def good_collective(x, group):
    source, scratch = _named((P, 512), "source"), _named((P, 512), "scratch")
    out = nl.ndarray((P, 512), nl.float32, buffer=nl.shared_hbm)
    nisa.dma_copy(source, x)
    ncc.all_reduce(srcs=[source], dsts=[scratch], replica_group=group, op=nl.add)
    nisa.dma_copy(out, scratch)
    return out


def bad_collective_name(group):
    source = nl.ndarray((P, 512), nl.float32, buffer=nl.shared_hbm, name="source")
    scratch = nl.ndarray((P, 512), nl.float32, buffer=nl.shared_hbm)
    ncc.all_gather(  # here
        srcs=[source], dsts=[scratch[0:64]], replica_group=group, collective_dim=0
    )


def bad_collective_size(group):
    tile = nl.ndarray((P, 8), nl.float32)
    ncc.all_reduce(srcs=[tile], dsts=[tile], replica_group=group, op=nl.add)  # here


def good_collective_size(group):
    tile = nl.ndarray((P, 2, 256), nl.float32)
    ncc.all_reduce(srcs=[tile], dsts=[tile], replica_group=group, op=nl.add)


def bad_ordered_loop(x):
    with nl.no_reorder():
        nl.fori_loop(0, 4, lambda i: nisa.memset(x[:, nl.ds(i, 1)], 0.0))  # here


def good_ordered_loop(x):
    def step(i):
        with nl.no_reorder():
            nisa.memset(x[:, nl.ds(i, 1)], 0.0)

    nl.fori_loop(0, 4, step)


_namespace: dict[str, Any] = {}
exec("def from_exec(x):\n    return x\n", _namespace)
from_exec = _namespace["from_exec"]


def bad_unseen(x):
    from_exec(x)  # here


def _seen(x):
    return x


def good_unseen(x):
    _seen(x)


# rule, a kernel that breaks it and nothing else, one that breaks nothing
CASES = [
    ("is-comparison", bad_is, good_is),
    ("try-statement", bad_try, good_try),
    ("generator", bad_generator, good_generator),
    ("generator", bad_yield, good_generator),
    ("with-statement", bad_with, good_with),
    ("set-use", bad_set, good_set),
    ("set-use", bad_set_call, good_set),
    ("sorting", bad_sorted, good_sorted),
    ("sorting", bad_sort, good_sorted),
    ("class-bases", bad_bases, good_bases),
    ("class-bases", bad_no_base, good_bases),
    ("property", bad_property, good_bases),
    ("keyword-only", bad_keyword_only, good_keyword_only),
    ("list-argument", bad_list, good_list),
    ("list-argument", bad_list_default, good_list),
    ("dict-keys", bad_dict, good_dict),
    ("register-control-flow", bad_register_if, good_register),
    ("register-control-flow", bad_register_range, good_register),
    ("register-while", bad_while, good_while),
    ("dynamic-range", bad_dynamic_range, good_dynamic_range),
    ("global-state", bad_global, good_global),
    ("global-state", bad_global_item, good_global),
    ("foreign-call", bad_foreign, good_foreign),
    ("print-tensor", bad_print, good_print),
    ("neuronxcc", bad_neuronxcc, good_neuronxcc),
    ("beta1", bad_beta1, good_beta1),
    ("beta1", bad_arange, good_beta1),
    ("register-arithmetic", bad_arithmetic, good_arithmetic),
    ("register-arithmetic", bad_loop_arithmetic, good_dynamic_range),
    ("stationary-dims", bad_stationary, good_stationary),
    ("tensor-broadcast", bad_broadcast, good_broadcast),
    ("uncompilable", bad_divide, good_divide),
    ("power-exponent", bad_power, good_power),
    ("gpsimd-psum", bad_gpsimd, good_gpsimd),
    ("gpsimd-psum", bad_gpsimd_engine, good_gpsimd),
    ("both-psum", bad_both_psum, good_both_psum),
    ("dma-psum", bad_dma, good_dma),
    ("partition-start", bad_start, good_start),
    ("partition-start", bad_start_of_view, good_start),
    ("memset-kind", bad_memset, good_memset),
    ("memset-kind", bad_memset_packed, good_memset),
    ("hwdge-cast", bad_hwdge, good_hwdge),
    ("raw-enum", bad_enum, good_enum),
    ("string-buffer", bad_buffer, good_buffer),
    ("output-buffer", bad_output, good_output),
    ("collective-io", bad_collective_argument, good_collective),
    ("collective-io", bad_collective_result, good_collective),
    ("collective-name", bad_collective_name, good_collective),
    ("collective-size", bad_collective_size, good_collective_size),
    ("no-reorder-loop", bad_ordered_loop, good_ordered_loop),
    ("unseen-helper", bad_unseen, good_unseen),
]

# classes and helpers whose own lines are to be named
ELSEWHERE = {bad_bases: Deeper, bad_no_base: Plain, bad_property: WithProperty}


@pytest.mark.parametrize(("rule", "bad", "good"), CASES)
def test_each_rule_finds_what_breaks_it(rule: str, bad: Any, good: Any) -> None:
    found = lint(bad)
    findings = [finding for finding in found if finding.rule == rule]
    assert sorted({finding.line for finding in findings}) == _marked(ELSEWHERE.get(bad, bad))
    assert {finding.file for finding in findings} == {__file__}
    # a register in `while` breaks a rule of each front end
    others = {finding.rule for finding in found} - {rule}
    assert others <= ({"register-control-flow"} if rule == "register-while" else set())


@pytest.mark.parametrize("good", sorted({case[2] for case in CASES}, key=lambda f: f.__name__))
def test_what_is_allowed_gives_no_finding(good: Any) -> None:
    assert lint(good) == []


def test_every_rule_has_a_case_and_a_text() -> None:
    names = [rule.name for rule in RULES]
    assert len(names) == len(set(names))
    assert {case[0] for case in CASES} == set(names)
    for rule in RULES:
        assert rule.frontends and rule.text.endswith(".")


@pytest.mark.parametrize(("rule", "bad"), [case[:2] for case in CASES])
@pytest.mark.parametrize("frontend", ["parser", "tracer"])
def test_a_front_end_reports_its_own_rules(rule: str, bad: Any, frontend: Any) -> None:
    held = next(item.frontends for item in RULES if item.name == rule)
    assert (rule in {finding.rule for finding in lint(bad, frontend)}) == (frontend in held)


def test_messages_name_the_front_end_and_the_place() -> None:
    finding = lint(bad_is)[0]
    column = inspect.getsource(bad_is).splitlines()[1].index("bias") + 1
    assert str(finding).startswith(f"{__file__}:{finding.line}:{column}: is-comparison: ")
    assert "bias is not None" in finding.message
    assert "parser front end" in finding.message and "0.6" in finding.message
    assert "tracing front end" in lint(bad_register_if)[0].message
    assert "front end" not in lint(bad_broadcast)[0].message


def test_a_kernel_object_a_wrapper_and_a_launch_are_the_function() -> None:
    kernel = jit(bad_is)
    wrapped = functools.wraps(bad_is)(lambda *args: bad_is(*args))
    assert lint(kernel) == lint(kernel[2]) == lint(wrapped) == lint(bad_is) != []


def test_a_kernel_without_source_is_an_error() -> None:
    with pytest.raises(SourceNotFoundError, match="from_exec"):
        lint(from_exec)
    with pytest.raises(NkiError, match="built-in"):
        lint(len)
    with pytest.raises(TypeError, match="must be a function"):
        lint("kernel")
    with pytest.raises(ValueError, match="'parser' or 'tracer'"):
        lint(bad_is, "compiler")  # type: ignore[arg-type]


def test_a_file_that_has_changed_is_an_error(tmp_path: Path) -> None:
    file = tmp_path / "changing_kernel.py"
    file.write_text("\n\ndef kernel(x):\n    return x\n")
    namespace: dict[str, Any] = {}
    exec(compile(file.read_text(), str(file), "exec"), namespace)
    assert lint(namespace["kernel"]) == []
    file.write_text("def kernel(x):\n    return x\n")
    linecache.checkcache(str(file))
    with pytest.raises(SourceNotFoundError, match="changing_kernel"):
        lint(namespace["kernel"])
