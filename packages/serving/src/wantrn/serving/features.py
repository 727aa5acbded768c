"""What a deployment uses, and what of it is known to work together."""

from __future__ import annotations

from wantrn.model.errors import RequestError
from wantrn.model.features import Feature, partners
from wantrn.model.info import ModelInfo, ModelKind
from wantrn.serving.deployment import Deployment

OMNI_TESTED = frozenset(
    {
        *(Feature.TP, Feature.RING, Feature.ULYSSES, Feature.CFG_PARALLEL),
        *(Feature.FIRST_FRAME, Feature.STEP_CACHE),
    }
)
"""What has been run on vLLM-Omni's engine and compared, by the tests of the engine."""


def features_of(deployment: Deployment, info: ModelInfo) -> frozenset[Feature]:
    """What the videos of a server may use at once."""
    more = {
        Feature.FP8: info.quantization is not None,
        Feature.LORA: deployment.loras is not None,
        Feature.FIRST_FRAME: info.kind is not ModelKind.T2V,
    }
    return deployment.ranks.features() | {feature for feature, there in more.items() if there}


def check_features(deployment: Deployment, info: ModelInfo) -> None:
    """Raise ``RequestError`` for what was never tested with the deployment's engine."""
    if deployment.engine != "omni":
        return
    untested = sorted(features_of(deployment, info) - OMNI_TESTED)
    if untested:
        allowed = ", ".join(sorted(OMNI_TESTED))
        raise RequestError(
            "engine", f"omni was never tested with {untested[0]}; what was is {allowed}"
        )
    if deployment.buckets:
        raise RequestError("engine", "omni does not warm up, which buckets ask for")


def describe_features(deployment: Deployment, info: ModelInfo) -> dict[str, str]:
    """What is in use, and with what else each of it was tested."""
    used = sorted(features_of(deployment, info))
    lines = {"features": ", ".join(used) or "one rank, nothing else"}
    known = OMNI_TESTED if deployment.engine == "omni" else frozenset(Feature)
    for feature in used or sorted(known):
        lines[f"  {feature} with"] = ", ".join(sorted(known.intersection(partners(feature))))
    return lines
