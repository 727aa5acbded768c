"""What the command's arguments are made of."""

from __future__ import annotations

import argparse
import os


def text(value: str) -> str:
    try:
        value.encode("utf-8")
    except UnicodeEncodeError as error:
        raise argparse.ArgumentTypeError(f"{value!r} is not valid UTF-8") from error
    return value


def size(value: str) -> tuple[int, int]:
    """Width and height."""
    width, separator, height = value.partition("x")
    if not (separator and width.isdecimal() and height.isdecimal()):
        raise argparse.ArgumentTypeError(f"{value!r} is no size such as 832x480")
    return int(width), int(height)


def threads(value: str) -> int:
    most = os.cpu_count() or 1
    if not (value.isdecimal() and 1 <= int(value) <= most):
        raise argparse.ArgumentTypeError(f"{value!r} is not allowed; it must be 1 to {most}")
    return int(value)


def positive(value: str) -> int:
    if not (value.isdecimal() and int(value) >= 1):
        raise argparse.ArgumentTypeError(f"{value!r} is no number from 1 up")
    return int(value)


def seconds(value: str) -> float:
    """From 0 to a day."""
    try:
        number = float(value)
    except ValueError:
        number = -1.0
    if not 0 <= number <= 86400:
        raise argparse.ArgumentTypeError(f"{value!r} is no number of seconds up to a day")
    return number
