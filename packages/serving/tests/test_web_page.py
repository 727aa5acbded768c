"""The page that `wantrn serve` has, in a real browser, over a real server."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from PIL import Image
from playwright.sync_api import Browser, Locator, expect
from safetensors.torch import save_file
from server_process import ServerProcess, create, server_process, wait, wait_status
from web_browser import CHROMIUM, Watched, ask, card, chromium, selected, watch

from wantrn.model.info import ModelKind
from wantrn.model.tiny import tiny_config, write_tiny_checkpoint

KEY = "key-of-a-test"
BAR = "#stage [role=progressbar]"

pytestmark = pytest.mark.skipif(
    CHROMIUM is None,
    reason="there is no Chromium on PATH (Debian: apt-get install chromium), and WANTRN_CHROMIUM "
    "names none",
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("server")
    keys = folder / "keys"
    keys.write_text(KEY)
    loras = folder / "loras"
    loras.mkdir()
    hidden, layer = tiny_config(ModelKind.T2V).hidden_size, "transformer.blocks.0.attn1.to_q"
    save_file(
        {
            f"{layer}.lora_A.weight": torch.ones(2, hidden),
            f"{layer}.lora_B.weight": torch.ones(hidden, 2),
        },
        loras / "style.safetensors",
    )
    model = write_tiny_checkpoint(folder / "model", ModelKind.T2V)
    options = ["--model", str(model), "--threads", "1"]
    options += ["--api-keys-file", str(keys), "--loras", str(loras)]
    with server_process(folder, *options) as started:
        yield started


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with chromium(tmp_path_factory.mktemp("home")) as started:
        yield started


@pytest.fixture
def watched(browser: Browser, server: ServerProcess, client: httpx.Client) -> Iterator[Watched]:
    """The page, with the key that the server wants; it is closed before its videos are deleted."""
    with watch(browser, server.url, KEY) as page:
        expect(page.page.locator("#health-text")).to_have_text("Ready")
        yield page


@pytest.fixture
def client(server: ServerProcess) -> Iterator[httpx.Client]:
    with server.client() as made:
        made.headers["Authorization"] = f"Bearer {KEY}"
        yield made
        for video in made.get("/v1/videos", params={"limit": 100}).json()["data"]:
            made.delete(f"/v1/videos/{video['id']}")


def test_a_video_is_made_watched_and_kept(
    watched: Watched, client: httpx.Client, tmp_path: Path
) -> None:
    page = watched.page
    # 400 steps: seconds, and the page asks every 200 ms. The seed is one that no double has.
    ask(page, "a red ball rolls", steps=400, Seed="9007199254740993")
    expect(page.locator(BAR)).to_be_visible()
    seen: list[int] = []
    while (player := page.locator("#stage video")).count() == 0:
        now = page.evaluate(f"document.querySelector('{BAR}')?.getAttribute('aria-valuenow')")
        if now is not None:
            seen.append(int(now))
        page.wait_for_timeout(50)
        assert len(seen) < 10_000
    assert seen == sorted(seen)
    assert len({percent for percent in seen if 0 < percent < 100}) >= 3

    id = selected(page)
    size = "async v => { while (v.readyState < 2) await new Promise(r => setTimeout(r, 20)); "
    size += "return [v.videoWidth, v.videoHeight, v.error] }"
    assert player.evaluate(size) == [64, 64, None]
    player.evaluate("async v => { v.pause(); v.currentTime = 0; await v.play() }")
    wait(lambda: bool(player.evaluate("v => v.currentTime > 0")), lambda: "it does not play")
    expect(page.locator("#seed-used")).to_have_text("9007199254740993")
    with page.expect_download() as started:
        page.get_by_role("link", name="Download").click()
    assert started.value.suggested_filename == "a-red-ball-rolls-9007199254740993.mp4"
    started.value.save_as(tmp_path / "saved.mp4")
    served = client.get(f"/v1/videos/{id}/content").content
    assert (tmp_path / "saved.mp4").read_bytes() == served

    page.reload()
    expect(page.locator("#stage video")).to_be_visible()
    thumbnail = card(page, id).locator("img")
    expect(thumbnail).to_be_visible()
    assert thumbnail.evaluate("async i => { await i.decode(); return i.naturalWidth }") == 64


def test_a_running_video_shows_its_preview_and_can_be_cancelled(
    watched: Watched, client: httpx.Client
) -> None:
    page = watched.page
    ask(page, "never finished", steps=1000)
    preview = page.locator("#stage img.preview")
    expect(preview).to_be_visible()
    assert preview.evaluate("i => i.naturalWidth") == 8  # the latents' resolution
    expect(page.locator("#stage .at")).to_have_text(re.compile(r"^Step \d+ of 1000$"))
    expect(page.locator("#stage .left")).to_have_text(re.compile(r"left$"))
    page.get_by_role("button", name="Cancel").click()
    expect(page.locator("#stage .big")).to_have_text("Cancelled")
    expect(card(page, selected(page))).to_contain_text("Cancelled")
    assert client.get(f"/v1/videos/{selected(page)}").json()["error"]["code"] == "cancelled"


def test_the_queue_tells_what_is_ahead(watched: Watched, client: httpx.Client) -> None:
    page = watched.page
    running = [create(client, 1000, prompt=f"running {number}") for number in range(2)]
    for id in running:
        wait_status(client, id, "in_progress")
    ahead = create(client, prompt="ahead")
    ask(page, "behind")
    expect(page.locator("#stage .at")).to_have_text("1 ahead of it in the queue")
    rows = page.locator("#queue .text")
    expect(rows).to_have_text(["running 0", "running 1", "ahead", "behind"])
    client.delete(f"/v1/videos/{ahead}")
    expect(page.locator("#stage .at")).to_have_text("Next in line")
    client.delete(f"/v1/videos/{running[0]}")
    expect(page.locator("#stage video")).to_be_visible()
    expect(page.locator("#queue .text")).to_have_text(["running 1"])
    if watched.errors:  # it asked for one that was just deleted
        watched.expected("status of 404")


def test_a_deleted_video_is_gone(watched: Watched, client: httpx.Client) -> None:
    page = watched.page
    id = create(client)
    wait_status(client, id, "completed")
    page.reload()
    card(page, id).click()
    page.get_by_role("button", name="Delete").click()
    page.get_by_role("button", name="Keep it").click()
    expect(page.get_by_role("button", name="Delete")).to_be_focused()
    assert client.get(f"/v1/videos/{id}").status_code == 200
    page.get_by_role("button", name="Delete").click()
    page.locator("#delete-yes").click()
    expect(card(page, id)).to_have_count(0)
    expect(page.locator("#stage-title")).to_have_text("Nothing on screen yet")
    assert client.get(f"/v1/videos/{id}").status_code == 404
    page.goto(f"{page.url}#{id}")
    expect(page.locator("#stage-title")).to_have_text("There is no such video")
    watched.expected("status of 404")


@pytest.mark.parametrize(
    ("label", "value", "message"),
    [
        ("Size", "65x64", "the nearest are 64x64 and 80x64"),
        ("Length", "6", "the nearest are 5 and 9"),
        ("Steps", "0", "is not in 1..1000"),
        ("Guidance", "much", "valid number"),
        ("Seed", "-1", "is not in 0.."),
    ],
)
def test_an_error_is_shown_at_its_field(
    watched: Watched, client: httpx.Client, label: str, value: str, message: str
) -> None:
    page = watched.page
    page.get_by_label("Use the nearest size and length that can be made").uncheck()
    ask(page, "a red ball", 4, **{label: value})
    field = page.get_by_label(label, exact=True)
    expect(field).to_have_attribute("aria-invalid", "true")
    expect(field).to_be_focused()
    expect(field).to_have_accessible_description(re.compile(re.escape(message)))
    expect(page.locator(".error:visible")).to_have_count(1)
    watched.expected("status of 400")
    assert client.get("/v1/videos").json()["data"] == []
    field.fill("")
    expect(page.locator(".error:visible")).to_have_count(0)


def test_the_nearest_is_made_and_told(watched: Watched, client: httpx.Client) -> None:
    page = watched.page
    ask(page, "a red ball", Size="70x60", Length="6")
    about = page.locator("#stage .settings")
    expect(about).to_contain_text("64x64 asked for 70x60")
    expect(about).to_contain_text("5 frames at 16 fps asked for 6")


def test_a_length_may_be_in_seconds(watched: Watched, client: httpx.Client) -> None:
    page = watched.page
    page.get_by_label("Unit of the length").select_option("seconds")
    ask(page, "a red ball", Length="0.5")
    expect(page.locator("#stage .settings")).to_contain_text("0.5 s · 9 frames at 16 fps")


def test_a_first_frame_is_sent(watched: Watched, client: httpx.Client, tmp_path: Path) -> None:
    """The server's model takes none, and says so at the field, of a picture that it could read."""
    page = watched.page
    model = client.get("/v1/models").json()
    model["data"][0]["kind"] = "ti2v"
    page.route("**/v1/models", lambda route: route.fulfill(json=model))
    page.reload()
    picture = page.get_by_label("First frame", exact=True)
    Image.new("RGB", (20, 10), "red").save(tmp_path / "red.png")
    (tmp_path / "none.png").write_text("no picture")
    for name, reason in (("none.png", "Is not a picture"), ("red.png", "takes no image")):
        picture.set_input_files(tmp_path / name)
        ask(page, "a red ball", steps=1)
        expect(picture).to_have_accessible_description(re.compile(reason))
        expect(picture).to_be_focused()
    watched.expected("status of 400")
    assert page.get_by_alt_text("The chosen first frame").evaluate("i => i.naturalWidth") == 20
    page.get_by_role("button", name="Remove").click()
    ask(page, "a red ball", steps=1)
    expect(page.locator("#stage video")).to_be_visible()


