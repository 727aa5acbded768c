"""The videos API as a client meets it: requests, politeness, and errors of one line."""

from __future__ import annotations

import json
import re
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

_TIMEOUT = httpx.Timeout(60.0, connect=10.0)
_POLL_SECONDS = (0.1, 5.0)  # between which a server may say when to ask again
_RETRY_SECONDS = 5.0  # where a busy server does not say when
_BUSY = (429, 503)
_SHOWN = 200  # characters of a reply that is not the interface's

# What a client makes use of; another's server that has OpenAI's interface may have less.
_NEEDED = frozenset(
    [
        "id",
        "status",
        "progress",
        "step",
        "num_inference_steps",
        "queue_position",
        "error",
        "size",
        "num_frames",
        "created_at",
        "prompt",
    ]
)

Video = Mapping[str, Any]
Say = Callable[[str], None]


class ClientError(Exception):
    """A request that came to nothing: one line for people.

    ``param`` is the field of the interface at fault, with which the text begins, or None.
    """

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(plain(message))
        self.param = param


class VideosClient:
    """A server's videos.

    Args:
        url: the server's, without ``/v1``.
        key: is sent with every request, if there is one.
        patience: seconds that a busy server (429, 503) is asked again, all in all.
        say: hears when it is.

    Raises:
        ClientError: ``url`` or ``key`` cannot be; and every method, where the request fails.
    """

    def __init__(self, url: str, key: str | None, patience: float, say: Say) -> None:
        headers = {}
        if key is not None:
            if not (key.isascii() and key.isprintable() and key == key.strip() != ""):
                raise ClientError("the key must be printable ASCII without spaces around it")
            headers["Authorization"] = f"Bearer {key}"
        self._url = url.rstrip("/")
        self._patience = patience
        self._say = say
        try:
            parsed = httpx.URL(self._url)
        except httpx.InvalidURL as error:
            raise ClientError(f"server: {url!r} is no URL: {error}", "server") from error
        if parsed.scheme not in ("http", "https") or not parsed.host:
            raise ClientError(
                f"server: got {url!r}; it must be such as http://127.0.0.1:8000", "server"
            )
        self._http = httpx.Client(base_url=parsed, headers=headers, timeout=_TIMEOUT)

    def close(self) -> None:
        self._http.close()

    def create(
        self,
        fields: Mapping[str, Any],
        image: bytes | None,
        made: Callable[[str], None],
    ) -> None:
        """Ask for a video. ``made`` is called with its id before any signal is heard, so that
        whoever is interrupted knows what there is to cancel."""

        def send() -> httpx.Response:
            with _signals_held():
                if image is None:
                    reply = self._http.post("/v1/videos", json=dict(fields))
                else:
                    reply = self._http.post(
                        "/v1/videos",
                        data={name: _form_value(value) for name, value in fields.items()},
                        files={"input_reference": ("image", image)},
                    )
                if reply.is_success:
                    made(self._video(reply)["id"])
            return reply

        self._send(send)

    def get(self, id: str) -> tuple[Video, float]:
        """A video, and in how many seconds it is worth asking again."""
        reply = self._request("GET", _path(id))
        least, most = _POLL_SECONDS
        told = reply.headers.get("openai-poll-after-ms", "")
        seconds = int(told) / 1000 if told.isdecimal() else 1.0
        return self._video(reply), min(max(seconds, least), most)

    def page(self, limit: int, after: str | None) -> tuple[list[Video], bool]:
        """Up to ``limit`` videos, the newest first, older than ``after``; and whether there are
        more."""
        query: dict[str, str | int] = {"limit": limit}
        if after is not None:
            query["after"] = after
        reply = self._request("GET", "/v1/videos", params=query)
        body = self._json(reply)
        videos = body.get("data")
        if not isinstance(videos, list) or not all(map(_is_video, videos)):
            raise self._foreign(reply)
        return videos, bool(body.get("has_more"))

    def cancel(self, id: str) -> Video:
        return self._video(self._request("POST", f"{_path(id)}/cancel"))

    def delete(self, id: str) -> None:
        self._request("DELETE", _path(id))

    def download(self, id: str, variant: str, file: Path) -> None:
        """Write a video, or a picture of it, to ``file``."""
        request = self._http.build_request(
            "GET", f"{_path(id)}/content", params={"variant": variant}
        )
        reply = self._send(lambda: self._http.send(request, stream=True))
        try:
            with file.open("wb") as output:
                for part in reply.iter_bytes():
                    output.write(part)
        except httpx.HTTPError as error:
            raise self._unreached(error) from error
        finally:
            reply.close()

    def _request(self, method: str, path: str, **options: Any) -> httpx.Response:
        return self._send(lambda: self._http.request(method, path, **options))

    def _send(self, send: Callable[[], httpx.Response]) -> httpx.Response:
        """The reply to what ``send`` sends, again and again while the server is busy."""
        waited = 0.0
        while True:
            try:
                reply = send()
                if reply.is_success:
                    return reply
                reply.read()
            except httpx.HTTPError as error:
                raise self._unreached(error) from error
            refused = _refusal(reply)
            if reply.status_code not in _BUSY:
                raise refused
            pause = _retry_after(reply)
            if waited + pause > self._patience:
                raise ClientError(
                    f"{refused}; it says to try again in {pause:g} s, and --patience is "
                    f"{self._patience:g} s"
                )
            self._say(f"{refused}; trying again in {pause:g} s")
            time.sleep(pause)
            waited += pause

    def _unreached(self, error: httpx.HTTPError) -> ClientError:
        if isinstance(error, httpx.TimeoutException):
            return ClientError(f"{self._url} does not answer")
        return ClientError(f"{self._url} cannot be reached: {error or type(error).__name__}")

    def _video(self, reply: httpx.Response) -> Video:
        body = self._json(reply)
        if not _is_video(body):
            raise self._foreign(reply)
        return body

    def _json(self, reply: httpx.Response) -> dict[str, Any]:
        try:
            body = reply.json()
        except ValueError:
            raise self._foreign(reply) from None
        if not isinstance(body, dict):
            raise self._foreign(reply)
        return body

    def _foreign(self, reply: httpx.Response) -> ClientError:
        return ClientError(f"{self._url} is no server of wantrn: it replied {_start(reply)}")


