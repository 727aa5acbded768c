"""Runs the ranks of a stage of vLLM-Omni, and starts them again when they die.

For a server of vLLM-Omni's own, it is the stage's
``distributed_executor_backend: wantrn.serving.engines.omni.executor.RankExecutor``.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any

from wantrn.serving.engines.omni.compatibility import DiffusionExecutor, EngineDeadError
from wantrn.serving.engines.omni.rank_process import Call
from wantrn.serving.engines.omni.rank_processes import RankProcesses, RanksLostError, fork_context
from wantrn.serving.engines.omni.stage_options import NEEDS_STEPS, StageOptionError
from wantrn.serving.engines.protocol import Event, Lost, Ready
from wantrn.serving.engines.restarts import Restarts

_log = logging.getLogger("wantrn.ranks")

Listener = Callable[[Event], None]


class RankExecutor(DiffusionExecutor):  # type: ignore[misc]
    """One process for each rank, also where there is only one.

    A rank that dies takes the others with it: they would wait for it for ever. What was being made
    fails, all ranks are started again, and what comes meanwhile waits for them. Ranks that have
    never been up, or cannot be started again, end the stage.
    """

    uses_multiproc = True

    def _init_executor(self) -> None:
        """Begin to start the ranks; ``execute_step`` waits for them."""
        self._change = threading.Condition()
        self._ranks: RankProcesses | None = None
        self._up = False
        self._broken: str | None = None
        self._closed = False
        self._listeners: list[Listener] = []
        self._callbacks: list[Callable[[], None]] = []
        self._keeper = threading.Thread(target=self._keep, name="rank keeper", daemon=True)
        self._keeper.start()

    def listen(self, listener: Listener) -> None:
        """Let ``listener`` hear of ranks that are ready or lost, and of what they report; in
        threads of this executor's. Of ranks that have been ready already, it hears at once."""
        with self._change:
            self._listeners.append(listener)
            if self._up:
                listener(Ready())
            elif self._broken is not None:
                listener(Lost(self._broken, broken=True))

    @property
    def pids(self) -> tuple[int, ...]:
        """The processes of the ranks, in their order; none while they are not there."""
        with self._change:
            processes = [] if self._ranks is None else self._ranks.processes
            return tuple(process.pid for process in processes if process.pid is not None)

    @property
    def is_dead(self) -> bool:
        return self._closed or self._broken is not None

    def check_health(self) -> None:
        """Raise ``EngineDeadError`` if the ranks are gone for good."""
        if self.is_dead:
            raise EngineDeadError(self._broken or "the executor was shut down")

    def register_failure_callback(self, callback: Callable[[], None]) -> None:
        self._callbacks.append(callback)

    def execute_step(self, scheduler_output: Any) -> Any:
        """One step of all requests that are being made."""
        return self.collective_rpc(
            "execute_stepwise", args=(scheduler_output,), unique_reply_rank=0
        )

    def execute_request(self, scheduler_output: Any) -> Any:
        """What a stage without step execution would call; ranks refuse such a stage already."""
        raise StageOptionError(NEEDS_STEPS)

    def execute_batch(self, scheduler_output: Any) -> Any:
        """As ``execute_request``."""
        raise StageOptionError(NEEDS_STEPS)

    def collective_rpc(
        self,
        method: str,
        timeout: float | None = None,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
        unique_reply_rank: int | None = None,
        exec_all_ranks: bool = False,
    ) -> Any:
        """Call a method of the workers of all ranks, and return what it gives on the first.

        Raises:
            EngineDeadError: the ranks are gone for good.
            RanksLostError: they died meanwhile.
            RanksFailedError: it raised something on all of them.
            TimeoutError: they were not up in time.
        """
        if unique_reply_rank not in (None, 0):
            raise ValueError(f"unique_reply_rank is {unique_reply_rank}; allowed are None and 0")
        ranks = self._wait_until_up(timeout)
        try:
            value = ranks.call(Call(method, args, kwargs), self._tell)
        except RanksLostError:
            with self._change:  # until the listeners know, too
                self._change.wait_for(lambda: self._ranks is not ranks or not self._up)
            raise
        return value if unique_reply_rank == 0 else [value]

    def shutdown(self) -> None:
        """End the ranks."""
        with self._change:
            if self._closed:
                return
            self._closed = True
            ranks, up = self._ranks, self._up
            self._change.notify_all()
        if ranks is not None and up:
            ranks.end()
        elif ranks is not None:
            ranks.kill("the executor was shut down")
        if threading.current_thread() is not self._keeper:
            self._keeper.join()

    def _wait_until_up(self, timeout: float | None) -> RankProcesses:
        with self._change:
            in_time = self._change.wait_for(lambda: self._up or self.is_dead, timeout)
            self.check_health()
            if not in_time:
                raise TimeoutError(f"the ranks were not up within {timeout} s")
            assert self._ranks is not None
            return self._ranks

    def _keep(self) -> None:
        """``_keep_up``; what it does not expect is told as what it does."""
        try:
            self._keep_up()
        except Exception as error:
            _log.exception("the ranks cannot be kept")
            with self._change:
                self._up, self._broken = False, f"the ranks cannot be kept: {error}"
                self._change.notify_all()
                self._tell(Lost(self._broken, broken=True))
            for callback in self._callbacks:
                callback()

    def _keep_up(self) -> None:
        """Have ranks that are up, until told to end or there is no hope."""
        restarts = Restarts()
        while True:
            with self._change:
                if self._closed:
                    return
                self._ranks = ranks = RankProcesses(self.od_config, fork_context())
            up = self._start(ranks)
            reason = ranks.watch() if up else ranks.reason
            ranks.close()
            broken = restarts.give_up(up)
            with self._change:
                self._up = False
                self._broken = reason if broken else None
                self._change.notify_all()
                if self._closed:
                    return
                _log.error("the ranks are lost: %s", reason)
                if up or broken:
                    self._tell(Lost(reason, broken))
            if broken:
                for callback in self._callbacks:
                    callback()
                return

    def _start(self, ranks: RankProcesses) -> bool:
        """Whether the ranks have come up."""
        try:
            ranks.wait_until_up()
        except RanksLostError:
            return False
        with self._change:
            self._up = True
            self._change.notify_all()
            self._tell(Ready())
        return True

    def _tell(self, event: Event) -> None:
        for listener in self._listeners:
            listener(event)
