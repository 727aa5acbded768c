"""Pictures: that they show what they should, and what happens without matplotlib."""

import builtins
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import matplotlib
import matplotlib.image
import numpy as np
import pytest
from trace_maker import Maker, trace

from nkisim import report
from nkisim.dtypes import bfloat16
from nkisim.enums import Engine
from nkisim.report import Report


def pipeline(n: int, cores: int = 1) -> Report:
    """Matmuls, each copied out of PSUM."""
    makers = []
    for core in range(cores):
        maker = Maker(core)
        weights = maker.sbuf(128, 128, dtype=bfloat16)
        maker.load(weights, maker.hbm(128, 128, dtype=bfloat16))
        for _ in range(n):
            bank = maker.psum(128, 512)
            maker.matmul(bank, weights, maker.sbuf(128, 512, dtype=bfloat16))
            maker.copy(maker.sbuf(128, 512), bank)
        makers.append(maker)
    return report.make(trace(*makers, ranks=cores))


def pixels(path: Path) -> np.ndarray:
    read: np.ndarray = matplotlib.image.imread(path)
    return read


@pytest.mark.parametrize(("n", "cores"), [(3, 1), (400, 1), (20, 2), (20, 5)])
def test_png_shows_the_engines_at_work(tmp_path: Path, n: int, cores: int) -> None:
    path = tmp_path / "picture.png"
    pipeline(n, cores).plot(path)
    picture = pixels(path)
    height, width = picture.shape[:2]
    assert width == 1950 and height > 600
    # the colour of the Vector engine, which is the busiest, and of its only instruction
    orange = np.array([0xD9, 0x6F, 0x2B]) / 255
    share = np.mean(np.abs(picture[..., :3] - orange).max(axis=-1) < 0.12)
    assert 0.005 < share < 0.5


def test_svg_names_what_it_shows(tmp_path: Path) -> None:
    path = tmp_path / "picture.svg"
    with matplotlib.rc_context({"svg.fonttype": "none"}):
        made = pipeline(8)
        made.plot(path)
    texts = {
        "".join(e.itertext()) for e in ElementTree.parse(path).iter() if e.tag.endswith("text")
    }
    assert f"{made.kernel_us:.3f} us on Trainium2" in texts
    assert {"Tensor", "Vector", "DMA", "nc_matmul", "tensor_copy", "dma_copy"} <= texts
    assert f"{100 * made.cores[0].busy['vector']:.0f} %" in texts
    # an engine that does nothing has no row
    assert "Scalar" not in texts


def test_an_empty_trace_is_drawn(tmp_path: Path) -> None:
    path = tmp_path / "empty.svg"
    report.make(trace(Maker())).plot(path)
    assert path.stat().st_size > 0


def test_many_kinds_of_instructions_share_the_colours(tmp_path: Path) -> None:
    maker = Maker()
    for op in ("bn_stats", "max8", "rng", "dropout", "range_select", "select_reduce", "reciprocal"):
        maker.issue(op, Engine.vector, (maker.sbuf(128, 64),), (maker.sbuf(128, 64),))
    report.make(trace(maker)).plot(tmp_path / "picture.png")
    assert (tmp_path / "picture.png").stat().st_size > 0


def test_without_matplotlib_the_extra_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = builtins.__import__

    def absent(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.startswith("matplotlib"):
            raise ImportError(f"No module named {name!r}")
        return original(name, *args, **kwargs)

    made = pipeline(1)
    monkeypatch.setattr(builtins, "__import__", absent)
    with pytest.raises(ImportError, match=r"nkisim\[plot\]"):
        made.plot(tmp_path / "picture.png")
    assert list(tmp_path.iterdir()) == []
