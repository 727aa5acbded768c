"""`nkisim.install`: `import nki` where there is no other, in processes of their own."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import nkisim

SOURCE = Path(nkisim.__file__).parent.parent


def run(script: str, *folders: Path) -> str:
    """What `script` prints in a Python that finds nkisim and the modules in `folders`."""
    paths = [str(SOURCE), *map(str, folders)]
    program = f"import sys; sys.path[:0] = {paths!r}\n{textwrap.dedent(script)}"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


KERNEL = """
    import nki
    import nki.collectives as ncc
    import nki.dtype
    import nki.isa as nisa
    import nki.language as nl
    import nki.simulator
    import nki.typing as nt
    import neuronxcc.nki.typing as old
    from neuronxcc.nki.typing import tensor as old_tensor
    from nki import collectives, isa, language
    from nki.collectives import ReplicaGroup
    from nki.isa import oob_mode, sendrecv
    from nki.isa.constants import dge_mode, engine
    from nki.language import *
    from nki.language import NKIObject

    @nki.jit
    def doubled(x: nt.tensor[4, 6], lse_dtype: nki.dtype = None) -> nl.NkiTensor:
        assert nki.isa.get_nc_version() >= nisa.nc_version.gen2
        out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
        rows = nl.ds(nl.program_id(0) * 4 // nl.num_programs(), 4 // nl.num_programs())
        part = nl.load(x[rows])
        nisa.tensor_scalar(part, part, nl.multiply, 2.0)
        nisa.dma_copy(out[rows], part, dge_mode=dge_mode.hwdge, engine=engine.sync)
        return out
"""


def test_kernels_run_as_they_are():
    script = (
        "import nkisim\nassert nkisim.install() is True"
        + textwrap.dedent(KERNEL)
        + textwrap.dedent(
            """
        import numpy as np
        x = np.arange(24, dtype=np.float32).reshape(4, 6)
        assert (doubled(x) == 2 * x).all()
        assert (nki.simulate(doubled)[2](x) == 2 * x).all()
        assert (nki.simulator.simulate_kernel(doubled, (x,), {}, 1) == 2 * x).all()
        assert (nki.simulator.simulate_kernel(doubled, (), {"x": x}, lnc=2) == 2 * x).all()
        assert old.tensor is nt.tensor is old_tensor
        assert nki.NKIObject is NKIObject is nkisim.language.NKIObject
        assert nl.add is nkisim.language.add and nisa.dma_copy is nkisim.isa.dma_copy
        assert language is nl and isa is nisa and collectives is ncc
        assert nl.exp is exp and "_replaced" not in globals()
        print("done")
        """
        )
    )
    assert run(script) == "done\n"


def test_the_public_names_are_all_there():
    script = """
        import nkisim
        nkisim.install()
        import nki.collectives, nki.dtype, nki.isa.constants, nki.language, nki.typing
        import nkisim.isa.constants
        for ours, theirs in (
            (nkisim.language, nki.language), (nkisim.isa, nki.isa),
            (nkisim.collectives, nki.collectives), (nkisim.typing, nki.typing),
            (nkisim.dtype, nki.dtype), (nkisim.isa.constants, nki.isa.constants),
        ):
            for name in ours.__all__:
                assert getattr(theirs, name) is getattr(ours, name), name
    """
    run(script)


def test_nothing_else_is_there():
    script = """
        import nkisim
        nkisim.install()
        import importlib, nki
        for name in ("nki.core", "nki.tensor", "nki.isa.vector", "nki.language.creation",
                     "nki.compiler", "neuronxcc.nki.language"):
            try:
                importlib.import_module(name)
            except ModuleNotFoundError:
                continue
            raise AssertionError(name)
        print(sorted(name for name in vars(nki) if not name.startswith("_")))
    """
    names = "NKIObject NkiTensor collectives dtype isa jit language simulate simulator typing"
    assert run(script) == f"{names.split()}\n"


def test_a_second_call_changes_nothing_and_uninstall_leaves_nothing():
    script = """
        import importlib.util, sys
        import nkisim
        before = set(sys.modules)
        assert nkisim.install()
        added = set(sys.modules) - before
        modules = {name: sys.modules[name] for name in added}
        assert nkisim.install()
        assert all(sys.modules[name] is module for name, module in modules.items())
        # others may ask whether there is an nki
        assert importlib.util.find_spec("nki") is not None
        assert importlib.util.find_spec("nki.language") is not None
        nkisim.uninstall()
        left = {name for name in set(sys.modules) - before if not name.startswith("nkisim.")}
        assert not left and before <= set(sys.modules)
        assert importlib.util.find_spec("nki") is None
        nkisim.uninstall()
        assert nkisim.install()
        import nki
    """
    run(script)


@pytest.fixture
def real(tmp_path):
    """A folder with an `nki` and a `neuronxcc` that have what they should have."""
    for name in ("nki", "neuronxcc"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("kind = 'real'\n")
    (tmp_path / "nki" / "language.py").write_text("kind = 'real'\n")
    return tmp_path


@pytest.mark.parametrize("options", ["", "replace_empty=True"])
@pytest.mark.parametrize("imported", ["", "import nki", "import nki.language"])
def test_another_nki_stays(real, options, imported):
    script = f"""
        {imported}
        import nkisim
        assert nkisim.install({options}) is False
        nkisim.uninstall()
        import nki.language
        assert nki.kind == nki.language.kind == "real"
        assert "neuronxcc" not in sys.modules
    """
    run(script, real)


def test_another_neuronxcc_stays(real, tmp_path):
    (real / "nki").rename(tmp_path / "elsewhere")
    script = """
        import nkisim
        assert nkisim.install()
        import neuronxcc, nki.language
        assert neuronxcc.kind == "real"
        assert not hasattr(nki.language, "kind")
    """
    run(script, real)


@pytest.mark.parametrize("package", [True, False])
@pytest.mark.parametrize("imported", [True, False])
def test_an_empty_nki_is_replaced_only_on_request(tmp_path, package, imported):
    (tmp_path / "nki").mkdir()
    if package:
        (tmp_path / "nki" / "__init__.py").write_text("")
    script = f"""
        import nkisim
        if {imported}:
            import nki
        original = sys.modules.get("nki")
        assert nkisim.install() is False
        assert sys.modules.get("nki") is original
        assert nkisim.install(replace_empty=True) is True
        import nki.language as nl
        assert nl.add is nkisim.language.add
        nkisim.uninstall()
        assert sys.modules.get("nki") is original
        assert "nki.language" not in sys.modules
    """
    run(script, tmp_path)


def test_finding_out_that_it_is_not_empty_runs_nothing_of_it(tmp_path):
    for name in ("nki", "nki/language"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise SystemExit('this ran')\n")
    script = """
        import nkisim
        assert nkisim.install(replace_empty=True) is False
    """
    run(script, tmp_path)
