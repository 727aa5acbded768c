"""Install the built wheels as another repository would, and run what their READMEs promise.

    python3.11 build-support/try_wheels.py

Needs the wheels in dist/ (`./pants package ::`). Each environment is made anew in a temporary
folder, with third-party packages at the locked versions. nkisim, wantrn-kernels and wantrn-parallel
are each installed alone; then wantrn-model with the other wheels at hand, and wantrn-serving on top
of it, whose videos are by the checkpoint of wantrn-tiny. A README's promise is its first Python
block, which must run as it stands. The program that Pants packages is tried, too: modules that are
started by name, and files, are easily left out of it.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import urllib.request
import venv
from pathlib import Path

import pip_config

ROOT = Path(__file__).resolve().parent.parent


# a kernel as a user would write it, for the command
KERNEL = """
import nki
import nki.language as nl


@nki.jit
def softmax(x):
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    nl.store(out, nl.softmax(nl.load(x), axis=-1))
    return out
"""


def wheel(name: str) -> Path:
    found = list((ROOT / "dist").glob(f"{name}-*.whl"))
    if len(found) != 1:
        raise SystemExit(f"dist/ must hold one wheel of {name}; it holds {found}")
    return found[0]


def first_python_block(readme: Path) -> str:
    match = re.search(r"^```python\n(.*?)^```$", readme.read_text(), re.MULTILINE | re.DOTALL)
    if match is None:
        raise SystemExit(f"{readme.relative_to(ROOT)} has no Python block")
    return match.group(1)


def locked_versions() -> str:
    """The default lock without its hashes, as pip constraints."""
    lock = (ROOT / "3rdparty" / "python" / "default.lock.txt").read_text()
    return "\n".join(re.findall(r"^[a-z0-9-]+==[^\\\n]+", lock, re.MULTILINE)) + "\n"


class Environment:
    """A fresh virtual environment in ``folder``."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        venv.create(folder, with_pip=True)

    def run(self, program: str, *arguments: str) -> None:
        """Run one of the environment's programs; its failure ends this program."""
        command = [str(self.folder / "bin" / program), *arguments]
        if subprocess.run(command, cwd=self.folder).returncode:
            raise SystemExit(f"failed: {' '.join(command)}")

    def install(self, *arguments: str) -> None:
        constraints = self.folder / "constraints.txt"
        constraints.write_text(locked_versions())
        places = []
        if not pip_config.names_other_places(pip_config.pip_settings()):
            for index in pip_config.committed_indexes():
                places += ["--extra-index-url", index]
        options = ["-qq", "--no-compile", "--constraint", str(constraints), *places]
        self.run("python", "-m", "pip", "install", *options, *arguments)

    def run_readme(self, package: str) -> None:
        self.run("python", "-c", first_python_block(ROOT / "packages" / package / "README.md"))


def try_server(environment: Environment, program: Path) -> None:
    """A video by ``wantrn client`` from ``serve`` of ``program``, whose page is in it too."""
    command = [str(program), "serve", "--port", "0", "--store", f"store of {program.name}"]
    server = subprocess.Popen(command, cwd=environment.folder, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        address = server.stdout.readline().strip()
        with urllib.request.urlopen(address, timeout=60) as page:
            if b"<html" not in page.read():
                raise SystemExit("the server has no page")
        name = f"served by {program.name}.mp4"
        options = ["--steps", "2", "--output", name]
        prompt = "a red ball rolls to the right"
        environment.run("wantrn", "client", "create", prompt, "--server", address, *options)
        if (environment.folder / name).read_bytes()[4:8] != b"ftyp":
            raise SystemExit("the server made no video")
    finally:
        server.terminate()
        server.wait(60)


def try_nkisim(environment: Environment) -> None:
    """Alone, with what it needs and nothing else; then with its extra."""
    environment.install(str(wheel("nkisim")))
    environment.run_readme("nkisim")
    environment.run("nkisim", "--version")
    (environment.folder / "kernels.py").write_text(KERNEL)
    profile = ["profile", "kernels.py:softmax", "--shapes", "x=128x1024:bfloat16"]
    environment.run("nkisim", *profile)
    picture = environment.folder / "softmax.png"
    if picture.exists():
        raise SystemExit("nkisim drew a picture although nothing asked for matplotlib")
    environment.install(f"{wheel('nkisim')}[plot]")
    environment.run("nkisim", *profile)
    if not picture.read_bytes().startswith(b"\x89PNG"):
        raise SystemExit("nkisim[plot] drew no picture")


def main() -> None:
    with tempfile.TemporaryDirectory() as tmp:
        print("nkisim alone, and its command", flush=True)
        try_nkisim(Environment(Path(tmp) / "nkisim"))
    with tempfile.TemporaryDirectory() as tmp:
        print("wantrn-kernels with nkisim", flush=True)
        environment = Environment(Path(tmp) / "kernels")
        environment.install("--find-links", str(ROOT / "dist"), str(wheel("wantrn_kernels")))
        environment.run_readme("kernels")
    with tempfile.TemporaryDirectory() as tmp:
        print("wantrn-parallel alone, and its command", flush=True)
        environment = Environment(Path(tmp) / "parallel")
        environment.install(str(wheel("wantrn_parallel")))
        environment.run_readme("parallel")
        environment.run("python", "-m", "wantrn.parallel", "layout", "--tp", "2", "--ring", "2")
    with tempfile.TemporaryDirectory() as tmp:
        print("wantrn-model with its first-party wheels", flush=True)
        environment = Environment(Path(tmp) / "model")
        environment.install("--find-links", str(ROOT / "dist"), str(wheel("wantrn_model")))
        environment.run_readme("model")
        print("wantrn-serving and its command", flush=True)
        environment.install("--find-links", str(ROOT / "dist"), str(wheel("wantrn_serving")))
        environment.run("wantrn", "version")
        video = ["--steps", "2", "--output", "ball.mp4"]  # by the model of wantrn-tiny
        environment.run("wantrn", "generate", "a red ball rolls to the right", *video)
        print("its comparison of videos, with the extra for plots", flush=True)
        compare = ["compare", "ball.mp4", "ball.mp4", "--least-psnr", "99"]
        environment.run("wantrn", *compare, "--strip", "strip.png")
        serving = f"{wheel('wantrn_serving')}[plot]"
        environment.install("--find-links", str(ROOT / "dist"), serving)
        environment.run("wantrn", *compare, "--plot", "plot.png")
        print("its server, and its client", flush=True)
        try_server(environment, environment.folder / "bin" / "wantrn")
        print("the server of the program that Pants packages and runs", flush=True)
        try_server(environment, ROOT / "dist" / "packages.serving" / "wantrn.pex" / "__main__.py")
    print(f"the wheels work on Python {sys.version.split()[0]}", flush=True)


if __name__ == "__main__":
    main()