def plain(text: str) -> str:
    """``text`` in one line, without what would steer a terminal: others may have written it."""
    joined = " ".join(text.split())
    return "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in joined)


def _is_video(body: Any) -> bool:
    return isinstance(body, dict) and body.keys() >= _NEEDED and isinstance(body["id"], str)


def _form_value(value: Any) -> str:
    return json.dumps(value) if isinstance(value, list) else str(value)


def check_id(id: str) -> None:
    """Raise ``ClientError`` for what cannot be an id, so that what can is a plain file name."""
    if re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]*", id) is None:
        raise ClientError(f"{id!r} is no id of a video")


def _path(id: str) -> str:
    check_id(id)
    return f"/v1/videos/{id}"


def _refusal(reply: httpx.Response) -> ClientError:
    """What the server says is wrong."""
    try:
        error = reply.json()["error"]
        message, param = str(error["message"]), error.get("param")
    except (ValueError, KeyError, TypeError, AttributeError):
        return ClientError(f"the server replied {reply.status_code} {_start(reply)}")
    if reply.status_code == 401:
        message += " (from WANTRN_API_KEY)"
    return ClientError(message, param if isinstance(param, str) else None)


def _start(reply: httpx.Response) -> str:
    text = plain(reply.text)
    return repr(text if len(text) <= _SHOWN else text[:_SHOWN] + "...")


def _retry_after(reply: httpx.Response) -> float:
    told = reply.headers.get("retry-after", "")
    return max(1.0, float(told)) if told.isdecimal() else _RETRY_SECONDS


@contextmanager
def _signals_held() -> Iterator[None]:
    """SIGINT and SIGTERM wait until the end of the block."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
