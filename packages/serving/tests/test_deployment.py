"""The file of a deployment: what its schema says is what is read, and all else is named."""

from __future__ import annotations

import json
import re
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import jsonschema_rs  # pants: no-infer-dep (schemathesis needs it)
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from wantrn.model.errors import RequestError
from wantrn.serving import cli
from wantrn.serving.deployment import Deployment, read_deployment
from wantrn.serving.jobs.limits import Limits
from wantrn.serving.rank_options import RankOptions

ROOT = Path(__file__).resolve().parents[3]
SCHEMA = json.loads((ROOT / "docs" / "deployment.schema.json").read_text())
EXAMPLE = ROOT / "docs" / "deployment.example.yaml"
PAGES = [ROOT / "packages" / "serving" / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def documents() -> list[str]:
    """The example, and all that pages show as YAML."""
    shown = [
        block
        for page in PAGES
        for block in re.findall(r"^```yaml\n(.*?)^```$", page.read_text(), re.M | re.S)
    ]
    return [EXAMPLE.read_text(), *shown]


def plain(made: Deployment) -> dict[str, Any]:
    """What was read, as YAML would have it."""
    values: dict[str, Any] = json.loads(json.dumps(asdict(made), default=str))
    return values


def differs(written: Any, made: Any) -> str:
    """Where what was written is not what was made of it, which has defaults beside; or nothing."""
    if isinstance(written, dict) and isinstance(made, dict):
        return "".join(differs(value, made[name]) for name, value in written.items())
    if isinstance(written, list) and isinstance(made, list) and len(written) == len(made):
        return "".join(map(differs, written, made))
    same = written == made or (isinstance(written, str) and str(Path(written)) == made)
    return "" if same else f"{written!r} became {made!r}. "


def read(folder: Path, text: str, **options: Any) -> Deployment:
    file = folder / "deployment.yaml"
    file.write_text(text)
    return read_deployment(file, options)


def refusal(folder: Path, text: str, **options: Any) -> RequestError:
    with pytest.raises(RequestError) as caught:
        read(folder, text, **options)
    return caught.value


def test_the_schema_that_is_published_is_the_one_that_is_printed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main(["serve", "--print-schema"])
    assert caught.value.code == 0
    printed = capsys.readouterr().out
    assert printed == (ROOT / "docs" / "deployment.schema.json").read_text()
    jsonschema_rs.validator_for(SCHEMA)  # it is a schema


def test_the_schema_describes_every_key_of_a_server() -> None:
    for name, described in SCHEMA["properties"].items():
        assert described["description"], name
    assert set(SCHEMA["properties"]) == {field.name for field in fields(Deployment)}


@pytest.mark.parametrize("text", documents())
def test_what_the_documents_show_is_valid_and_is_read(tmp_path: Path, text: str) -> None:
    assert jsonschema_rs.is_valid(SCHEMA, yaml.safe_load(text))
    read(tmp_path, text)


def test_the_example_has_every_key_and_each_is_heeded() -> None:
    written = yaml.safe_load(EXAMPLE.read_text())
    made = read_deployment(EXAMPLE, {})
    assert set(written) == {field.name for field in fields(Deployment)}
    assert all(differs(value, plain(made)[name]) == "" for name, value in written.items())


def test_a_file_with_nothing_in_it_and_no_file_are_the_defaults(tmp_path: Path) -> None:
    assert read(tmp_path, "") == read(tmp_path, "# nothing\n") == read_deployment(None, {})
    assert read_deployment(None, {}) == Deployment()


PLAIN = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-2, 70000),
    st.floats(-5, 5).filter(lambda value: value != int(value)),
    st.sampled_from(["", "8000", "cpu", "neuron", "float32", "json", "ring", "all_gather", "x"]),
    st.sampled_from(["http://a:1", "https://a/b", "ftp://a", "http://", "http://k:s@a", "a b"]),
    st.lists(st.integers(), max_size=1),
)


def mapping(names: list[str]) -> st.SearchStrategy[dict[str, Any]]:
    return st.dictionaries(st.sampled_from([*names, "unknown"]), PLAIN, max_size=3)


@settings(max_examples=500, deadline=None, database=None)
@given(data=st.data())
def test_what_is_read_is_what_the_schema_allows(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """By an independent validator. The parts' own keys are drawn more often than chance would."""
    values = data.draw(mapping(list(SCHEMA["properties"])))
    for name in data.draw(st.sets(st.sampled_from(["limits", "ranks", "trace"]))):
        kind = {"limits": "Limits", "ranks": "RankOptions", "trace": "TraceOptions"}[name]
        values[name] = data.draw(mapping(list(SCHEMA["$defs"][kind]["properties"])))
    valid = jsonschema_rs.is_valid(SCHEMA, values)
    file = tmp_path_factory.getbasetemp() / "drawn.yaml"
    file.write_text(yaml.safe_dump(values))
    if valid:
        made = plain(read_deployment(file, {}))
        for name, value in values.items():
            assert differs(value, made[name]) == ""
        return
    with pytest.raises(RequestError) as caught:
        read_deployment(file, {})
    assert str(file) in str(caught.value)


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("prot: 1", "prot"),
        ("limits: {queue: 1}", "limits.queue"),
        ("ranks: {degree: 1}", "ranks.degree"),
        ("trace: {endpoint: 'http://a', token: x}", "trace.token"),
        ("1: 2", "1"),
        ("on: 2", "true"),
    ],
)
def test_a_key_that_is_unknown_is_refused_by_its_name(tmp_path: Path, text: str, key: str) -> None:
    error = refusal(tmp_path, text)
    assert error.field == "config"
    assert f"deployment.yaml: {key}: is no key that there is" in str(error)


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("port: 1\nhost: a\nport: 2", "port"),
        ("limits:\n  queued: 1\n  queued: 2", "queued"),
        ("port: 1\n'port': 2", "port"),
    ],
)
def test_a_key_that_is_given_twice_is_refused_with_its_line(
    tmp_path: Path, text: str, key: str
) -> None:
    error = str(refusal(tmp_path, text))
    assert "deployment.yaml" in error and f"{key!r} is given twice" in error
    assert f"line {text.count(chr(10)) + 1}" in error and "\n" not in error


