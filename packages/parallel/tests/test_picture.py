"""The picture of a layout: what it says is read back and compared with the layout itself."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import numpy as np
import pytest
from grids import all_degrees
from hypothesis import given, settings
from hypothesis import strategies as st

from wantrn.parallel import Degrees
from wantrn.parallel.__main__ import main
from wantrn.parallel.layout import Layout, place_in
from wantrn.parallel.mesh import TRN2, trn2_layout
from wantrn.parallel.picture import Picture
from wantrn.parallel.ranks import Coordinates
from wantrn.parallel.text import brief

AXES = ("tp", "ulysses", "ring", "cfg", "dp")
# where this process finds modules
MODULES = os.pathsep.join(os.path.abspath(path) for path in sys.path if path)


def numbers(text: str) -> list[int]:
    """What a list such as ``0-3,8,16-28/4`` stands for."""
    found: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"(\d+)(?:-(\d+))?(?:/(\d+))?", part)
        assert match, part
        first, last, step = match.groups()
        found += range(int(first), int(last or first) + 1, int(step or 1))
    return found


def table(text: str) -> list[dict[str, str]]:
    """The lines of ranks at the end."""
    names, *lines = text.rstrip("\n").split("\n\n")[-1].split("\n")
    rows = [re.split(r"\s{2,}", line.strip()) for line in [names, *lines]]
    return [dict(zip(rows[0], row, strict=True)) for row in rows[1:]]


def in_grids(text: str) -> list[int]:
    return [int(rank) for rank in re.findall(r"\[(\d+)\]", text)]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    """The command as a program."""
    return subprocess.run(
        [sys.executable, "-m", "wantrn.parallel", *arguments],
        env={**os.environ, "PYTHONPATH": MODULES},
        capture_output=True,
        text=True,
        timeout=60,
    )


@given(st.lists(st.integers(0, 300)))
def test_a_short_list_stands_for_the_numbers(given_numbers: list[int]) -> None:
    text = brief(given_numbers)
    assert (numbers(text) if text else []) == given_numbers


def test_what_goes_up_in_equal_steps_is_shortened() -> None:
    assert brief(range(4)) == "0-3"
    assert brief([0, 4, 8, 12]) == "0-12/4"
    assert brief([0, 32]) == "0,32"
    assert brief([0, 1, 2, 3, 12, 13, 14, 15]) == "0-3,12-15"
    assert brief([12, 8, 28, 24]) == "12,8,28,24"


@settings(deadline=None)
@given(st.sampled_from(list(all_degrees(128))))
def test_every_rank_has_its_place_and_its_groups(degrees: Degrees) -> None:
    layout = Layout.arithmetic(degrees)
    text = str(Picture(degrees, layout))
    assert sorted(in_grids(text)) == list(range(degrees.world))
    rows = table(text)
    assert [int(row["rank"]) for row in rows] == list(range(degrees.world))
    for rank, row in enumerate(rows):
        at = layout.coordinates_of(rank)
        for axis in AXES:
            if len(getattr(layout, axis)[0]) > 1:
                assert int(row[axis]) == getattr(at, axis)
                assert (
                    tuple(numbers(row[f"{axis} group"])) == place_in(getattr(layout, axis), rank)[0]
                )
            else:
                assert axis not in row and f"{axis} group" not in row
        assert ("cp group" in row) == (degrees.ring > 1 and degrees.ulysses > 1)
        if "cp group" in row:
            assert tuple(numbers(row["cp group"])) == place_in(layout.cp, rank)[0]


def tokens(entry: str) -> tuple[list[int], int]:
    """Those that an entry names, and how much padding."""
    real, _, padding = entry.partition(" +")
    found = [] if real == "none" else numbers(real)
    return found, int(padding.removesuffix(" padding") or 0)


@settings(deadline=None)
@given(
    st.sampled_from([degrees for degrees in all_degrees(32) if degrees.dp == 1]),
    st.integers(1, 3),
    st.integers(1, 200),
    st.booleans(),
)
def test_heads_and_tokens_are_all_held_once(
    degrees: Degrees, times: int, total: int, sharded: bool
) -> None:
    degrees = Degrees(
        degrees.tp, degrees.ring, degrees.ulysses, degrees.cfg, 1, sharded and degrees.tp > 1
    )
    heads = times * degrees.tp * degrees.ulysses
    rows = table(str(Picture(degrees, Layout.arithmetic(degrees), heads, total)))
    split = degrees.ulysses > 1
    held, attended = np.zeros((2, degrees.cfg, heads, total), int)
    normed = np.zeros((degrees.cfg, total), int)
    lengths = set()
    for row in rows:
        cfg = int(row.get("cfg", 0))
        own, padding = tokens(row["tokens"])
        lengths.add(len(own) + padding)
        held[cfg, np.ix_(numbers(row["heads"]), own)[0], own] += 1
        mine = numbers(row["attention heads" if split else "heads"])
        theirs, _ = tokens(row["attention tokens" if split else "tokens"])
        attended[cfg, np.array(mine)[:, None], theirs] += 1
        normed[cfg, tokens(row["norm tokens" if degrees.sequence_sharding else "tokens"])[0]] += 1
    assert (held == 1).all()
    assert (attended == 1).all()
    assert (normed == (1 if degrees.sequence_sharding else degrees.tp)).all()
    # a length that the ranks which share it can cut evenly again
    sharers = degrees.tp if degrees.sequence_sharding else 1
    assert lengths == {sharers * -(-total // (degrees.cp * sharers))}


def test_chips_have_their_ranks() -> None:
    degrees = Degrees(tp=4, ring=8, cfg=2)
    text = str(Picture(degrees, trn2_layout(degrees), torus=TRN2))
    assert [int(row["chip"]) for row in table(text)] == [rank // 4 for rank in range(64)]
    assert [int(chip) for chip in re.findall(r"\| chip (\d+)", text)] == list(range(16))
    drawn = [rank for ranks in re.findall(r"\| ranks (\S+)", text) for rank in numbers(ranks)]
    assert drawn == list(range(64))
    assert re.findall(r"\| cfg (\d)", text) == list("0011" * 4)
    assert re.findall(r"\| ring (\d)", text) == list("0110" + "2332" + "4554" + "6776")


def test_chips_without_ranks_are_shown_empty() -> None:
    degrees = Degrees(tp=2)
    text = str(Picture(degrees, trn2_layout(degrees), torus=TRN2))
    assert text.count("no rank") == 15
    assert "ranks 0,1" in text


def test_the_coordinates_are_those_of_the_layout_given() -> None:
    degrees = Degrees(tp=2, ring=2)
    layout = Layout.arithmetic(degrees).moved([3, 2, 1, 0])
    text = str(Picture(degrees, layout))
    assert in_grids(text) == [3, 2, 1, 0]
    assert layout.coordinates_of(3) == Coordinates(0, 0, 0, 0, 0)
    assert table(text)[3]["ring group"] == "3,1"


def test_what_does_not_belong_together_is_refused() -> None:
    degrees = Degrees(tp=4)
    layout = Layout.arithmetic(degrees)
    with pytest.raises(ValueError, match="^layout must have 8 ranks, got 4$"):
        Picture(Degrees(tp=8), layout)
    big = Degrees(tp=128)
    with pytest.raises(ValueError, match="^torus must have 128 ranks or more, got 64$"):
        Picture(big, Layout.arithmetic(big), torus=TRN2)


def test_the_command_draws_the_layout() -> None:
    result = run("layout", "--tp", "4", "--ring", "8", "--cfg", "2")
    assert (result.returncode, result.stderr) == (0, "")
    degrees = Degrees(tp=4, ring=8, cfg=2)
    assert result.stdout == str(Picture(degrees, Layout.arithmetic(degrees)))
    assert result.stdout.startswith("tp 4 x ring 8 x cfg 2 = 64 ranks, in brackets\n")
    assert len(table(result.stdout)) == 64


def test_impossible_degrees_end_the_command_with_one_line() -> None:
    result = run("layout", "--tp", "3", "--heads", "40")
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr == "wantrn.parallel layout: error: tp must divide the 40 heads, got 3\n"


def test_every_option_reaches_the_picture(capsys: pytest.CaptureFixture[str]) -> None:
    options = "--tp 2 --ring 2 --ulysses 2 --cfg 2 --dp 2 --sequence-sharding --mesh trn2"
    assert main(["layout", *options.split(), "--heads", "8", "--tokens", "30"]) == 0
    degrees = Degrees(2, 2, 2, 2, 2, sequence_sharding=True)
    assert capsys.readouterr().out == str(Picture(degrees, trn2_layout(degrees), 8, 30, TRN2))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("layout --cfg 3", "cfg must be 1 or 2"),
        ("layout --dp 0", "dp must be at least 1, got 0"),
        ("layout --sequence-sharding", "sequence_sharding needs tp of at least 2"),
        ("layout --tp 4 --ring 3 --mesh trn2", "ring would have the ranks"),
        ("layout --tp 128 --mesh trn2", "has 64 ranks"),
        ("layout --heads 0", "heads must be at least 1, got 0"),
        ("layout --ulysses 3 --heads 40", "ulysses must divide the 40 heads"),
        ("layout --tokens 0", "tokens must be at least 1, got 0"),
        ("layout --tp two", "argument --tp: invalid int value: 'two'"),
        ("layout --mesh trn9", "argument --mesh: invalid choice"),
        ("layout --rings 2", "unrecognized arguments: --rings 2"),
        ("", "required: COMMAND"),
    ],
)
def test_what_cannot_be_is_said_in_one_line(
    arguments: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(arguments.split())
    assert stopped.value.code == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert message in err
