"""The helper that starts ranks: what it gives back, and that failures come out with their cause."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from rank_processes import run_ranks


def _sum_of_ranks(scale: torch.Tensor) -> tuple[int, torch.Tensor]:
    total = scale * dist.get_rank()
    dist.all_reduce(total)
    return dist.get_rank(), total


def _second_rank_fails() -> None:
    if dist.get_rank() == 1:
        raise LookupError("nothing on rank one")
    dist.barrier()


def _second_rank_dies() -> None:
    if dist.get_rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    dist.barrier()


def _fork_server() -> tuple[int, bool]:
    """Threads of the process that this one is a fork of, and whether it has torch."""
    server = Path("/proc", str(os.getppid()))
    return len(list((server / "task").iterdir())), "libtorch" in (server / "maps").read_text()


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="looks at a process in /proc")
def test_ranks_are_forks_of_one_thread_that_has_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert run_ranks(2, _fork_server) == [(1, True)] * 2


def test_results_come_by_rank() -> None:
    results = run_ranks(2, _sum_of_ranks, torch.tensor([1.0, 2.0]))
    assert [rank for rank, _ in results] == [0, 1]
    for _, total in results:
        assert torch.equal(total, torch.tensor([1.0, 2.0]))


def test_a_failure_is_raised_with_its_traceback() -> None:
    with pytest.raises(RuntimeError, match="rank 1 failed:(?s:.*)nothing on rank one"):
        run_ranks(2, _second_rank_fails)


def test_a_death_is_raised() -> None:
    with pytest.raises(RuntimeError, match="rank 1 died: exit code -9"):
        run_ranks(2, _second_rank_dies)
