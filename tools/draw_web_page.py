"""Draw the page of ``wantrn serve``: a real one in a real browser, while it makes a video.

    ./pants run tools/draw_web_page.py -- docs/images/web-page.png

The server has the tiny model of ``wantrn-tiny``, whose world the prompts are of. Needs Chromium, as
``chromium`` on PATH or by the variable WANTRN_CHROMIUM.
"""

from __future__ import annotations

import argparse
import io
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
from PIL import Image
from playwright.sync_api import Page, sync_playwright

from wantrn.serving import cli

SIZE = (1280, 1470)
COLOURS = 256  # of the picture, which keeps its file small
FINISHED = (
    "a large blue ring slides to the left on a black ground",
    "a yellow square falls on a brown ground",
    "a small green ball bounces on a grey ground",
    "a purple triangle grows on a white ground",
)
RUNNING = "a large red ball rolls to the right on a white ground"
WAITING = "a pink ring shrinks on a black ground"
RUNNING_STEPS = 600  # half of them show what it is, and the others take longer than the page
PATIENCE = 180.0  # seconds that anything may take


@contextmanager
def server(folder: Path) -> Iterator[str]:
    """The address of a server that is ready; it works on one video at a time."""
    command = [sys.executable, "-m", cli.__name__, "serve", "--port", "0", "--slots", "1"]
    paths = os.pathsep.join(os.path.abspath(entry) for entry in sys.path if entry)
    process = subprocess.Popen(
        [*command, "--store", str(folder)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": paths},
    )
    try:
        assert process.stdout is not None
        address = process.stdout.readline().strip()
        wait(lambda: httpx.get(f"{address}/health").status_code == 200)
        yield address
    finally:
        process.terminate()
        process.wait(PATIENCE)


def wait(true: Callable[[], bool]) -> None:
    until = time.monotonic() + PATIENCE
    while not true():
        if time.monotonic() > until:
            raise SystemExit("the server is not ready")
        time.sleep(0.1)


def make_videos(address: str) -> str:
    """Four that are finished, one that runs and one that waits; the running one's id."""
    with httpx.Client(base_url=f"{address}/v1", timeout=PATIENCE) as client:

        def ask(prompt: str, steps: int) -> str:
            fields = {"prompt": prompt, "num_inference_steps": steps, "seed": 7}
            reply = client.post("/videos", json=fields).raise_for_status()
            return str(reply.json()["id"])

        made = [ask(prompt, 20) for prompt in FINISHED]
        wait(lambda: client.get(f"/videos/{made[-1]}").json()["status"] == "completed")
        running = ask(RUNNING, RUNNING_STEPS)
        ask(WAITING, 20)
        half = RUNNING_STEPS // 2
        wait(lambda: (client.get(f"/videos/{running}").json()["step"] or 0) >= half)
    return running


def photograph(page: Page, address: str, video: str) -> bytes:
    page.goto(f"{address}/#{video}")
    page.locator("#stage .preview").wait_for()
    page.locator("#stage .left", has_text="left").wait_for()
    page.locator("#history img").last.wait_for()
    return page.screenshot()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("output", type=Path, help="the PNG file to write")
    output: Path = parser.parse_args().output
    chromium = os.environ.get("WANTRN_CHROMIUM") or shutil.which("chromium")
    if chromium is None:
        raise SystemExit("Chromium is needed (Debian: apt-get install chromium)")
    with (
        tempfile.TemporaryDirectory() as folder,
        server(Path(folder)) as address,
        sync_playwright() as playwright,
    ):
        video = make_videos(address)
        browser = playwright.chromium.launch(
            executable_path=chromium, args=["--no-sandbox", "--disable-gpu", "--disable-sync"]
        )
        width, height = SIZE
        page = browser.new_page(viewport={"width": width, "height": height})
        picture = Image.open(io.BytesIO(photograph(page, address, video))).convert("RGB")
        browser.close()
    picture.quantize(COLOURS).save(output, optimize=True)
    print(f"{output}: {output.stat().st_size / 1024:.0f} KiB")


if __name__ == "__main__":
    main()
