"""All that ``wantrn serve`` can be told, in one YAML file. ``docs/deployment.schema.json`` is its
schema, for editors."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass
from pydantic.fields import Field

from wantrn.model.errors import RequestError
from wantrn.serving.jobs.limits import Limits
from wantrn.serving.rank_options import RankOptions
from wantrn.serving.shapes import Shape

# What describes a key in the code describes it in the schema.
_CONFIG = ConfigDict(extra="forbid", use_attribute_docstrings=True)

_PARTS = ("ranks", "limits", "trace")
_SHOWN = 80  # characters of a value that is refused


@dataclass(frozen=True, config=_CONFIG)
class TraceOptions:
    """Where traces of videos are sent, by OTLP over HTTP. Needs ``wantrn-serving[trace]``."""

    endpoint: str = Field(pattern=r"^https?://[^\s/?#@]+(/[^\s?#]*)?$")
    """The collector's address, such as http://localhost:4318; /v1/traces is added to it."""


@dataclass(frozen=True, config=_CONFIG)
class Deployment:
    """A server of ``wantrn serve``. Paths that are not absolute begin at the working directory."""

    model: Path | None = None
    """A checkpoint folder; without it, the tiny one of the wheel ``wantrn-tiny``."""
    name: str | None = None
    """What clients know the model by; without it, the folder's name."""
    store: Path = Path("wantrn-store")
    """The folder of jobs and their videos."""
    host: str = "127.0.0.1"
    """The address to listen at."""
    port: int = Field(default=8000, ge=0, le=65535)
    """0 is one of the system's choice, which is printed."""
    engine: Literal["local", "omni"] = "local"
    """What makes videos: local is the embedded engine, omni is vLLM-Omni's."""
    buckets: tuple[Shape, ...] = ()
    """The only shapes that are made, each of which is warmed up before the server is ready; without
    any, all shapes are made, and the first of each may take longer."""
    loras: Path | None = None
    """A folder of LoRAs that videos may be made with, by name."""
    api_keys_file: Path | None = None
    """A file with one key a line; without it, everybody may ask for videos."""
    slots: int = Field(default=2, ge=1)
    """How many videos are made at once, a step of each in turn."""
    dtype: Literal["float32", "bfloat16"] | None = None
    """Number format of the weights; without it, the checkpoint's."""
    device: Literal["cpu", "neuron"] | None = None
    """Where the transformers compute: neuron is AWS Trainium. The engine local takes cpu if none is
    given; the engine omni takes what the machine has, and none can be given."""
    threads: int | None = Field(default=None, ge=1)
    """CPU threads of each rank; without it, an even share."""
    ranks: RankOptions = Field(default_factory=RankOptions)
    """How many ranks make a video, and how they share the work."""
    limits: Limits = Field(default_factory=Limits)
    """How much is taken and kept."""
    log: Literal["text", "json"] = "text"
    """The form of the log's lines."""
    trace: TraceOptions | None = None
    """Where traces are sent; without it, there are none."""


_ADAPTER = TypeAdapter(Deployment)


def schema() -> dict[str, Any]:
    """The JSON schema of the file."""
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **_ADAPTER.json_schema()}


def schema_text() -> str:
    """``schema()`` as the file that is published."""
    return json.dumps(schema(), indent=2) + "\n"


def read_deployment(file: Path | None, options: dict[str, Any]) -> Deployment:
    """What the file says, with ``options`` over it, by name; ``ranks``, ``limits`` and ``trace``
    are merged. Nothing is converted: a number that is written as text is refused.

    Raises:
        RequestError: a file that cannot be read, an unknown key or a value that is not allowed; it
            names the option, or the file and the key.
    """
    values = {} if file is None else _read(file)
    merged = {**values, **options}
    for name in _PARTS:
        part = values.get(name)
        if name in values and not (options.get(name) and isinstance(part, dict | None)):
            merged[name] = part  # what is no mapping is refused below
        elif options.get(name):
            merged[name] = {**(part or {}), **options[name]}
        else:
            merged.pop(name, None)
    try:
        text = json.dumps(merged, default=_plain)
    except (TypeError, ValueError):  # no other is possible in what was given as an option
        raise RequestError(
            "config", f"{file} has a value that is no text, number, list or mapping of these"
        ) from None
    try:
        return _ADAPTER.validate_json(text, strict=True)
    except ValidationError as error:
        raise _refusal(error, file, options) from None


def _plain(value: object) -> object:
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, Shape):
        return asdict(value)
    raise TypeError(f"{value!r} is of no kind that the file can have")


def _refusal(error: ValidationError, file: Path | None, options: dict[str, Any]) -> RequestError:
    """The first fault, named by the option that has it, or else by the file and the key."""
    first = error.errors(include_url=False, include_context=False)[0]
    path = [str(part) for part in first["loc"]]
    message = first["msg"]
    if first["type"] == "unexpected_keyword_argument":
        message = "is no key that there is"
    elif first["type"] != "missing":
        message = f"got {json.dumps(first['input'])[:_SHOWN]}: {message}"
    given: Any = options
    for part in path:
        given = given.get(part) if isinstance(given, dict) else None
    if given is None:
        return RequestError("config", f"{file}: {'.'.join(path)}: {message}")
    return RequestError("_".join(path) if path[0] == "trace" else path[-1], message)


class _Loader(yaml.SafeLoader):
    """Refuses a key that is given twice, of which the first would be ignored."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise yaml.constructor.ConstructorError(
                    None, None, "a key must be text", key.start_mark
                )
            if key.value in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key.value!r} is given twice", key.start_mark
                )
            seen.add(key.value)
        return super().construct_mapping(node, deep)


def _read(file: Path) -> dict[str, Any]:
    try:
        values = yaml.load(file.read_text(), _Loader)
    except OSError as error:
        raise RequestError("config", f"{file} cannot be read: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise RequestError(
            "config", f"{file} is no YAML: {' '.join(str(error).split())}"
        ) from error
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise RequestError("config", f"{file} must be a mapping of keys to values")
    return values
