"""All that ``wantrn serve`` can be told, in one YAML file. ``docs/deployment.schema.json`` is its
schema, for editors."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass
from pydantic.fields import Field

from wantrn.model.errors import RequestError
from wantrn.serving.jobs.limits import Limits
from wantrn.serving.rank_options import RankOptions

_CONFIG = ConfigDict(extra="forbid")


@dataclass(frozen=True, config=_CONFIG)
class Deployment:
    """A server.

    Attributes:
        model: a checkpoint folder; None is a tiny one with random weights.
        name: what clients know the model by; None is the folder's name.
        store: the folder of jobs and their videos.
        host: the address to listen at.
        port: 0 is one of the system's choice, which is printed.
        api_keys_file: a file with one key a line; without it, everybody may ask for videos.
        slots: how many videos are made at once, a step of each in turn.
        dtype: number format of the weights; None is the checkpoint's.
        device: where the transformers compute.
        threads: CPU threads of each rank; None is an even share.
        ranks: how many ranks make a video, and how they share the work.
        limits: how much is taken and kept.
        log: the form of the log's lines.
    """

    model: Path | None = None
    name: str | None = None
    store: Path = Path("wantrn-store")
    host: str = "127.0.0.1"
    port: int = Field(default=8000, ge=0, le=65535)
    api_keys_file: Path | None = None
    slots: int = Field(default=2, ge=1)
    dtype: Literal["float32", "bfloat16"] | None = None
    device: Literal["cpu", "neuron"] = "cpu"
    threads: int | None = Field(default=None, ge=1)
    ranks: RankOptions = Field(default_factory=RankOptions)
    limits: Limits = Field(default_factory=Limits)
    log: Literal["text", "json"] = "text"


_ADAPTER = TypeAdapter(Deployment)


def schema() -> dict[str, Any]:
    """The JSON schema of the file."""
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **_ADAPTER.json_schema()}


def read_deployment(file: Path | None, options: dict[str, Any]) -> Deployment:
    """What the file says, with ``options`` over it, by name; ``ranks`` and ``limits`` are merged.

    Raises:
        RequestError: a file that cannot be read, an unknown key or a value that is not allowed.
    """
    values = {} if file is None else _read(file)
    merged = {**values, **options}
    for name in ("ranks", "limits"):
        part = values.get(name, {})
        # what is no mapping is refused below
        merged[name] = {**part, **options.get(name, {})} if isinstance(part, dict) else part
    try:
        return _ADAPTER.validate_python(merged)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        path = ".".join(str(part) for part in first["loc"])
        unknown = first["type"] == "unexpected_keyword_argument"
        message = "is no key that there is" if unknown else first["msg"]
        field = path if file is None else "config"
        raise RequestError(
            field, message if file is None else f"{file}: {path}: {message}"
        ) from None


class _Loader(yaml.SafeLoader):
    """Refuses a key that is given twice, of which the first would be ignored."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key, _ in node.value:
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