def test_a_prompt_is_never_html(watched: Watched, client: httpx.Client) -> None:
    page = watched.page
    prompt = "<img src=x onerror=\"document.title='taken'\"><b>bold</b></p><script>0</script>"
    ask(page, prompt, 4, **{"Negative prompt": prompt})
    expect(page.locator("#stage video")).to_be_visible()
    expect(page.locator("#stage .prompt")).to_have_text([prompt, prompt])
    expect(card(page, selected(page)).locator(".text")).to_have_text(prompt)
    assert page.locator("main b, main script, main img[src=x]").count() == 0
    page.get_by_role("button", name="Delete").click()
    assert page.title() == "wantrn"


def test_settings_can_be_used_again(watched: Watched, client: httpx.Client) -> None:
    page = watched.page
    values: dict[str, Any] = {"seed": 2**53 + 1, "guidance_scale": 2.5, "flow_shift": 4.5}
    values |= {"scheduler": "euler", "step_cache": 0.3}
    values |= {"lora": [{"name": "style", "scale": 0.5, "scale_2": 0.25}]}
    first = create(client, 3, prompt="one\ntwo", negative_prompt="three", **values)
    made = wait_status(client, first, "completed")
    page.goto(f"{page.url}#{first}")
    page.get_by_role("button", name="Use these settings again").click()
    expect(page.get_by_label("Prompt", exact=True)).to_be_focused()
    page.get_by_role("button", name="Make video").click()
    expect(page).not_to_have_url(re.compile(first))
    again = wait_status(client, selected(page), "completed")
    own = {"id", "created_at", "completed_at", "expires_at", "stage_seconds"}
    assert {name: again[name] for name in again.keys() - own} == {
        name: made[name] for name in made.keys() - own
    }


