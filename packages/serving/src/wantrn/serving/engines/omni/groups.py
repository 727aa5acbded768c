"""The process groups that vLLM-Omni made, as ours."""

from __future__ import annotations

from wantrn.parallel import Degrees, Groups
from wantrn.serving.engines.omni.compatibility import get_cfg_group, get_sp_group, get_tp_group


def adopt_groups(degrees: Degrees) -> Groups:
    """This rank's groups. Its place in them is vLLM-Omni's, which numbers ranks as we do.

    Raises:
        ValueError: vLLM-Omni's groups are others than those of ``degrees``.
    """
    sequence = get_sp_group()
    # ranks that gather keys and values stand where those of a ring would
    gathers = sequence.allgather_world_size > 1
    ring = sequence.allgather_group if gathers else sequence.ring_group
    return Groups.adopt(
        degrees,
        tp=get_tp_group().device_group,
        ulysses=sequence.ulysses_group,
        ring=ring,
        cp=sequence.device_group,
        cfg=get_cfg_group().device_group,
    )
