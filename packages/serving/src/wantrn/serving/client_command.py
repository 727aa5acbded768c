"""``wantrn client``: videos of a server, from the command line."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from tqdm import tqdm

from wantrn.model.errors import RequestError
from wantrn.serving.api_names import API_NAMES
from wantrn.serving.client_api import ClientError, Video, VideosClient, check_id, plain
from wantrn.serving.table import aligned

KEY_VARIABLE = "WANTRN_API_KEY"

SUFFIXES: Mapping[str, str] = {"video": ".mp4", "thumbnail": ".webp", "spritesheet": ".jpg"}
"""By variant: what the server makes."""

# By the interface's name of a field that may be refused: the option that it was given by.
_OPTIONS = {
    API_NAMES.get(option, option): option
    for option in (
        *("model", "negative_prompt", "size", "frames", "seconds", "fps", "steps", "guidance"),
        *("guidance_2", "shift", "scheduler", "seed", "step_cache", "lora", "fit", "image"),
        "server",
    )
}
_FINAL = ("completed", "failed")
_PAGE = 100  # the most that a server tells at once
_SHOWN_PROMPT = 40  # characters of it in the list


@dataclass(frozen=True)
class ClientOptions:
    """What all actions share: the server, and the seconds that it may be busy."""

    server: str
    patience: float


def client(action: str, options: ClientOptions, arguments: Mapping[str, Any]) -> int:
    """Do one of ``ACTIONS``; the exit status. ``arguments`` are that action's own.

    Raises:
        RequestError: what cannot be, by this machine's or the server's word.
    """
    try:
        api = VideosClient(options.server, os.environ.get(KEY_VARIABLE), options.patience, _say)
        try:
            return ACTIONS[action](api, **arguments)
        finally:
            api.close()
    except ClientError as error:
        param = "" if error.param is None else error.param
        field = param.partition(".")[0]  # an element of a list has a longer name
        if field in _OPTIONS:
            message = str(error).removeprefix(param).removeprefix(":").strip()
            raise RequestError(_OPTIONS[field], message) from error
        _say(f"error: {error}")
        return 2


def create(
    api: VideosClient,
    prompt: str,
    output: Path | None,
    wait: bool,
    image: Path | None,
    **options: Any,
) -> int:
    """Have a video made. Interrupted while it waits, it cancels the video."""
    if output is not None:
        if not wait:
            raise RequestError("output", f"got {output} beside --no-wait, which fetches no file")
        _check_file(output, "video")
    fields = {
        API_NAMES.get(name, name): value for name, value in options.items() if value is not None
    }
    content = None if image is None else _read(image)
    made: list[str] = []
    try:
        api.create({"prompt": prompt, **fields}, content, made.append)
        if not wait:
            print(made[0])
            return 0
        _say(f"the video is {made[0]}")
        video = _follow(api, made[0])
    except BaseException as error:
        if made and wait and not isinstance(error, Exception):  # a signal
            _abandon(api, made[0])
        raise
    if video["status"] == "failed":
        _say(f"failed: {_reason(video)}")
        return 1
    return download(api, made[0], output or Path("video.mp4"), "video")


def list_videos(api: VideosClient, limit: int) -> int:
    """A line for each of the newest videos."""
    after: str | None = None
    more = True
    while more and limit > 0:
        videos, more = api.page(min(limit, _PAGE), after)
        for video in videos:
            print(_line(video))
        limit -= len(videos)
        after = videos[-1]["id"] if videos else None
        more = more and bool(videos)
    return 0


def show(api: VideosClient, id: str) -> int:
    """All that is known of a video."""
    video, _ = api.get(id)
    rows: dict[str, str] = {}
    for name, value in video.items():
        if value in (None, "", {}, []) or name == "object":
            continue
        if name.endswith("_at"):
            value = datetime.fromtimestamp(value).astimezone().isoformat(" ", "seconds")
        elif name == "error":
            value = _reason(video)
        elif isinstance(value, dict):
            value = ", ".join(f"{key} {each}" for key, each in value.items())
        elif isinstance(value, list):
            value = json.dumps(value)
        rows[name.replace("_", " ")] = plain(str(value))
    print(aligned(rows))
    return 0


def cancel(api: VideosClient, id: str) -> int:
    """Stop a video; it stays, as failed."""
    ended = api.cancel(id)["status"] in _FINAL
    _say(f"{id} {'is cancelled' if ended else 'stops at its next step'}")
    return 0


def delete(api: VideosClient, id: str) -> int:
    """Remove a video, and stop it if it is being made."""
    api.delete(id)
    _say(f"{id} is deleted")
    return 0


def download(api: VideosClient, id: str, output: Path | None, variant: str) -> int:
    """Fetch a video or a picture of it. Only its path goes to standard output."""
    from wantrn.model.media.atomic import draft_of  # which takes seconds

    check_id(id)
    file = output or Path(f"{id}{SUFFIXES[variant]}")
    _check_file(file, variant)
    try:
        with draft_of(file) as draft:
            api.download(id, variant, draft)
    except OSError as error:
        raise RequestError("output", f"{file} cannot be written: {error.strerror}") from error
    print(file)
    return 0


ACTIONS: Mapping[str, Callable[..., int]] = {
    "create": create,
    "list": list_videos,
    "show": show,
    "cancel": cancel,
    "delete": delete,
    "download": download,
}


def _say(text: str) -> None:
    print(f"wantrn client: {text}", file=sys.stderr)


def _check_file(file: Path, variant: str) -> None:
    suffix = SUFFIXES[variant]
    if file.suffix.lower() != suffix:
        raise RequestError("output", f"got {file}; a server makes {suffix} files of a {variant}")
    if not file.parent.is_dir():
        raise RequestError("output", f"there is no folder {file.parent}")
    if file.is_dir():
        raise RequestError("output", f"{file} is a folder")


def _read(image: Path) -> bytes:
    try:
        return image.read_bytes()
    except OSError as error:
        raise RequestError("image", f"{image} cannot be read: {error.strerror}") from error


def _follow(api: VideosClient, id: str) -> Video:
    """Show a video's progress until it has ended."""
    # a log is not the place for ten lines a second
    interval = 0.1 if sys.stderr.isatty() else 10.0
    video, pause = api.get(id)
    steps = video["num_inference_steps"]
    with tqdm(total=steps, unit="step", file=sys.stderr, mininterval=interval) as bar:
        while True:
            bar.set_description(_stage(video), refresh=False)
            done = steps if video["status"] == "completed" else video["step"] or 0
            bar.update(done - bar.n)
            if video["status"] in _FINAL:
                return video
            time.sleep(pause)
            video, pause = api.get(id)