def test_loras_are_chosen_by_name(watched: Watched, client: httpx.Client) -> None:
    page = watched.page
    page.get_by_text("More settings").click()
    page.get_by_label("Strength of style").fill("much")
    expect(page.get_by_label("style", exact=True)).to_be_checked()
    ask(page, "a red ball")
    expect(page.get_by_role("group", name="LoRAs").locator(".error")).to_contain_text("number")
    watched.expected("status of 400")
    page.get_by_label("Strength of style").fill("0.5")
    page.get_by_label("Strength at low noise of style").fill("0.75")
    ask(page, "a red ball")
    expect(page.locator("#stage .settings")).to_contain_text("style \u00d7 0.5 and 0.75")
    made = client.get(f"/v1/videos/{selected(page)}").json()
    assert made["lora"] == [{"name": "style", "scale": 0.5, "scale_2": 0.75}]


def test_older_videos_are_shown_when_asked_for(watched: Watched, client: httpx.Client) -> None:
    page = watched.page
    blocking = [create(client, 1000) for _ in range(2)]
    for number in range(30):
        client.post(f"/v1/videos/{create(client, prompt=f'number {number}')}/cancel")
    for id in blocking:
        client.delete(f"/v1/videos/{id}")
    page.reload()
    texts = page.locator("#history .text")
    newest_first = [f"number {number}" for number in reversed(range(30))]
    expect(texts).to_have_text(newest_first[:24])
    page.get_by_role("button", name="Show older videos").click()
    expect(texts).to_have_text(newest_first)
    expect(page.get_by_role("button", name="Show older videos")).to_be_hidden()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_narrow_screen_needs_no_sideways_scrolling(
    watched: Watched, client: httpx.Client, scheme: str
) -> None:
    page = watched.page
    page.emulate_media(color_scheme="dark" if scheme == "dark" else "light")
    page.set_viewport_size({"width": 360, "height": 740})
    overflow = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
    assert page.evaluate(overflow) == 0
    ask(page, "w" * 300, Seed="9" * 18)
    assert page.evaluate(overflow) == 0
    expect(page.locator("#stage video")).to_be_in_viewport()
    assert page.evaluate(overflow) == 0


