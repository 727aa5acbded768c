"""Reports: numbers that can be counted by hand, and files that their readers understand."""

import json
import pickle
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from trace_maker import Maker, part, trace

from nkisim import report
from nkisim.dtypes import bfloat16, float8_e4m3
from nkisim.enums import Engine, NcVersion
from nkisim.report import Report
from nkisim.report.lanes import assign
from nkisim.trace import Meeting


def chain(n: int = 3) -> Report:
    """Load, multiply, copy out and store, n times."""
    maker = Maker()
    weights = maker.sbuf(128, 128, dtype=bfloat16)
    maker.load(weights, maker.hbm(128, 128, dtype=bfloat16))
    for _ in range(n):
        moving, out = maker.sbuf(128, 512, dtype=bfloat16), maker.sbuf(128, 512)
        bank = maker.psum(128, 512)
        maker.load(moving, maker.hbm(128, 512, dtype=bfloat16))
        maker.matmul(bank, weights, moving)
        maker.copy(out, bank)
        maker.load(maker.hbm(128, 512), out)
    return report.make(trace(maker))


def exchange() -> Report:
    """Two ranks that swap what they have."""
    makers = [Maker(0), Maker(1)]
    for maker in makers:
        send, got = maker.hbm(1 << 16), maker.hbm(1 << 16)
        maker.load(send, maker.hbm(1 << 16))
        maker.issue(
            "collective_permute", Engine.gpsimd, (got,), (send,),
            meeting=Meeting("collective_permute", (0,), (0, 1), 2, 1 << 18),
        )  # fmt: skip
        maker.load(maker.sbuf(128, 512), got)
    return report.make(trace(*makers, ranks=2))


def test_work_and_traffic_are_counted() -> None:
    found = chain(3).json()
    assert found["flops"] == 3 * 2 * 128 * 128 * 512
    assert found["hbm_read_bytes"] == 128 * 128 * 2 + 3 * 128 * 512 * 2
    assert found["hbm_written_bytes"] == 3 * 128 * 512 * 4
    assert found["instructions"] == 13
    assert found["count.dma_copy"] == found["dma_transfers"] == 7
    assert found["count.nc_matmul"] == found["count.tensor_copy"] == 3
    # one descriptor a partition
    assert found["dma_descriptors"] == 7 * 128


def test_shares_are_of_the_total_time() -> None:
    made = chain(4)
    found = made.json()
    total_ns = found["kernel_us"] * 1000
    assert found["busy.tensor"] == pytest.approx(4 * 512 / 2.4 / total_ns)
    # 60 cycles of each copy are its access
    assert found["busy.vector"] == pytest.approx(4 * (60 + 512) / 0.96 / total_ns)
    assert found["busy.scalar"] == 0
    assert found["mfu"] == pytest.approx(found["busy.tensor"])
    assert sum(made.critical_us.values()) == pytest.approx(found["kernel_us"])
    assert list(made.critical_us.values()) == sorted(made.critical_us.values(), reverse=True)


def test_a_caller_waits_for_the_launch_too() -> None:
    made = chain(4)
    found = made.json()
    assert found["launch_us"] == made.schedule.machine.launch_ns / 1000 > 0
    assert found["total_us"] == found["kernel_us"] + found["launch_us"] == made.total_us
    assert found["kernel_us"] == made.schedule.total_ns / 1000


def test_a_report_can_be_sent_and_says_little_of_itself() -> None:
    made = chain(50)
    assert pickle.loads(pickle.dumps(made)).json() == made.json()
    assert repr(made) == f"<Report: {made.total_us:.1f} us on Trainium2, 1 core>"
    assert repr(exchange()).endswith("on Trainium2, 2 cores>")


def test_mfu_is_against_the_peak_of_the_type() -> None:
    maker = Maker()
    operands = maker.sbuf(128, 256, dtype=float8_e4m3), maker.sbuf(128, 1024, dtype=float8_e4m3)
    for _ in range(50):
        maker.matmul(maker.psum(128, 512), *operands, perf_mode="double_row")
    assert report.make(trace(maker)).mfu == pytest.approx(1, abs=0.01)


