"""The lists of tensors and channels that a kernel hands to a collective."""

from __future__ import annotations

from typing import Any

from nkisim.errors import NkiValidationError
from nkisim.tensor import NkiTensor

# of a replica group that takes in a whole node; others have 2
MAX_CHANNELS = 4


def tensor_list(op: str, argument: str, operands: Any) -> list[NkiTensor]:
    """`operands`, which must be a list of tensors.

    Raises:
        TypeError: it is none.
    """
    if not isinstance(operands, (list, tuple)) or not all(
        isinstance(operand, NkiTensor) for operand in operands
    ):
        raise TypeError(f"{op}: {argument} is {operands!r}; it must be a list of tensors")
    return list(operands)


def channel_list(op: str, argument: str, operands: Any) -> list[NkiTensor]:
    """The tensor of each channel.

    Raises:
        TypeError: `operands` is no list of lists of tensors.
        NkiValidationError: a channel has more tensors than one, or none, or there are too many
            channels.
    """
    if not isinstance(operands, (list, tuple)):
        raise TypeError(
            f"{op}: {argument} is {operands!r}; it must be a list with a list of one tensor for "
            "each channel"
        )
    if not 1 <= len(operands) <= MAX_CHANNELS:
        raise NkiValidationError(
            f"{op}: {argument} has {len(operands)} channels; there must be 1 to {MAX_CHANNELS}"
        )
    found = []
    for index, channel in enumerate(operands):
        entries = tensor_list(op, f"{argument}[{index}]", channel)
        if len(entries) != 1:
            raise NkiValidationError(
                f"{op}: {argument}[{index}] has {len(entries)} tensors; a channel takes one"
            )
        found += entries
    return found


def checked_channel(op: str, argument: str, channel: Any) -> int:
    """The number of a channel.

    Raises:
        NkiValidationError: there is no such channel.
    """
    known = range(MAX_CHANNELS)
    if isinstance(channel, bool) or not isinstance(channel, int) or channel not in known:
        raise NkiValidationError(
            f"{op}: {argument} has channel {channel!r}; channels are 0 to {MAX_CHANNELS - 1}"
        )
    return channel
