"""`import nki` for kernels, where AWS's package is absent."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Mapping, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

from nkisim.kernel import jit
from nkisim.simulation import simulate

# what `nki` has, and the module of ours that has the same names
_MODULES = {
    "language": "nkisim.language",
    "isa": "nkisim.isa",
    "isa.constants": "nkisim.isa.constants",
    "collectives": "nkisim.collectives",
    "typing": "nkisim.typing",
    "dtype": "nkisim.dtype",
}


class Installed(ModuleType):
    """A module that `install` made: the public names of one of ours under a name of NKI's.

    It has no folder, so importing what it does not have fails, instead of loading a module of ours
    for a second time under another name.

    Attributes:
        _replaced: the module that had its name before, if any
    """

    def __init__(self, name: str, contents: Mapping[str, Any]) -> None:
        super().__init__(name)
        self.__spec__ = ModuleSpec(name, None, is_package=True)
        self.__path__: list[str] = []
        self.__dict__.update(contents)
        self.__all__ = list(contents)
        self._replaced = sys.modules.get(name)


def install(replace_empty: bool = False) -> bool:
    """Let `import nki` find the simulator, unless there is another `nki`.

    Puts `nki` with `jit`, `simulate`, `NKIObject`, `NkiTensor`, and the modules `language`, `isa`,
    `isa.constants`, `collectives`, `typing`, `dtype` and `simulator` into `sys.modules`; and, where
    there is no `neuronxcc`, `neuronxcc.nki.typing`, which some kernels still import. Anything
    importable by the name of `nki` counts as another one. Call it before the kernels are imported;
    a second call changes nothing.

    Args:
        replace_empty: also stand in for an `nki` that has no `nki.language`, such as the empty
            package of that name on the public index.

    Returns:
        Whether `import nki` now means the simulator.
    """
    if isinstance(sys.modules.get("nki"), Installed):
        return True
    if _is_present("nki") and not (replace_empty and _is_empty("nki")):
        return False
    contents = {name: _contents(source) for name, source in _MODULES.items()}
    contents["simulator"] = {"simulate_kernel": simulate_kernel}
    language = contents["language"]
    top = {
        "jit": jit,
        "simulate": simulate,
        "NKIObject": language["NKIObject"],
        "NkiTensor": language["NkiTensor"],
    }
    _put("nki", top)
    for name, names in contents.items():
        _put(f"nki.{name}", names)
    if not _is_present("neuronxcc"):
        _put("neuronxcc", {})
        _put("neuronxcc.nki", {})
        _put("neuronxcc.nki.typing", contents["typing"])
    return True


def uninstall() -> None:
    """Undo `install`: the modules go, and what they stood in for comes back.

    Whoever imported them keeps them.
    """
    for name, module in list(sys.modules.items()):
        if isinstance(module, Installed):
            if module._replaced is None:
                del sys.modules[name]
            else:
                sys.modules[name] = module._replaced


def simulate_kernel(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], lnc: int = 1) -> Any:
    """`nki.simulator.simulate_kernel`: run `func[lnc](*args, **kwargs)` in the simulator.

    Args:
        func: a function, or what `nki.jit` makes of one.
        args, kwargs: its arguments; arrays of NumPy or torch for tensors.
        lnc: physical cores, 1 or 2.

    Returns:
        What the kernel returns, with arrays for tensors.
    """
    return simulate(func)[lnc](*args, **kwargs)


def _contents(source: str) -> dict[str, Any]:
    module = importlib.import_module(source)
    return {name: getattr(module, name) for name in module.__all__}


def _put(name: str, contents: Mapping[str, Any]) -> None:
    module = Installed(name, contents)
    sys.modules[name] = module
    parent, _, last = name.rpartition(".")
    if parent:
        setattr(sys.modules[parent], last, module)


def _is_present(name: str) -> bool:
    """Whether a top-level module is imported, or can be."""
    return name in sys.modules or importlib.util.find_spec(name) is not None


def _is_empty(name: str) -> bool:
    """Whether a package has no module `language`; nothing of it is run to find out."""
    if f"{name}.language" in sys.modules:
        return False
    module = sys.modules.get(name)
    if module is None:
        spec = importlib.util.find_spec(name)
        folders = None if spec is None else spec.submodule_search_locations
    else:
        if hasattr(module, "language"):
            return False
        folders = getattr(module, "__path__", None)
    return folders is None or PathFinder.find_spec(f"{name}.language", list(folders)) is None
