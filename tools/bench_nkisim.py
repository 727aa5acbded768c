"""Time nkisim on this machine, as ratios of two things measured in one run.

    ./pants run tools/bench_nkisim.py -- [--json] [--rounds N] [--triton-viz CHECKOUT]

* `matmul`: a tiled matmul of 2048 x 2048 x 2048 in bf16, simulated with every check and the trace
  on, against the same product of float32 matrices in NumPy; and NumPy's products of its tiles
  alone against that, the least that a simulator takes which computes each tile when it is read.
* `shapes`: how many instructions a second of one core's time a run without numerics issues.
* `triton-viz`: its NKI examples (`examples/nki_beta2` of a checkout), by nkisim with every check
  and the trace on, against triton-viz's own interpreter without its clients. Their results are
  compared.

What is compared take turns, one call each, and the medians count. Ratios are nkisim's time over the
other's.
"""

from __future__ import annotations

import argparse
import functools
import importlib.util
import inspect
import json
import os
import statistics
import sys
import time
import types
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

import nkisim
import nkisim.isa as nisa
import nkisim.language as nl

Array = npt.NDArray[Any]

SIZE = 2048
# turns of the loop of instructions, and how many each has
TURNS = 3000
IN_A_TURN = 7


def matmul(a_transposed: Any, b: Any, columns: int) -> Any:
    """`a_transposed.T @ b` of `[K, M]` and `[K, N]` in bf16, as `[M, N]` in fp32.

    All of `b` stays in SBUF; K and M are multiples of 128, N of `columns`.
    """
    k_size, m_size = a_transposed.shape
    n_size = b.shape[1]
    depth = k_size // 128
    out = nl.ndarray((m_size, n_size), nl.float32, buffer=nl.shared_hbm)
    right = nl.ndarray((128, depth, n_size), b.dtype)
    nisa.dma_copy(right, b.reshape((depth, 128, n_size)).permute((1, 0, 2)))
    for m in range(0, m_size, 128):
        left = nl.ndarray((128, depth, 128), b.dtype)
        column = a_transposed[:, m : m + 128]
        nisa.dma_copy(left, column.reshape_dim(0, (depth, 128)).permute((1, 0, 2)))
        for n in range(0, n_size, columns):
            total = nl.ndarray((128, columns), nl.float32, buffer=nl.psum)
            for k in range(depth):
                nisa.nc_matmul(total, left[:, k, :], right[:, k, n : n + columns])
            tile = nl.ndarray((128, columns), nl.float32)
            nisa.tensor_copy(tile, total)
            nisa.dma_copy(out[m : m + 128, n : n + columns], tile)
    return out


def many_instructions(turns: int) -> None:
    """`turns` times: four matmuls into one PSUM bank, a scaling, a copy and a sum."""
    moving = nl.ndarray((128, 512), nl.bfloat16)
    weights = nl.ndarray((128, 128), nl.bfloat16)
    scale = nl.ndarray((128, 1), nl.float32)
    out = nl.ndarray((128, 1536), nl.bfloat16)
    for tile in (moving, weights, scale):
        nisa.memset(tile, 0.0)
    for turn in range(turns):
        bank = (0, turn % nl.tile_size.psum_num_banks * nl.tile_size.psum_bank_fmax_bytes)
        total = nl.ndarray((128, 512), nl.float32, buffer=nl.psum, address=bank)
        for part in range(0, 512, 128):
            nisa.nc_matmul(total[:, part : part + 128], weights, moving[:, part : part + 128])
        nisa.tensor_scalar(out[:, 512:1024], total, nl.multiply, scale, op1=nl.add, operand1=1.0)
        nisa.tensor_copy(out[:, 0:512], total)
        nisa.tensor_tensor(out[:, 1024:1536], out[:, 0:512], out[:, 512:1024], nl.add)


def medians(calls: Sequence[Callable[[], Any]], rounds: int) -> list[float]:
    """Median seconds of each, called by turns; a first call of each does not count."""
    times: list[list[float]] = [[] for _ in calls]
    for turn in range(rounds + 1):
        for call, taken in zip(calls, times, strict=True):
            start = time.perf_counter()
            call()
            if turn:
                taken.append(time.perf_counter() - start)
    return [statistics.median(taken) for taken in times]


