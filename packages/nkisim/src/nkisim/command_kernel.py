"""The kernel that the command line names, from its file."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path
from types import FunctionType, ModuleType

import nkisim
from nkisim.errors import NkiError
from nkisim.install import Installed
from nkisim.kernel import Kernel, as_kernel


class CommandError(NkiError):
    """What was asked for on the command line cannot be done; the text is one line."""


def load_kernel(text: str) -> Kernel:
    """The kernel that `FILE:KERNEL` names: what `nki.jit` makes, or a plain function.

    `import nki` in the file finds nkisim. A file in a package is imported as a part of it, so its
    relative imports work; any other can import its neighbours.

    Raises:
        CommandError: there is no such file, no kernel of that name in it, or another `nki`.
        Exception: whatever the file raises while it is imported.
    """
    file, separator, name = text.rpartition(":")
    path = Path(file)
    if not separator or not name or not file:
        raise CommandError(f"{text!r} must be FILE:KERNEL, such as attention.py:attention")
    if path.suffix != ".py" or not path.is_file():
        raise CommandError(f"{file!r} is no Python file that is there; the kernel is FILE:KERNEL")
    installed = nkisim.install(replace_empty=True)
    module = _imported(path.resolve())
    found = vars(module).get(name)
    if isinstance(found, (Kernel, FunctionType)):
        return as_kernel(found)
    other = sys.modules.get("nki")
    if found is not None and not installed and not isinstance(other, Installed):
        raise CommandError(
            f"{name!r} is not nkisim's: another nki is installed, {getattr(other, '__file__', '')}"
            "; use an environment without it"
        )
    kernels = [key for key, value in vars(module).items() if isinstance(value, Kernel)]
    raise CommandError(
        f"{file!r} has no kernel {name!r}; it has {', '.join(kernels) or 'none made by nki.jit'}"
    )


def _imported(path: Path) -> ModuleType:
    parts, folder = [path.stem], path.parent
    while (folder / "__init__.py").is_file():
        parts.insert(0, folder.name)
        folder = folder.parent
    sys.path.insert(0, str(folder))
    if len(parts) > 1:
        return importlib.import_module(".".join(parts))
    # under a name that is in nobody's way: a file may be called copy.py
    name = f"kernels_of_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise CommandError(f"{str(path)!r} cannot be imported")
    module = importlib.util.module_from_spec(spec)
    # where its dataclasses look for it
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module
