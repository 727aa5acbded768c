"""What a deployment uses, and what of it is known to work together."""

from __future__ import annotations

from wantrn.model.features import Feature, partners
from wantrn.model.info import ModelInfo, ModelKind
from wantrn.serving.deployment import Deployment
from wantrn.serving.engines.omni.stage_options import APART


def features_of(deployment: Deployment, info: ModelInfo) -> frozenset[Feature]:
    """What the videos of a server may use at once."""
    more = {
        Feature.FP8: info.quantization is not None,
        Feature.LORA: deployment.loras is not None,
        Feature.FIRST_FRAME: info.kind is not ModelKind.T2V,
    }
    return deployment.ranks.features() | {feature for feature, there in more.items() if there}


def describe_features(deployment: Deployment, info: ModelInfo) -> dict[str, str]:
    """What is in use, and with what else each of it was tested."""
    used = sorted(features_of(deployment, info))
    lines = {"features": ", ".join(used) or "one rank, nothing else"}
    apart = APART if deployment.engine == "omni" else frozenset()
    for feature in used or Feature:
        others = [other for other in partners(feature) if not apart >= {feature, other}]
        lines[f"  {feature} with"] = ", ".join(sorted(others))
    return lines