def products_of_tiles(left: Array, right: Array, columns: int) -> None:
    """The tiles of `matmul`'s result by NumPy, each with all of K at once: `left` is `[K, M]`."""
    total = np.empty((128, columns), np.float32)
    for m in range(0, SIZE, 128):
        for n in range(0, SIZE, columns):
            np.matmul(left[:, m : m + 128].T, right[:, n : n + columns], out=total)


# the widest result of one matmul: a bank of PSUM, or on Trainium3 half of all of it
TILINGS = (("gen3", 512), ("gen4", 2048))


def time_matmul(rounds: int) -> dict[str, float]:
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal((SIZE, SIZE)).astype(ml_dtypes.bfloat16) for _ in range(2))
    left, right = a.astype(np.float32), b.astype(np.float32)
    figures: dict[str, float] = {}
    for target, columns in TILINGS:
        simulation = nkisim.simulate(matmul, target=target)
        difference = float(np.abs(simulation(a, b, columns) - left.T @ right).max())
        if difference > 1e-2:
            raise AssertionError(f"nkisim's product differs from NumPy's by {difference:g}")
        calls = (
            functools.partial(simulation, a, b, columns),
            lambda: left.T @ right,
            functools.partial(products_of_tiles, left, right, columns),
        )
        ours, numpy, tiles = medians(calls, rounds)
        print(f"matmul {SIZE}^3 bf16, {target}, {columns} columns   nkisim {ours:.3f} s   ", end="")
        print(f"NumPy float32 {numpy:.3f} s   ratio {ours / numpy:.2f}   ", end="")
        print(f"(of its tiles' products alone {tiles / numpy:.2f}, ", end="")
        print(f"largest difference {difference:.1e})", flush=True)
        figures[f"matmul_{target}_tiles_ratio"] = tiles / numpy
        figures[f"matmul_{target}_nkisim_s"] = ours
        figures[f"matmul_{target}_numpy_s"] = numpy
        figures[f"matmul_{target}_ratio"] = ours / numpy
    return figures


def time_shapes(rounds: int) -> dict[str, float]:
    """Processor time, so that a machine that does other things as well tells the same."""
    simulation = nkisim.simulate(many_instructions, target="gen3", numerics=False)
    count = TURNS * IN_A_TURN + 3
    rates = []
    for turn in range(rounds + 1):
        start = time.process_time()
        simulation(TURNS)
        if turn:
            rates.append(count / (time.process_time() - start))
    rate = statistics.median(rates)
    print(f"shapes only         {rate:,.0f} instructions a second ({count:,} a run)")
    return {"shape_only_instructions_per_s": rate}


# Against triton-viz