def test_all_of_it_works_by_keyboard(watched: Watched, client: httpx.Client) -> None:
    page = watched.page

    def tab_to(target: Locator, key: str = "Tab") -> None:
        for _ in range(60):
            if target.evaluate("node => node === document.activeElement"):
                return
            page.keyboard.press(key)
        raise AssertionError(f"{target} cannot be reached")

    page.keyboard.press("Tab")
    page.keyboard.press("Enter")  # skips to the form
    expect(page.get_by_label("Prompt", exact=True)).to_be_focused()
    page.keyboard.type("by keyboard")
    tab_to(page.get_by_label("Size", exact=True))
    page.keyboard.type("64x64")
    tab_to(page.get_by_label("Length", exact=True))
    page.keyboard.type("5")
    tab_to(page.get_by_text("More settings"))
    page.keyboard.press("Enter")
    tab_to(page.get_by_label("Steps"))
    page.keyboard.type("3")
    tab_to(page.get_by_label("Prompt", exact=True), "Shift+Tab")
    page.keyboard.press("Control+Enter")
    expect(page.locator("#stage video")).to_be_visible()
    id = selected(page)
    tab_to(card(page, id).locator("a"))
    tab_to(page.get_by_role("button", name="Delete"), "Shift+Tab")
    page.keyboard.press("Enter")
    expect(page.locator("#delete-no")).to_be_focused()
    page.keyboard.press("Escape")
    expect(page.get_by_role("button", name="Delete")).to_be_focused()
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    expect(card(page, id)).to_have_count(0)
    expect(page.get_by_label("Prompt", exact=True)).to_be_focused()


def test_a_server_that_is_away_is_told_and_waited_for(
    watched: Watched, client: httpx.Client
) -> None:
    page, context = watched.page, watched.page.context
    context.set_offline(True)
    ask(page, "not sent")
    expect(page.locator("#form-error")).to_contain_text("The server does not answer")
    expect(page.locator("#banner")).to_contain_text("The server does not answer")
    context.set_offline(False)
    expect(page.locator("#banner")).to_be_hidden()
    watched.expected("ERR_INTERNET_DISCONNECTED")
    page.get_by_role("button", name="Make video").click()
    expect(page.locator("#stage video")).to_be_visible()


def test_an_engine_that_restarts_is_told(watched: Watched, client: httpx.Client) -> None:
    page = watched.page
    state = {"status": 503, "json": {"status": "restarting"}}
    page.route("**/health", lambda route: route.fulfill(**state))
    page.reload()
    expect(page.locator("#banner")).to_contain_text("The engine is starting again")
    page.unroute("**/health")
    expect(page.locator("#banner")).to_be_hidden()
    watched.expected("status of 503")


def test_a_hidden_tab_asks_rarely(watched: Watched, client: httpx.Client) -> None:
    page = watched.page
    hide = "Object.defineProperty(document, 'hidden', {get: () => true, configurable: true})"
    page.evaluate(hide)
    create(client, 1000)
    page.wait_for_timeout(500)  # what was under way
    before = len(watched.requests)
    page.wait_for_timeout(3000)
    assert len(watched.requests) - before <= 3
    page.evaluate("delete document.hidden; document.dispatchEvent(new Event('visibilitychange'))")
    expect(page.locator("#queue li")).to_have_count(1)


def test_a_server_with_keys_asks_for_one(browser: Browser, server: ServerProcess) -> None:
    with watch(browser, server.url) as watched:
        page = watched.page
        dialog = page.get_by_role("dialog", name="This server needs a key")
        expect(dialog.get_by_label("API key")).to_be_focused()
        expect(dialog.locator(".error")).to_be_hidden()
        page.keyboard.type("another key")
        page.keyboard.press("Enter")
        expect(dialog.locator(".error")).to_be_visible()
        dialog.get_by_label("API key").fill("another-key")
        page.keyboard.press("Enter")
        expect(dialog.get_by_label("API key")).to_have_value("")
        expect(dialog.locator(".error")).to_be_visible()
        dialog.get_by_label("API key").fill(KEY)
        dialog.get_by_role("button", name="Continue").click()
        expect(dialog).to_be_hidden()
        expect(page.locator("#health-text")).to_have_text("Ready")
        page.reload()
        expect(page.locator("#health-text")).to_have_text("Ready")
        watched.expected("status of 401")
