"""What modules give while they are watched."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TypeVar

from torch import Tensor, nn

from wantrn.model.capture.errors import CaptureError
from wantrn.model.capture.points import Branch, common
from wantrn.parallel import Group

T = TypeVar("T")


@contextmanager
def outputs_of(
    model: nn.Module, modules: Sequence[str], kept: Callable[[Tensor], T]
) -> Iterator[Mapping[str, Sequence[T]]]:
    """What ``kept`` makes of each output of ``modules``, by name, in the order of their calls.

    The modules have forward hooks until the block ends, however it ends.
    """
    found: dict[str, list[T]] = {name: [] for name in modules}

    def keep(calls: list[T], module: nn.Module, inputs: object, output: Tensor) -> None:
        calls.append(kept(output))

    with ExitStack() as hooks:
        for name, calls in found.items():
            hook = model.get_submodule(name).register_forward_hook(partial(keep, calls))
            hooks.callback(hook.remove)
        yield found


def by_branch(
    module: str, calls: Sequence[Tensor], branches: Sequence[Branch], batched: bool
) -> dict[Branch, Tensor]:
    """The outputs of a module in one step, ``[1, S, H]`` each.

    Args:
        module: its name.
        calls: its outputs; ``[B, S, H]``.
        branches: that this rank has computed.
        batched: they have passed through it as one batch.

    Raises:
        CaptureError: it was not called once for each of them.
    """
    if common(module):
        branches, batched = (Branch.BOTH,), False
    expected = 1 if batched else len(branches)
    rows = len(branches) if batched else 1
    if len(calls) != expected or any(len(call) != rows for call in calls):
        raise CaptureError(
            f"{module} has given {[list(call.shape) for call in calls]} in a step, where "
            f"{expected} of [{rows}, S, H] are expected: every step must compute every module"
        )
    outputs = calls[0].chunk(rows) if batched else calls
    return dict(zip(branches, outputs, strict=True))


def joined_branches(own: dict[Branch, Tensor], group: Group) -> dict[Branch, Tensor]:
    """Both branches, of the ranks of ``group`` that have computed one each."""
    if group.size == 1 or Branch.BOTH in own:
        return own
    (mine,) = own.values()
    return dict(zip((Branch.PROMPT, Branch.NEGATIVE), group.gather(mine), strict=True))