@dataclass(frozen=True)
class Example:
    """A kernel of triton-viz, and a function that makes its arguments; it writes into some."""

    name: str
    arguments: Callable[[], tuple[Any, ...]]

    def load(self, folder: Path) -> Callable[..., Any]:
        path = folder / f"{self.name}.py"
        spec = importlib.util.spec_from_file_location(f"triton_viz_{self.name}", path)
        if spec is None or spec.loader is None:
            raise FileNotFoundError(path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        kernel: Callable[..., Any] = getattr(module, f"{self.name}_kernel")
        return kernel


def _random(*shape: int) -> Array:
    return np.random.default_rng(len(shape)).standard_normal(shape).astype(np.float32)


def _empty(*shape: int) -> Array:
    return np.zeros(shape, np.float32)


EXAMPLES = (
    Example("matmul", lambda: (_random(512, 512), _random(512, 1024), _empty(512, 1024))),
    Example("softmax", lambda: (_random(1024, 512), _empty(1024, 512))),
    Example("rmsnorm", lambda: (_random(1024, 512), _random(1024, 512), _empty(1024, 512))),
    Example(
        "mlp",
        lambda: (_random(256, 256), _random(256, 256), _random(256, 1024), _empty(256, 1024)),
    ),
    Example(
        "rope",
        lambda: (
            *(_random(1, 4, 256, 64), _random(1, 4, 256, 64), _random(256, 64), _random(256, 64)),
            *(_empty(1, 4, 256, 64), _empty(1, 4, 256, 64), 1, 4, 256, 64),
        ),
    ),
    Example(
        "tiled_attention",
        lambda: (
            *(_random(1, 2, 256, 128) for _ in range(3)),
            *(_empty(1, 2, 256, 128), 1, 2, 2, 2, 256, 256, 128, 128),
        ),
    ),
)


class _CountedUfuncs(types.ModuleType):
    """`inspect` with signatures of NumPy's ufuncs, which have none before NumPy 2.4."""

    def __getattr__(self, name: str) -> Any:
        return getattr(inspect, name)

    @staticmethod
    def signature(function: Any) -> Any:
        if isinstance(function, np.ufunc):
            return types.SimpleNamespace(parameters=[None] * function.nin)
        return inspect.signature(function)


class TritonViz:
    """triton-viz's interpreter of NKI, from a checkout; `nki` is nkisim to it."""

    def __init__(self, checkout: Path) -> None:
        if not (checkout / "triton_viz").is_dir():
            raise FileNotFoundError(f"{checkout} is no checkout of triton-viz")
        self.examples = checkout / "examples" / "nki_beta2"
        nkisim.install()
        sys.path.insert(0, str(checkout))
        # which its installation would have made
        version = types.ModuleType("triton_viz.version")
        version.__dict__.update(__version__="checkout", git_version="checkout")
        sys.modules.setdefault(version.__name__, version)
        self._interpreter: Any = importlib.import_module("triton_viz.core.simulation.nki_beta2")
        self._patches: Any = importlib.import_module("triton_viz.core.frontend.base")
        setattr(self._interpreter, "inspect", _CountedUfuncs("inspect"))  # noqa: B010

    def run(self, kernel: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
        """Run `kernel` once; it replaces functions of `nki` meanwhile."""
        scope = self._patches._LangPatchScope()
        self._interpreter.nki_patch_lang(scope)
        try:
            self._interpreter.NKIBeta2InterpretedFunction(kernel).run(*arguments, grid=(1,))
        finally:
            scope.restore()
            for name in ("sbuf", "hbm", "psum"):
                kernel.__globals__.pop(name, None)


def time_triton_viz(checkout: Path, rounds: int) -> dict[str, float]:
    triton_viz = TritonViz(checkout)
    figures: dict[str, float] = {}
    for example in EXAMPLES:
        kernel = example.load(triton_viz.examples)
        mine, theirs = example.arguments(), example.arguments()
        simulation = nkisim.simulate(kernel)
        calls = (
            functools.partial(simulation, *mine),
            functools.partial(triton_viz.run, kernel, theirs),
        )
        ours, other = medians(calls, rounds)
        pairs = [pair for pair in zip(mine, theirs, strict=True) if isinstance(pair[0], np.ndarray)]
        difference = max(float(np.abs(a - b).max() / np.abs(b).max()) for a, b in pairs)
        if not difference <= 1e-5:
            raise AssertionError(
                f"{example.name}: the results differ by {difference:g} of the largest"
            )
        figures[f"triton_viz_{example.name}_ratio"] = ours / other
        print(
            f"{example.name:<19} nkisim {ours * 1e3:7.1f} ms   triton-viz {other * 1e3:7.1f} ms",
            end="",
        )
        print(f"   ratio {ours / other:.2f}   (largest difference {difference:.1e})")
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=7, help="calls of each (default 7)")
    parser.add_argument("--triton-viz", type=Path, metavar="CHECKOUT", help="also compare with it")
    parser.add_argument(
        "--only", nargs="+", choices=("matmul", "shapes", "triton-viz"), help="not the others"
    )
    parser.add_argument("--json", action="store_true", help="one object on the last line")
    arguments = parser.parse_args()
    if arguments.rounds < 1:
        parser.error(f"--rounds is {arguments.rounds}; it must be at least 1")
    parts = arguments.only or [
        "matmul",
        "shapes",
        *(["triton-viz"] if arguments.triton_viz else []),
    ]
    if "triton-viz" in parts and arguments.triton_viz is None:
        parser.error("--only triton-viz needs --triton-viz CHECKOUT")

    load = os.getloadavg()[0]
    print(f"{os.cpu_count()} processors, load {load:.1f} before, NumPy {np.__version__}")
    figures = {"load": load}
    if "matmul" in parts:
        figures |= time_matmul(arguments.rounds)
    if "shapes" in parts:
        figures |= time_shapes(arguments.rounds)
    if "triton-viz" in parts:
        figures |= time_triton_viz(arguments.triton_viz, arguments.rounds)
    if arguments.json:
        print(json.dumps(figures))


if __name__ == "__main__":
    main()
