"""The files of the page, as they are served; no browser is needed."""

from __future__ import annotations

import re
from collections.abc import Iterator

import httpx
import pytest
from http_server import serving
from scripted_engine import tiny_info

PARTS = {"/web/icon.svg", "/web/style.css", "/web/page.js"}
NAMESPACE = "http://www.w3.org/2000/svg"


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    folder = tmp_path_factory.mktemp("server")
    with serving(folder / "store", tiny_info(folder)) as server, server.client() as made:
        yield made


def test_the_page_may_load_nothing_from_elsewhere(client: httpx.Client) -> None:
    page = client.get("/")
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    rules = page.headers["content-security-policy"].split("; ")
    policy = dict(rule.split(" ", 1) for rule in rules)
    assert policy["default-src"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
    assert set(re.findall(r'(?:src|href)="(/[^"]+)"', page.text)) == PARTS
    assert re.findall(r'<script(?! type="module" src=)| style=| on[a-z]+=', page.text) == []


def test_no_file_names_another_place(client: httpx.Client) -> None:
    modules = set()
    waiting = set(PARTS)
    while waiting:
        part = waiting.pop()
        modules.add(part)
        reply = client.get(part)
        assert reply.status_code == 200, part
        assert not re.search(r"https?:|//[a-z]+\.", reply.text.replace(NAMESPACE, "")), part
        imported = re.findall(r'^import .* from "\./([a-z]+\.js)"', reply.text, re.MULTILINE)
        waiting |= {f"/web/{name}" for name in imported} - modules
    assert len(modules) > len(PARTS)


@pytest.mark.parametrize("path", ["/", *sorted(PARTS)])
def test_an_unchanged_file_is_not_sent_again(client: httpx.Client, path: str) -> None:
    tag = client.get(path).headers["etag"]
    unchanged = client.get(path, headers={"If-None-Match": tag})
    assert (unchanged.status_code, unchanged.content) == (304, b"")
    assert client.get(path, headers={"If-None-Match": '"other"'}).status_code == 200
    assert client.head(path).headers["content-length"] == str(len(client.get(path).content))


@pytest.mark.parametrize("name", ["routes.py", "__init__.py", "..%2Fcli.py", "none.js", ""])
def test_nothing_else_is_there(client: httpx.Client, name: str) -> None:
    assert client.get(f"/web/{name}").status_code == 404


def test_the_model_tells_what_a_form_needs(client: httpx.Client) -> None:
    (model,) = client.get("/v1/models").json()["data"]
    defaults = model["defaults"]
    video = client.post("/v1/videos", json={"prompt": "a red ball"}).json()
    assert defaults["scheduler"] == video["scheduler"] in model["schedulers"]
    assert defaults["flow_shift"] == video["flow_shift"]
    assert video["has_preview"] is False
