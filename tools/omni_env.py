"""A Python environment with vLLM-Omni for machines without an accelerator.

    python3.11 tools/omni_env.py DIR

Makes DIR, in about two minutes and 4 GB: the official wheels of vLLM and vLLM-Omni, PyTorch's build
for the CPU, and this repository's own wheels from dist/ (`./pants package ::` makes them), whose
entry points tell vLLM-Omni of our platforms and pipelines. The tests of the engine then run with

    WANTRN_OMNI_PYTHON=DIR/bin/python ./pants test packages/serving::

Both official wheels name packages that need CUDA, or serve other models. Those are left out, so
they are installed without their dependencies, and those that remain are installed before. Two
packages that vLLM-Omni imports, but does not use for our models, are made importable beside a CPU
build of PyTorch by the files in tools/omni_shims.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import venv
import zipfile
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.append(str(ROOT / "build-support"))

import pip_config  # noqa: E402

OFFICIAL = ("vllm==0.30.0", "vllm-omni==0.30.0")
# Imported by them, and asking for what is left out.
WITHOUT_DEPENDENCIES = (
    "cache-dit==1.5.0",
    "torchvision==0.28.0",
    "xgrammar>=0.2.1,<1",
    "apache-tvm-ffi",
)
# Needed by our models, and named by neither wheel.
UNDECLARED = ("ftfy",)
OURS = (
    "nkisim",
    "wantrn_kernels",
    "wantrn_parallel",
    "wantrn_model",
    "wantrn_tiny",
    "wantrn_serving",
)

# By the beginning of their names: what needs a GPU or its compilers, PyTorch itself, which comes
# first, and what serves speech and other models.
LEFT_OUT = (
    *(
        "torch",
        "nvidia",
        "cuda",
        "cupy",
        "triton",
        "flashinfer",
        "flash",
        "fa3-fwd",
        "deep",
        "nvtx",
    ),
    *("pynvvideocodec", "instanttensor", "quack", "tilelang", "humming", "tokenspeed"),
    *("fastsafetensors", "numba", "ray", "xgrammar", "apache-tvm", "cache-dit", "kernels"),
    *("openai-whisper", "cosmos-guardrail", "s3tokenizer", "onnxruntime", "x-transformers"),
)


def needed(requirements: Iterable[str]) -> list[str]:
    """Of ``Requires-Dist`` lines, those to install: no extras, nothing in ``LEFT_OUT``."""
    kept = []
    for requirement in requirements:
        specifier, _, marker = requirement.partition(";")
        match = re.match(r"[A-Za-z0-9._-]+", specifier.strip())
        if match is None:
            raise ValueError(f"{requirement!r} is no requirement")
        name = re.sub(r"[-_.]+", "-", match[0]).lower()
        if "extra ==" not in marker and not name.startswith(LEFT_OUT):
            kept.append(requirement)
    return kept


def requirements_of(wheel: Path) -> list[str]:
    """The ``Requires-Dist`` lines of a wheel."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (n for n in archive.namelist() if n.endswith(".dist-info/METADATA"))
        head = archive.read(name).decode().partition("\n\n")[0]
    return re.findall(r"^Requires-Dist: (.+)$", head, re.MULTILINE)


def own_wheels() -> list[Path]:
    """This repository's wheels; ends the program if one is missing."""
    found = []
    for name in OURS:
        wheels = list((ROOT / "dist").glob(f"{name}-*.whl"))
        if len(wheels) != 1:
            raise SystemExit(
                f"dist/ must hold one wheel of {name}, it holds {len(wheels)}: "
                "run ./pants package ::"
            )
        found += wheels
    return found


class Environment:
    """A virtual environment in ``folder``, with packages at this project's pins."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        venv.create(folder, with_pip=True)
        self._places: list[str] = []
        if not pip_config.names_other_places(pip_config.pip_settings()):
            for index in pip_config.committed_indexes():
                self._places += ["--extra-index-url", index]

    def pip(self, command: str, *arguments: str) -> None:
        """Run pip; its failure ends this program."""
        python = self.folder / "bin" / "python"
        line = [str(python), "-m", "pip", command, "-q", *self._places, *arguments]
        if subprocess.run(line, cwd=self.folder).returncode:
            raise SystemExit(f"failed: {' '.join(line)}")

    def install(self, *arguments: str) -> None:
        self.pip("install", "-c", str(ROOT / "3rdparty/python/pins.txt"), *arguments)

    @property
    def packages(self) -> Path:
        version = f"python{sys.version_info.major}.{sys.version_info.minor}"
        return self.folder / "lib" / version / "site-packages"


def build(folder: Path) -> None:
    """Make the environment; ``folder`` is gone again if that fails."""
    ours = [str(wheel) for wheel in own_wheels()]
    environment = Environment(folder)
    say("PyTorch")
    environment.install("torch")
    with tempfile.TemporaryDirectory() as downloads:
        say("vLLM and vLLM-Omni")
        environment.pip("download", "--no-deps", "-d", downloads, *OFFICIAL)
        wheels = sorted(Path(downloads).glob("*.whl"))
        requirements = [line for wheel in wheels for line in needed(requirements_of(wheel))]
        environment.install(*requirements, *UNDECLARED, "pytest")
        environment.install("--no-deps", *WITHOUT_DEPENDENCIES, *map(str, wheels))
    say("our wheels")
    environment.install(*ours)
    shutil.copytree(ROOT / "tools" / "omni_shims", environment.packages, dirs_exist_ok=True)


def say(what: str) -> None:
    print(f"installing {what} ...", file=sys.stderr, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", metavar="DIR", type=Path, help="a folder that is not there yet")
    folder = parser.parse_args().folder.resolve()
    if sys.version_info[:2] != (3, 11):
        raise SystemExit("this project's code runs on Python 3.11: start this with python3.11")
    if folder.exists():
        raise SystemExit(f"{folder} exists; DIR must be new")
    try:
        build(folder)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    print(os.fspath(folder / "bin" / "python"))


if __name__ == "__main__":
    main()
