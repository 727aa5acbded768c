"""`nki.isa.constants`: the enumerations of `nki.isa` by themselves."""

from nkisim.enums import DgeMode as dge_mode
from nkisim.enums import DmaEngine as dma_engine
from nkisim.enums import Engine as engine
from nkisim.enums import MatmulPerfMode as matmul_perf_mode
from nkisim.enums import NcVersion as nc_version
from nkisim.enums import OobMode as oob_mode
from nkisim.enums import ReduceCmd as reduce_cmd

__all__ = [
    "dge_mode",
    "dma_engine",
    "engine",
    "matmul_perf_mode",
    "nc_version",
    "oob_mode",
    "reduce_cmd",
]
