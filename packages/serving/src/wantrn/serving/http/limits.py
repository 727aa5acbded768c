"""Limits that hold before a request is looked at: how large it is, and who sends it."""

from __future__ import annotations

import hmac
from collections.abc import Sequence

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from wantrn.serving.http.errors import ApiError


class BodyLimit:
    """Refuses bodies of more than ``most`` bytes (413), however they are announced."""

    def __init__(self, app: ASGIApp, most: int) -> None:
        self._app = app
        self._most = most

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        error = ApiError(
            413, f"the body has more than {self._most} bytes, which is the most", code="too_large"
        )
        announced = Headers(scope=scope).get("content-length", "")
        if announced.isdecimal() and int(announced) > self._most:
            await error.reply()(scope, receive, send)
            return
        left = self._most

        async def limited() -> Message:
            nonlocal left
            message = await receive()
            left -= len(message.get("body", b""))
            if left < 0:
                raise error
            return message

        await self._app(scope, limited, send)


class ApiKeys:
    """Lets requests to ``/v1/`` through that bear one of ``keys``; others get 401."""

    def __init__(self, app: ASGIApp, keys: Sequence[str]) -> None:
        self._app = app
        self._keys = [key.encode() for key in keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        guarded = scope["type"] == "http" and scope["path"].startswith("/v1/")
        if not guarded or self._knows(Headers(scope=scope).get("authorization", "")):
            await self._app(scope, receive, send)
            return
        message = "Authorization must be: Bearer KEY, with a key of this server"
        error = ApiError(401, message, code="invalid_api_key")
        await error.reply()(scope, receive, send)

    def _knows(self, header: str) -> bool:
        kind, _, key = header.partition(" ")
        given = key.strip().encode()
        # all are compared, so that the time tells nothing
        known = [hmac.compare_digest(given, one) for one in self._keys]
        return kind.lower() == "bearer" and any(known)
