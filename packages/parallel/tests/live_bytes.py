"""How much memory tensors take that are made while a function runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class LiveBytes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """The most bytes, at any time, of the storages that operators have given out within.

    Storages from before do not count, nor what an operator needs for itself only.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.peak: int = 0
        self._live: dict[int, tuple[Any, int]] = {}

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # nothing is compiled here, and what torch would do about it takes seconds to import
        return False

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: tuple[type, ...],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        given = {x.untyped_storage()._cdata for x in tree_leaves((args, kwargs)) if _is_tensor(x)}
        result = func(*args, **(kwargs or {}))
        for x in tree_leaves(result):
            if _is_tensor(x) and x.untyped_storage()._cdata not in given:
                storage = x.untyped_storage()
                weak: Any = StorageWeakRef(storage)  # type: ignore[no-untyped-call]
                self._live[storage._cdata] = weak, storage.nbytes()
        self._live = {key: pair for key, pair in self._live.items() if not pair[0].expired()}
        self.peak = max(self.peak, sum(nbytes for _, nbytes in self._live.values()))
        return result


def _is_tensor(x: object) -> bool:
    return isinstance(x, torch.Tensor)
