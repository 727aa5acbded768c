"""The page that `wantrn serve` has, in a browser that notes what it does wrong."""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from playwright.sync_api import (
    Browser,
    BrowserContext,
    ConsoleMessage,
    Locator,
    Page,
    expect,
    sync_playwright,
)

CHROMIUM = os.environ.get("WANTRN_CHROMIUM") or shutil.which("chromium")
ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
PATIENCE_MS = 30_000


@contextmanager
def chromium(home: Path) -> Iterator[Browser]:
    """The system's Chromium, which keeps what it keeps in ``home``."""
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(
            executable_path=CHROMIUM, args=ARGUMENTS, env={**os.environ, "HOME": str(home)}
        )
        try:
            yield started
        finally:
            started.close()


class Watched:
    """A page, and what it did that a page should not."""

    def __init__(self, context: BrowserContext) -> None:
        self.page: Page = context.new_page()
        self.errors: list[str] = []
        self.requests: list[str] = []
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("console", self._said)
        self.page.on("request", lambda request: self.requests.append(request.url))

    def _said(self, message: ConsoleMessage) -> None:
        # a video may end between two requests, and its preview with it
        late = "status of 404" in message.text and message.location["url"].endswith("/preview")
        if message.type in ("error", "warning") and not late:
            self.errors.append(f"{message.text} {message.location}")

    def expected(self, text: str) -> None:
        """Forget errors that the browser logs by itself, of replies and requests like ``text``."""
        until = time.monotonic() + PATIENCE_MS / 1000
        while not self.errors:  # they come a little after what they are about
            assert time.monotonic() < until, f"no error of {text!r}"
            self.page.wait_for_timeout(20)
        assert all(text in error for error in self.errors), self.errors
        self.errors.clear()


@contextmanager
def watch(browser: Browser, url: str, key: str | None = None) -> Iterator[Watched]:
    """A page that must do nothing wrong."""
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    context.set_default_timeout(PATIENCE_MS)
    expect.set_options(timeout=PATIENCE_MS)
    if key is not None:
        context.add_init_script(f"sessionStorage.setItem('wantrn-api-key', '{key}')")
    watched = Watched(context)
    watched.page.goto(url)
    try:
        yield watched
    finally:
        context.close()
    hosts = {urlsplit(url).netloc for url in watched.requests if not url.startswith("blob:")}
    assert hosts == {urlsplit(url).netloc}
    assert watched.errors == []


def ask(page: Page, prompt: str, steps: int = 4, **values: str) -> None:
    """Fill the form for a small video, and send it."""
    if page.locator("#more").get_attribute("open") is None:
        page.get_by_text("More settings").click()
    page.get_by_label("Prompt", exact=True).fill(prompt)
    fields = {"Size": "64x64", "Length": "5", "Steps": str(steps), **values}
    for label, value in fields.items():
        page.get_by_label(label, exact=True).fill(value)
    page.get_by_role("button", name="Make video").click()


def selected(page: Page) -> str:
    """The id of the video that is shown."""
    found = re.search(r"#(video_[0-9a-f]+)$", page.url)
    assert found, page.url
    return found[1]


def card(page: Page, id: str) -> Locator:
    return page.locator(f"#history [data-id={id}]")
