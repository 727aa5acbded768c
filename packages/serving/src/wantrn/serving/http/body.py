"""Reading the body of a request for a video: a form with a file, or JSON."""

from __future__ import annotations

import base64
import binascii
import functools
import json
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
from fastapi import Request
from PIL.Image import Image
from starlette.datastructures import FormData, UploadFile

from wantrn.model.errors import RequestError
from wantrn.model.media import read_image
from wantrn.serving.http.create import CreateVideo, parse_fields
from wantrn.serving.http.errors import ApiError

_FILE = "input_reference"
_MAX_FIELDS = 64
_MAX_FIELD_BYTES = 256 * 1024


@dataclass(frozen=True)
class Picture:
    """An uploaded file that is a picture: its bytes as they came, and what they show."""

    content: bytes
    image: Image
    suffix: str = ".image"  # no more is known of it than that it can be read


async def read_body(request: Request) -> tuple[CreateVideo, Picture | None]:
    """The fields and the picture of a request.

    Raises:
        ApiError: 415 for another kind of body, 400 for one that cannot be read, naming the field.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind == "application/json":
        return await _json(request)
    if kind in ("multipart/form-data", "application/x-www-form-urlencoded"):
        return await _form(request)
    raise ApiError(
        415,
        f"content-type: got {kind or 'none'}; allowed are multipart/form-data, "
        "application/x-www-form-urlencoded and application/json",
    )


async def _json(request: Request) -> tuple[CreateVideo, Picture | None]:
    try:
        values = json.loads(await request.body())
    except (ValueError, RecursionError):
        raise ApiError(400, "the body is no JSON", code="invalid_body") from None
    if not isinstance(values, dict):
        raise ApiError(400, "the body must be a JSON object", code="invalid_body")
    return await _with_reference(parse_fields(values))


async def _form(request: Request) -> tuple[CreateVideo, Picture | None]:
    try:
        form = await request.form(
            max_files=1, max_fields=_MAX_FIELDS, max_part_size=_MAX_FIELD_BYTES
        )
    except UnicodeDecodeError:
        raise ApiError(400, "the body is no form in UTF-8", code="invalid_body") from None
    try:
        values, upload = _split(form)
        content = None if upload is None else await upload.read()
    finally:
        await form.close()
    if content is None:
        return await _with_reference(parse_fields(values))
    if _FILE in values:
        raise _invalid(_FILE, "is given twice")
    fields = parse_fields(values)
    return fields, await _picture(content)


def _split(form: FormData) -> tuple[dict[str, Any], UploadFile | None]:
    """A form's fields, and its file."""
    values: dict[str, Any] = {}
    upload: UploadFile | None = None
    for name, value in form.multi_items():
        if name in values or (name == _FILE and upload is not None):
            raise _invalid(name, "is given twice")
        if not isinstance(value, UploadFile):
            # a browser's form has these where a line was ended, whatever it was ended by
            values[name] = value.replace("\r\n", "\n")
        elif name != _FILE:
            raise _invalid(name, "must not be a file")
        else:
            upload = value
    reference = values.pop(f"{_FILE}[image_url]", None)
    if reference is not None:
        values[_FILE] = {"image_url": reference}
    if "lora" in values:
        values["lora"] = _json_field("lora", values["lora"])
    return values, upload


def _json_field(name: str, text: str) -> object:
    try:
        value: object = json.loads(text)
    except (ValueError, RecursionError):
        raise _invalid(name, "is no JSON") from None
    return value


def _invalid(param: str, reason: str) -> ApiError:
    return ApiError(400, f"{param} {reason}", param=param, code="invalid_value")


async def _with_reference(fields: CreateVideo) -> tuple[CreateVideo, Picture | None]:
    """The fields, and the picture that they hold as a data URL."""
    if fields.input_reference is None:
        return fields, None
    url = fields.input_reference.image_url
    head, comma, data = url.partition(",")
    if not (comma and head.startswith("data:") and head.endswith(";base64")):
        raise _invalid(
            _FILE,
            "image_url must be a data URL (data:image/png;base64,...); nothing is fetched from "
            "elsewhere",
        )
    try:
        content = base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError):
        raise _invalid(_FILE, "image_url is no base64") from None
    return fields, await _picture(content)


@functools.cache
def _readers() -> anyio.CapacityLimiter:
    """How many pictures are decoded at once: each may take some hundred megabytes."""
    return anyio.CapacityLimiter(2)


async def _picture(content: bytes) -> Picture:
    """``content`` as a picture; it is read by its content alone, whatever name it came with."""
    return await anyio.to_thread.run_sync(_read, content, limiter=_readers())


def _read(content: bytes) -> Picture:
    with tempfile.TemporaryDirectory(prefix="wantrn-") as folder:
        file = Path(folder) / "upload"
        file.write_bytes(content)
        try:
            return Picture(content, read_image(file))
        except RequestError as error:
            raise _invalid(_FILE, str(error).removeprefix(f"image: {file} ")) from None
