"""Which hardware a kernel is traced for."""

from __future__ import annotations

from nkisim.core import current_or_none
from nkisim.enums import NcVersion
from nkisim.settings import Settings


def get_nc_version() -> NcVersion:
    """The generation of the target; outside a kernel that of the default settings."""
    core = current_or_none()
    return Settings().target if core is None else core.target


def get_nc_sub_version() -> int:
    """The variant within the generation: 0. Nothing that is simulated depends on it."""
    return 0
