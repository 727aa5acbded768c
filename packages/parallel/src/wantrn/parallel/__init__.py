"""Rank arithmetic, process groups and attention over a shared sequence."""

from wantrn.parallel.degrees import Axis, Degrees
from wantrn.parallel.group import Group
from wantrn.parallel.groups import Groups
from wantrn.parallel.layout import Layout

__all__ = ["Axis", "Degrees", "Group", "Groups", "Layout"]
__version__ = "0.1.0"
