"""The command `nkisim`: what it prints and writes, its exit statuses, and what it refuses."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import nkisim
from nkisim.command import main

# where this process finds modules, also from another folder
MODULES = os.pathsep.join(os.path.abspath(path) for path in sys.path if path)

DOUBLED = """
import nki
import nki.isa as nisa
import nki.language as nl


@nki.jit
def doubled(x, factor=2.0, times=1):
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    tile = nl.load(x)
    for _ in range(times):
        nisa.tensor_scalar(tile, tile, nl.multiply, factor)
    nisa.dma_copy(out, tile)
    return out


@nki.jit
def both(x):
    return {"same": doubled(x, 1.0), "parts": [doubled(x), doubled(x, 3.0)]}


@nki.jit
def in_place(x):
    nl.store(x, nl.exp(nl.load(x)))


@nki.jit
def unwritten(x):
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    tile = nl.ndarray(x.shape, x.dtype)
    nisa.dma_copy(out, tile)
    return out


@nki.jit
def as_often_as(x, count):
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    tile, often = nl.load(x), nl.load(count)
    register = nisa.register_alloc(0)
    nisa.register_load(register, often)

    def body(i):
        nisa.tensor_scalar(tile, tile, nl.multiply, 2.0)

    nl.fori_loop(0, register, body)
    nisa.dma_copy(out, tile)
    return out


@nki.jit
def careless(x):
    assert x.shape[1] % 2 == 0, "an even number of columns"
    return [v for v in (i for i in sorted({3, 1}))]


def plain(x):
    return doubled(x)


