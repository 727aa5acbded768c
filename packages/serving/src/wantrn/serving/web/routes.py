"""The routes of the page: files of this package, as they are."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources

from fastapi import APIRouter, Request, Response
from starlette.exceptions import HTTPException

_TYPES: Mapping[str, str] = {
    "html": "text/html; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "svg": "image/svg+xml",
}

# Nothing from elsewhere, nothing inline: a prompt that was taken for HTML could still do nothing.
_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "connect-src 'self'",
        "img-src 'self' blob: data:",
        "media-src 'self' blob:",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    )
)

_HEADERS: Mapping[str, str] = {
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",  # kept, but asked for: a new version is seen at once
}


@dataclass(frozen=True)
class _File:
    content: bytes
    media_type: str
    tag: str


def web_router() -> APIRouter:
    """``/`` is the page, ``/web/NAME`` one of its files; there is no other name under it."""
    files = _read_files()
    router = APIRouter(include_in_schema=False)

    def reply(request: Request, name: str) -> Response:
        file = files.get(name)
        if file is None:
            raise HTTPException(404, f"the page has no file {name!r}")
        headers = {**_HEADERS, "ETag": file.tag}
        if request.headers.get("if-none-match") == file.tag:
            return Response(status_code=304, headers=headers)
        return Response(file.content, media_type=file.media_type, headers=headers)

    @router.api_route("/", methods=["GET", "HEAD"])
    async def page(request: Request) -> Response:
        return reply(request, "index.html")

    @router.api_route("/web/{name}", methods=["GET", "HEAD"])
    async def part(request: Request, name: str) -> Response:
        return reply(request, name)

    return router


def _read_files() -> Mapping[str, _File]:
    """All files of the page, by name: they are few and small."""
    found: dict[str, _File] = {}
    for entry in resources.files(__package__).iterdir():
        media_type = _TYPES.get(entry.name.rpartition(".")[2])
        if media_type is not None:
            content = entry.read_bytes()
            tag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
            found[entry.name] = _File(content, media_type, tag)
    return found
