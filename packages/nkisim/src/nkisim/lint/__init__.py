"""Static analysis of kernels: what AWS's front ends reject, and what fails on the device.

The simulator runs a kernel as ordinary Python, and more of Python than AWS's compiler takes; some
of what it computes, the device computes otherwise or not at all. `lint` reads the source of a
kernel and says where.
"""

from __future__ import annotations

from typing import Any

from nkisim.lint.rules import FRONT_ENDS, RULES, Finding, FrontEnd, Level, Report, Rule
from nkisim.lint.source import SourceNotFoundError, python_function
from nkisim.lint.walk import Walk

__all__ = ["lint", "Finding", "FrontEnd", "Level", "Rule", "RULES", "SourceNotFoundError"]


def lint(kernel: Any, frontend: FrontEnd | None = None) -> list[Finding]:
    """Examines the source of `kernel` and of the functions that it calls.

    Functions of the kernel's author are followed, once each, with what is known of their arguments
    at their first call: those that its globals and its closure name, those defined within it, and
    the methods of the classes that it uses. Nothing is run, so a rule is reported only where the
    source alone shows that it is broken.

    Args:
        kernel: a function, or a kernel made by `nki.jit`.
        frontend: the front end of AWS's compiler to check for, `parser` (NKI 0.6 and older) or
            `tracer` (0.7); None for both.

    Returns:
        What was found, by file and line; `str()` of a finding is `file:line:column: rule: message`.

    Raises:
        SourceNotFoundError: the kernel's source cannot be read (a built-in, or made by `exec`).
        TypeError: `kernel` has no function behind it.
        ValueError: there is no such front end.
    """
    if frontend is not None and frontend not in FRONT_ENDS:
        raise ValueError(f"frontend is {frontend!r}; it must be None, 'parser' or 'tracer'")
    report = Report(frontend)
    Walk(report).kernel(python_function(kernel))
    return report.findings()