no_kernel = 3
"""


@pytest.fixture(autouse=True)
def _as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The command is a process of its own; here its traces in this one are removed."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path.copy())
    monkeypatch.delenv("NEURON_PLATFORM_TARGET_OVERRIDE", raising=False)
    (tmp_path / "kernels.py").write_text(DOUBLED)
    yield
    nkisim.uninstall()


def lines(capsys: pytest.CaptureFixture[str], status: int, *argv: str) -> list[str]:
    """Run `main`; what it prints, one line on standard error only where the status is 2."""
    assert main(argv) == status
    captured = capsys.readouterr()
    if status == 2:
        assert captured.out == ""
        assert captured.err.count("\n") == 1
        return [captured.err.rstrip("\n")]
    assert captured.err == ""
    return captured.out.splitlines()


def refused(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    (line,) = lines(capsys, 2, *argv)
    assert line.startswith(f"nkisim {argv[0]}: error: ")
    return line


def files() -> set[str]:
    return {path.name for path in Path().iterdir() if path.is_file()}


def in_a_process(*argv: str, code: str = "") -> subprocess.CompletedProcess[str]:
    """The command as a user starts it, with the modules that this process has."""
    program = ["-c", code] if code else ["-m", "nkisim.command"]
    variables = {**os.environ, "PYTHONPATH": MODULES}
    return subprocess.run(
        [sys.executable, *program, *argv], env=variables, capture_output=True, text=True
    )


# run


def test_run_describes_what_the_kernel_returns(capsys: pytest.CaptureFixture[str]) -> None:
    np.savez("given.npz", x=np.array([[1.0, 2.0], [3.0, -4.0]], np.float32))
    printed = lines(capsys, 0, "run", "kernels.py:doubled", "--inputs", "given.npz")
    assert printed == ["result: [2, 2] float32, least -8, largest 6, mean 1"]


def test_run_saves_what_the_kernel_returns(capsys: pytest.CaptureFixture[str]) -> None:
    x = np.random.default_rng(0).standard_normal((128, 16), np.float32)
    np.savez("given.npz", x=x)
    argv = ("run", "kernels.py:both", "--inputs", "given.npz", "--save", "found.npz")
    names = [line.partition(":")[0] for line in lines(capsys, 0, *argv)]
    assert names == ["result.same", "result.parts0", "result.parts1"]
    with np.load("found.npz") as found:
        np.testing.assert_array_equal(found["result.same"], x)
        np.testing.assert_array_equal(found["result.parts0"], 2 * x)
        np.testing.assert_array_equal(found["result.parts1"], 3 * x)


def test_inputs_are_rounded_on_request_and_narrow_results_saved_as_float32(
    capsys: pytest.CaptureFixture[str],
) -> None:
    x = np.random.default_rng(0).standard_normal((8, 16), np.float32)
    named: Any = {"x:bfloat16": x}
    np.savez("given.npz", **named)
    argv = ("run", "kernels.py:doubled", "--inputs", "given.npz", "--save", "found.npz")
    assert "bfloat16" in lines(capsys, 0, *argv)[0]
    with np.load("found.npz") as found:
        assert found["result"].dtype == np.float32
        expected = 2 * x.astype(ml_dtypes.bfloat16).astype(np.float32)
        np.testing.assert_array_equal(found["result"], expected)


def test_random_values_depend_on_the_seed_and_the_rank(
    capsys: pytest.CaptureFixture[str],
) -> None:
    argv = ("run", "kernels.py:doubled", "--shapes", "128x8", "--ranks", "2", "--save", "a.npz")
    first = lines(capsys, 0, *argv)
    assert [line.partition(":")[0] for line in first] == ["rank0.result", "rank1.result"]
    assert first == lines(capsys, 0, *argv)
    assert first[0].partition(":")[2] != first[1].partition(":")[2]
    assert first != lines(capsys, 0, *argv, "--seed", "1")


def test_a_kernel_may_return_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    argv = ("run", "kernels.py:in_place", "--shapes", "x=8x4")
    assert lines(capsys, 0, *argv) == ["the kernel returns nothing"]


def test_a_plain_function_is_a_kernel(capsys: pytest.CaptureFixture[str]) -> None:
    (line,) = lines(capsys, 0, "run", "kernels.py:plain", "--shapes", "x=8x4:float16")
    assert line.startswith("result: [8, 4] float16, ")


def test_values_are_python_literals_or_words(capsys: pytest.CaptureFixture[str]) -> None:
    Path("echo.py").write_text("def echo(x, **given):\n    return {k: given[k] for k in given}\n")
    values = ("a=0.5", "b=(0, 1)", "c=True", "d=word", "e='two words'", "f=None")
    printed = lines(capsys, 0, "run", "echo.py:echo", "--shapes", "1x1", "--set", *values)
    assert printed == [
        "result.a: 0.5", "result.b0: 0", "result.b1: 1", "result.c: True", "result.d: 'word'",
        "result.e: 'two words'",
    ]  # fmt: skip


def test_a_kernel_of_a_package_imports_relatively(capsys: pytest.CaptureFixture[str]) -> None:
    inner = Path("outer_of_command_test/inner")
    inner.mkdir(parents=True)
    for folder in (inner.parent, inner):
        (folder / "__init__.py").touch()
    (inner.parent / "base.py").write_text(DOUBLED)
    (inner / "kernel.py").write_text("from ..base import doubled\n")
    (line,) = lines(capsys, 0, "run", f"{inner}/kernel.py:doubled", "--shapes", "8x4")
    assert line.startswith("result: [8, 4]")


def test_a_file_may_have_the_name_of_a_module(capsys: pytest.CaptureFixture[str]) -> None:
    import copy

    Path("copy.py").write_text("from kernels import doubled\n")
    (line,) = lines(capsys, 0, "run", "copy.py:doubled", "--shapes", "8x4")
    assert line.startswith("result: [8, 4]")
    assert sys.modules["copy"] is copy


# profile


def test_profile_writes_what_is_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    argv = ("profile", "kernels.py:doubled", "--shapes", "x=128x512", "--target", "trn2")
    files = ("--json", "a.json", "--perfetto", "b.json", "--plot", "c.svg")
    printed = lines(capsys, 0, *argv, *files)
    assert "Trainium2" in printed[0]
    assert printed[-1] == "picture: c.svg"
    figures = json.loads(Path("a.json").read_text())
    assert figures["target"] == "gen3"
    assert figures["count.dma_copy"] == 2
    assert figures["hbm_read_bytes"] == figures["hbm_written_bytes"] == 128 * 512 * 4
    names = {event.get("name") for event in json.loads(Path("b.json").read_text())["traceEvents"]}
    assert {"dma_copy", "tensor_scalar"} <= names
    assert "tensor_scalar" in Path("c.svg").read_text()


def test_the_picture_is_called_after_the_kernel(capsys: pytest.CaptureFixture[str]) -> None:
    argv = ("profile", "kernels.py:doubled", "--shapes", "x=128x512")
    assert lines(capsys, 0, *argv)[-1] == "picture: doubled.png"
    assert Path("doubled.png").read_bytes().startswith(b"\x89PNG")


def test_no_picture_on_request(capsys: pytest.CaptureFixture[str]) -> None:
    lines(capsys, 0, "profile", "kernels.py:doubled", "--shapes", "x=128x512", "--no-plot")
    assert files() == {"kernels.py"}


def test_profile_needs_no_values_but_where_they_decide(capsys: pytest.CaptureFixture[str]) -> None:
    np.savez("given.npz", count=np.array([[3]], np.int32))
    argv = ("profile", "kernels.py:as_often_as", "--no-plot", "--json", "a.json")
    given = ("--shapes", "x=128x512", "--inputs", "given.npz")
    lines(capsys, 0, *argv, *given, "--numerics")
    assert json.loads(Path("a.json").read_text())["count.tensor_scalar"] == 3


def test_ranks_and_cores_are_reported(capsys: pytest.CaptureFixture[str]) -> None:
    argv = ("profile", "kernels.py:in_place", "--shapes", "x=8x4", "--no-plot", "--json", "a.json")
    lines(capsys, 0, *argv, "--ranks", "3")
    figures = json.loads(Path("a.json").read_text())
    assert (figures["ranks"], figures["lnc"], len(figures["cores"])) == (3, 1, 3)


# lint


def test_lint_says_where_and_what(capsys: pytest.CaptureFixture[str]) -> None:
    printed = lines(capsys, 1, "lint", "kernels.py:careless")
    assert printed[-1] == f"{len(printed) - 1} findings"
    number = DOUBLED.splitlines().index("def careless(x):") + 3
    for rule in ("generator", "sorting", "set-use"):
        assert any(f"kernels.py:{number}:" in line and f" {rule}: " in line for line in printed)


def test_lint_for_one_front_end(capsys: pytest.CaptureFixture[str]) -> None:
    assert lines(capsys, 0, "lint", "kernels.py:careless", "--frontend", "tracer") == ["0 findings"]
    assert lines(capsys, 0, "lint", "kernels.py:doubled") == ["0 findings"]


# rules


def test_a_broken_rule_ends_the_run(capsys: pytest.CaptureFixture[str]) -> None:
    argv = ("run", "kernels.py:unwritten", "--shapes", "x=8x4")
    line = refused(capsys, *argv, "--rules", "uninitialized=error")
    number = DOUBLED.splitlines().index("    nisa.dma_copy(out, tile)", 30) + 1
    assert "[uninitialized]" in line
    assert line.endswith(f"kernels.py:{number}")


def test_a_rule_can_be_lowered() -> None:
    argv = ("run", "kernels.py:unwritten", "--shapes", "x=8x4")
    warned = in_a_process(*argv)
    assert warned.returncode == 0
    assert "NkiWarning" in warned.stderr and "[uninitialized]" in warned.stderr
    silent = in_a_process(*argv, "--rules", "uninitialized=off")
    assert (silent.returncode, silent.stderr) == (0, "")
    assert "nan" in silent.stdout


# what is refused


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["run", "kernels.py"], ["'kernels.py' must be FILE:KERNEL"]),
        (["run", ":doubled"], ["must be FILE:KERNEL"]),
        (["run", "absent.py:doubled"], ["'absent.py'"]),
        (["run", "kernels.py:no_kernel"], ["'no_kernel'", "doubled, both, in_place"]),
        (["run", "kernels.py:absent"], ["'absent'", "doubled, both, in_place"]),
        (["run", "broken.py:kernel"], ["SyntaxError", "broken.py, line 1"]),
        (["run", "importing.py:kernel"], ["ModuleNotFoundError", "nki_absent", "importing.py:1"]),
        (["run", "kernels.py:doubled"], ["doubled(x, factor=2.0, times=1)", "'x'", "--shapes"]),
        (["lint", "kernels.py:absent"], ["'absent'"]),
    ],
)
def test_bad_kernels(capsys: pytest.CaptureFixture[str], argv: list[str], says: list[str]) -> None:
    Path("broken.py").write_text("def kernel(:\n")
    Path("importing.py").write_text("import nki_absent\n")
    line = refused(capsys, *argv)
    for text in says:
        assert text in line


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (["--shapes", "x=12by3"], ["--shapes 'x=12by3'", "[NAME=]SIZES[:DTYPE]"]),
        (["--shapes", "x=8x0"], ["--shapes 'x=8x0'", "at least 1"]),
        (["--shapes", "x=8x4:float64"], ["--shapes 'x=8x4:float64'", "float64", "bfloat16"]),
        (["--shapes", "x=8x4:float8_e4m3fn_x4"], ["--shapes", "float8_e4m3fn_x4", "uint32"]),
        (["--shapes", "x=8x4", "x=8x4"], ["--shapes 'x=8x4'", "already"]),
        (["--shapes", "x=8x4", "8x4"], ["--shapes '8x4'", "has no name"]),
        (["--shapes", "y=8x4"], ["doubled(x, factor=2.0, times=1)", "'x'"]),
        (["--shapes", "x=8x4", "y=8x4"], ["unexpected keyword argument 'y'"]),
        (["--shapes", "8x4", "8x4", "8x4", "8x4"], ["too many positional arguments"]),
        (["--shapes", "x=8x4", "--set", "factor"], ["--set 'factor'", "NAME=VALUE"]),
        (["--shapes", "x=8x4", "--set", "times=2", "times=3"], ["--set 'times=3'", "once"]),
        (["--shapes", "x=8x4", "--set", "x=3"], ["--set", "'x'", "already"]),
        (["--shapes", "x=8x4", "--set", "factor=2*3"], ["--set 'factor=2*3'", "literal"]),
        (["--shapes", "x=8x4", "--set", "factor=false"], ["--set 'factor=false'", "literal"]),
        (["--shapes", "x=8x4", "--set", "times=word"], ["TypeError", "kernels.py:"]),
        (["--shapes", "x=8x4", "--target", "trn9"], ["--target is 'trn9'", "gen4"]),
        (["--shapes", "x=8x4", "--seed", "-1"], ["--seed is -1", "at least 0"]),
        (["--shapes", "x=8x4", "--ranks", "0"], ["--ranks is 0", "at least 1"]),
        (["--shapes", "x=8x4", "--rules", "nothing=off"], ["--rules 'nothing=off'", "aliased"]),
        (["--shapes", "x=8x4", "--rules", "aliased=loud"], ["--rules 'aliased=loud'", "warn"]),
        (["--shapes", "x=129x4"], ["129 partitions", "kernels.py:"]),
        (["--inputs", "absent.npz"], ["--inputs", "'absent.npz'"]),
        (["--inputs", "kernels.py"], ["--inputs", "'kernels.py'", ".npz"]),
        (["--inputs", "one.npy"], ["--inputs", "'one.npy'", ".npz"]),
        (["--inputs", "objects.npz"], ["--inputs", "'objects.npz'"]),
        (["--inputs", "typed.npz"], ["--inputs", "'x:float99'", "bfloat16"]),
        (["--inputs", "wide.npz"], ["argument x", "float64"]),
        (["--shapes", "x=8x4", "--save", "found.txt"], ["--save is 'found.txt'", ".npz"]),
        (["--shapes", "x=8x4", "--save", "no/found.npz"], ["--save is 'no/found.npz'", "folder"]),
    ],
)  # fmt: skip
def test_bad_arguments(
    capsys: pytest.CaptureFixture[str], given: list[str], says: list[str]
) -> None:
    np.save("one.npy", np.zeros(3))
    objects: Any = np.array([{}], object)
    np.savez("objects.npz", x=objects)
    typed: Any = {"x:float99": np.zeros((8, 4))}
    np.savez("typed.npz", **typed)
    np.savez("wide.npz", x=np.zeros((8, 4)))
    before = files()
    line = refused(capsys, "run", "kernels.py:doubled", *given)
    for text in says:
        assert text in line
    assert files() == before


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (["--plot", "a.gif"], ["--plot is 'a.gif'", ".png or .svg"]),
        (["--plot", "no/a.png"], ["--plot is 'no/a.png'", "folder"]),
        (["--perfetto", "a.txt"], ["--perfetto is 'a.txt'", ".json"]),
        (["--json", "no/a.json"], ["--json is 'no/a.json'", "folder"]),
        (["--json", "."], ["--json is '.'", "a file"]),
    ],
)
def test_bad_outputs_are_refused_before_the_kernel_runs(
    capsys: pytest.CaptureFixture[str], given: list[str], says: list[str]
) -> None:
    line = refused(capsys, "profile", "kernels.py:unwritten", "--shapes", "x=8x4", *given)
    for text in says:
        assert text in line


@pytest.mark.parametrize(
    "argv",
    [
        [],
        ["frobnicate"],
        ["run"],
        ["run", "kernels.py:doubled", "--lnc", "3"],
        ["run", "kernels.py:doubled", "--nonsense"],
        ["profile", "kernels.py:doubled", "--plot", "a.png", "--no-plot"],
        ["lint", "kernels.py:doubled", "--frontend", "other"],
    ],
)
def test_arguments_that_cannot_be_parsed(
    capsys: pytest.CaptureFixture[str], argv: list[str]
) -> None:
    with pytest.raises(SystemExit) as exit_:
        main(argv)
    captured = capsys.readouterr()
    assert exit_.value.code == 2
    assert captured.out == ""
    assert captured.err.count("\n") == 1


def test_another_nki_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    Path("nki").mkdir()
    Path("nki/__init__.py").write_text("class jit:\n    pass\n")
    Path("nki/language.py").touch()
    Path("theirs.py").write_text("import nki\n\nkernel = nki.jit()\n")
    sys.path.insert(0, os.getcwd())
    try:
        line = refused(capsys, "run", "theirs.py:kernel")
    finally:
        sys.modules.pop("nki", None)
    assert "another nki" in line and "nki/__init__.py" in line


# the process


def test_the_command_in_a_process_of_its_own() -> None:
    version = in_a_process("--version")
    assert (version.returncode, version.stdout) == (0, f"{nkisim.__version__}\n")
    run = in_a_process("run", "kernels.py:doubled", "--shapes", "x=8x4:bfloat16")
    assert (run.returncode, run.stderr) == (0, "")
    assert run.stdout.startswith("result: [8, 4] bfloat16, ")
    profile = in_a_process("profile", "kernels.py:doubled", "--shapes", "x=8x4", "--no-plot")
    assert (profile.returncode, profile.stderr) == (0, "")
    assert "Trainium3" in profile.stdout
    lint = in_a_process("lint", "kernels.py:careless")
    assert lint.returncode == 1
    failed = in_a_process("run", "kernels.py:careless", "--shapes", "x=8x3")
    assert (failed.returncode, failed.stdout) == (2, "")
    assert "AssertionError: an even number of columns at " in failed.stderr
    assert failed.stderr.count("\n") == 1
    traced = in_a_process("run", "kernels.py:careless", "--shapes", "x=8x3", "--traceback")
    assert traced.returncode == 2
    assert traced.stderr.startswith("Traceback") and "in careless" in traced.stderr


def test_without_matplotlib_there_is_a_report_and_no_picture() -> None:
    code = (
        "import sys; sys.modules['matplotlib'] = None; "
        "from nkisim.command import main; raise SystemExit(main())"
    )
    argv = ("profile", "kernels.py:doubled", "--shapes", "x=8x4")
    found = in_a_process(*argv, code=code)
    assert (found.returncode, found.stderr) == (0, "")
    assert found.stdout.splitlines()[-1].startswith("no picture: matplotlib")
    assert files() == {"kernels.py"}
    asked = in_a_process(*argv, "--plot", "a.png", code=code)
    assert (asked.returncode, asked.stdout) == (2, "")
    assert "--plot needs matplotlib" in asked.stderr