def _stage(video: Video) -> str:
    if video["status"] == "queued":
        return f"waiting, {video['queue_position'] or 0} ahead"
    if video["step"] == video["num_inference_steps"]:
        return "decoding"
    return "denoising"


def _abandon(api: VideosClient, id: str) -> None:
    """Cancel a video that nobody waits for any more."""
    try:
        api.cancel(id)
    except ClientError as error:
        _say(f"{id} could not be cancelled: {error}")
    else:
        _say(f"{id} is cancelled on the server")


def _reason(video: Video) -> str:
    error = video["error"] or {}
    return plain(f"{error.get('message', 'for no reason that it tells')} ({error.get('code')})")


def _line(video: Video) -> str:
    status = video["status"]
    if status == "in_progress":
        status = f"{video['progress']} %"
    elif status == "failed":
        status = (video["error"] or {}).get("code", status)
    created = datetime.fromtimestamp(video["created_at"]).astimezone().isoformat(" ", "seconds")
    prompt = plain(video["prompt"])
    if len(prompt) > _SHOWN_PROMPT:
        prompt = prompt[: _SHOWN_PROMPT - 3] + "..."
    shape = f"{video['size']}x{video['num_frames']}"
    return f"{video['id']}  {plain(status):<13}  {shape:<12}  {created}  {prompt}"
