"""The platform ``neuron``: a host whose ranks have Trainium cores.

As everywhere in this project, the transformers are on the device, and text encoder, autoencoder and
solver on the host. It is chosen where the hardware is, and was not tried on it with vLLM-Omni yet.
"""

from __future__ import annotations

from wantrn.serving.engines.omni.compatibility import OmniPlatformEnum
from wantrn.serving.engines.omni.cpu_platform import CpuOmniPlatform
from wantrn.serving.engines.omni.hardware import NEURON


class NeuronOmniPlatform(CpuOmniPlatform):
    """What vLLM-Omni sees is the host, as on ``cpu``: the pipelines themselves put on the device
    what belongs there. Collectives of its tensors go over its own links."""

    _omni_enum = OmniPlatformEnum.OOT
    device_name = NEURON
    dist_backend = f"cpu:gloo,{NEURON}:{NEURON}"