@pytest.mark.parametrize(
    ("text", "key", "shown"),
    [
        ("port: '8000'", "port", '"8000"'),
        ("port: 65536", "port", "65536"),
        ("slots: true", "slots", "true"),
        ("slots: 0", "slots", "0"),
        ("device: gpu", "device", '"gpu"'),
        ("model: 8", "model", "8"),
        ("limits: {queued: 1.5}", "limits.queued", "1.5"),
        ("limits: {keep_hours: 0}", "limits.keep_hours", "0"),
        ("limits: {keep_hours: .inf}", "limits.keep_hours", "Infinity"),
        ("limits: [1]", "limits", "[1]"),
        ("ranks:", "ranks", "null"),
        ("ranks: {context: rings}", "ranks.context", '"rings"'),
        ("ranks: {cfg_parallel: 1}", "ranks.cfg_parallel", "1"),
        ("trace: {endpoint: localhost}", "trace.endpoint", '"localhost"'),
    ],
)
def test_a_value_of_the_wrong_kind_is_refused_by_its_key(
    tmp_path: Path, text: str, key: str, shown: str
) -> None:
    error = refusal(tmp_path, text)
    assert error.field == "config"
    assert f"deployment.yaml: {key}: got {shown}: " in str(error)


def test_an_endpoint_that_is_missing_is_named(tmp_path: Path) -> None:
    assert "deployment.yaml: trace.endpoint: " in str(refusal(tmp_path, "trace: {}"))


@pytest.mark.parametrize(
    "content",
    [
        b"- port",
        b"just text",
        b"port: [1",
        b"? [a, b]\n: 1",
        b"? {a: b}\n: 1",
        b"name: &a [*a]",
        b"name: !!binary aGVsbG8=",
        b"name: 2026-01-01",
        b"name: !!python/object/apply:os.getcwd []",
        b"name: \xff\xfe",
        b"name: 'a\x00b'",
    ],
)
def test_what_is_no_such_document_is_refused_in_one_line_with_the_file(
    tmp_path: Path, content: bytes
) -> None:
    file = tmp_path / "deployment.yaml"
    file.write_bytes(content)
    with pytest.raises(RequestError) as caught:
        read_deployment(file, {})
    assert caught.value.field == "config"
    assert str(file) in str(caught.value) and "\n" not in str(caught.value)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="No such file"):
        read_deployment(tmp_path / "none.yaml", {})


def test_what_is_given_stands_over_the_file_a_key_at_a_time(tmp_path: Path) -> None:
    text = "port: 1\nlimits: {queued: 3, keep_hours: 2}\nranks: {tp: 2, ring: 2}\n"
    text += "trace: {endpoint: 'http://file'}"
    limits, trace = {"queued": 5}, {"endpoint": "http://option"}
    made = read(tmp_path, text, port=9, limits=limits, ranks={"tp": 4}, trace=trace, slots=7)
    assert (made.port, made.slots) == (9, 7)
    assert made.limits == Limits(queued=5, keep_hours=2)
    assert made.ranks == RankOptions(tp=4, ring=2)
    assert made.trace is not None and made.trace.endpoint == "http://option"
    untouched = read(tmp_path, text, limits={}, ranks={}, trace={})
    assert untouched.trace is not None and untouched.trace.endpoint == "http://file"


@pytest.mark.parametrize("config", [False, True], ids=["alone", "over a file"])
@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["--slots", "0"], "--slots: got 0: "),
        (["--port", "65536"], "--port: got 65536: "),
        (["--queued", "0"], "--queued: got 0: "),
        (["--keep-hours", "-1"], "--keep-hours: got -1.0: "),
        (["--trace-endpoint", "localhost"], '--trace-endpoint: got "localhost": '),
    ],
)
def test_an_option_that_is_wrong_is_named_as_it_was_typed(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    options: list[str],
    named: str,
    config: bool,
) -> None:
    file = tmp_path / "deployment.yaml"
    file.write_text("slots: 1\nport: 0\nlimits: {queued: 1, keep_hours: 1}")
    given = [*options, "--config", str(file)] if config else options
    assert cli.main(["serve", *given]) == 2
    said = capsys.readouterr()
    assert said.err.startswith(f"wantrn serve: error: {named}") and said.err.count("\n") == 1
    assert said.out == ""


def test_a_fault_of_the_file_is_the_file_s_though_other_options_are_given(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "deployment.yaml"
    file.write_text("limits: {queued: 0}")
    assert cli.main(["serve", "--config", str(file), "--keep-hours", "1"]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"wantrn serve: error: --config: {file}: limits.queued: got 0: ")
