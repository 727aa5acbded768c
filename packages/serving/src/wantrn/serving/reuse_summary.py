"""What a step cache has done in a run, in words."""

from __future__ import annotations

from wantrn.model.cached_steps import CachedSteps


def describe_reuse(steps: CachedSteps) -> str:
    """One line: how many steps of each expert reused what earlier ones had computed, how far off
    that was, and whether it was too far."""
    parts = []
    for number, expert in enumerate(steps.experts):
        if not expert.full:
            continue
        made = expert.full + expert.reused
        name = "transformer" if number == 0 else f"transformer_{number + 1}"
        part = f"{expert.reused} of {made} steps of {name} reused"
        if expert.drift:
            part += f", at most {expert.drift:.3f} off"
        if expert.stopped:
            part += f", above {expert.cache.drift_limit:g}, so no more were"
        parts.append(part)
    return f"step cache: {'; '.join(parts)}"