def test_small_descriptors_show_in_the_efficiency() -> None:
    def efficiency(run: int) -> float:
        maker = Maker()
        rows = part(maker.hbm(128 * 4096), 0, run, ((8192, 128),))
        maker.load(maker.sbuf(128, run // 4), rows)
        return report.make(trace(maker)).cores[0].dma_efficiency

    assert efficiency(4096) == pytest.approx(1)
    assert 0.3 < efficiency(256) < 0.45


def test_peaks_of_memory() -> None:
    maker = Maker()
    one, two, three = (maker.sbuf(128, 256 * k) for k in (1, 2, 3))
    maker.copy(two, one)
    maker.copy(three, two)
    maker.copy(maker.sbuf(128, 8), maker.psum(128, 300))
    found = report.make(trace(maker)).json()
    assert found["sbuf_peak_bytes"] == 1024 * 5
    assert found["psum_peak_bytes"] == 1200
    assert (found["sbuf_limit_bytes"], found["psum_limit_bytes"]) == (212984, 16384)


def test_json_is_json_and_names_every_core() -> None:
    found = exchange().json()
    assert json.loads(json.dumps(found)) == found
    assert [(core["rank"], core["core"]) for core in found["cores"]] == [(0, 0), (1, 0)]
    for key in ("instructions", "flops", "hbm_read_bytes", "dma_transfers"):
        assert found[key] == sum(core[key] for core in found["cores"])
    assert (found["target"], found["chip"], found["ranks"]) == ("gen3", "Trainium2", 2)


def test_an_empty_trace_has_a_report(tmp_path: Path) -> None:
    made = report.make(trace(Maker(), target=NcVersion.gen4))
    assert made.kernel_us == made.mfu == 0
    assert made.total_us == made.launch_us
    assert "Trainium3" in made.table()
    made.perfetto(tmp_path / "empty.json")
    assert json.loads((tmp_path / "empty.json").read_text())["traceEvents"]


def test_table_says_what_matters() -> None:
    made = chain(3)
    text = made.table()
    assert f"{made.kernel_us:.3f} us on Trainium2" in text
    assert f"{made.total_us:.3f} us with its launch" in text
    assert "MFU" in text
    vector = next(line for line in text.splitlines() if line.strip().startswith("vector"))
    assert f"{100 * made.cores[0].busy['vector']:.1f} %" in vector
    assert "13 in all" in text
    assert all(len(line) < 100 for line in text.splitlines())
    path = text[text.index("Critical path") :]
    assert "dma_copy" in path.splitlines()[1]


def events(made: Report, path: Path) -> list[dict[str, Any]]:
    made.perfetto(path)
    found = json.loads(path.read_text())
    assert set(found) == {"displayTimeUnit", "traceEvents"}
    kept: list[dict[str, Any]] = found["traceEvents"]
    return kept


@pytest.mark.parametrize("make", [chain, exchange])
def test_perfetto_has_every_instruction_where_it_ran(make: Any, tmp_path: Path) -> None:
    made = make()
    found = events(made, tmp_path / "trace.json")
    bars = [event for event in found if event["ph"] == "X"]
    assert len(bars) == sum(len(core) for core in made.schedule.trace.cores)
    for bar in bars:
        timed = made.schedule.cores[bar["pid"]]
        index = bar["args"]["index"]
        assert bar["ts"] == pytest.approx(timed.start[index] / 1000)
        assert bar["ts"] + bar["dur"] == pytest.approx(timed.end[index] / 1000)
    # nothing overlaps on a thread, which Perfetto could not draw
    threads = defaultdict(list)
    for bar in bars:
        threads[bar["pid"], bar["tid"]].append((bar["ts"], bar["ts"] + bar["dur"]))
    for spans in threads.values():
        spans.sort()
        assert all(a[1] <= b[0] + 1e-9 for a, b in pairwise(spans))
    named = {(e["pid"], e["tid"]) for e in found if e["name"] == "thread_name"}
    assert named >= set(threads)
    processes = {e["args"]["name"] for e in found if e["name"] == "process_name"}
    assert processes == {f"rank {c.rank} core {c.core}" for c in made.cores}


def test_perfetto_joins_the_critical_path(tmp_path: Path) -> None:
    made = chain()
    found = events(made, tmp_path / "trace.json")
    bars = [event for event in found if event["ph"] == "X"]
    starts = {e["id"]: e for e in found if e["ph"] == "s"}
    ends = {e["id"]: e for e in found if e["ph"] == "f"}
    assert starts.keys() == ends.keys()
    assert len(starts) == len(made.schedule.critical) - 1
    for number, arrow in (starts | {}).items():
        assert arrow["ts"] <= ends[number]["ts"]
        # an arrow hangs on the bar that it begins in
        assert any(
            bar["tid"] == arrow["tid"] and bar["ts"] <= arrow["ts"] <= bar["ts"] + bar["dur"] + 1e-9
            for bar in bars
        )
    on_path = [bar for bar in bars if "on critical path (us)" in bar["args"]]
    assert len(on_path) == len(made.schedule.critical)


def test_perfetto_tells_operands_and_source(tmp_path: Path) -> None:
    found = events(chain(), tmp_path / "trace.json")
    bar = next(event for event in found if event["name"] == "nc_matmul")
    assert "[128, 512] float32: partitions 0:128, 512 elements" in bar["args"]["writes[0]"]
    assert bar["args"]["reads[1]"].startswith("sbuf")
    assert bar["args"]["at"] == "unknown"
    assert bar["args"]["is_transpose"] is False


def test_wrong_paths_are_refused(tmp_path: Path) -> None:
    made = chain(1)
    with pytest.raises(ValueError, match=r"trace\.txt'; it must end in \.json"):
        made.perfetto(tmp_path / "trace.txt")
    with pytest.raises(ValueError, match=r"it must end in \.png or \.svg"):
        made.plot(tmp_path / "picture.jpg")
    with pytest.raises(ValueError, match="there is no folder"):
        made.perfetto(tmp_path / "nowhere" / "trace.json")
    assert list(tmp_path.iterdir()) == []


def test_lanes_hold_what_overlaps() -> None:
    assert assign([(0, 4), (1, 2), (2, 3), (4, 5), (1, 6)]) == [0, 1, 1, 0, 2]
    assert assign([]) == []
