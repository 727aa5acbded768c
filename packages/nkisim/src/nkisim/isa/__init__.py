"""`nki.isa`: the instructions of a NeuronCore, and their enumerations."""

from nkisim.enums import DgeMode as dge_mode
from nkisim.enums import DmaEngine as dma_engine
from nkisim.enums import Engine as engine
from nkisim.enums import MatmulPerfMode as matmul_perf_mode
from nkisim.enums import NcVersion as nc_version
from nkisim.enums import OobMode as oob_mode
from nkisim.enums import ReduceCmd as reduce_cmd
from nkisim.isa.activations import activate2, activation, activation_reduce
from nkisim.isa.dma import dma_compute, dma_copy, dma_transpose
from nkisim.isa.gathers import local_gather, nc_n_gather
from nkisim.isa.gpsimd import (
    affine_select,
    iota,
    nonzero_with_count,
    sequence_bounds,
    tensor_partition_reduce,
)
from nkisim.isa.matmul import nc_matmul, nc_matmul_mx, nc_transpose
from nkisim.isa.multicore import core_barrier, sendrecv
from nkisim.isa.quantize import quantize_mx
from nkisim.isa.random_numbers import (
    dropout,
    rand2,
    rand_get_state,
    rand_set_state,
    rng,
    set_rng_seed,
)
from nkisim.isa.reductions import (
    tensor_reduce,
    tensor_scalar_cumulative,
    tensor_scalar_reduce,
    tensor_tensor_scan,
)
from nkisim.isa.registers import register_alloc, register_load, register_move, register_store
from nkisim.isa.search import max8, nc_find_index8, nc_match_replace8, topk
from nkisim.isa.selects import nc_stream_shuffle, range_select, select_reduce
from nkisim.isa.statistics import bn_aggr, bn_stats
from nkisim.isa.vector import (
    memset,
    reciprocal,
    scalar_tensor_tensor,
    tensor_copy,
    tensor_copy_predicated,
    tensor_scalar,
    tensor_tensor,
)
from nkisim.isa.vector_exponential import exponential
from nkisim.isa.version import get_nc_sub_version, get_nc_version
from nkisim.register import VirtualRegister
from nkisim.trace import Instruction as NkiInstruction

# other names that NKI has for the members of `engine`
tensor_engine = engine.tensor
vector_engine = engine.vector
scalar_engine = engine.scalar
gpsimd_engine = engine.gpsimd
unknown_engine = engine.unknown

__all__ = [
    "NkiInstruction",
    "VirtualRegister",
    "activate2",
    "activation",
    "activation_reduce",
    "affine_select",
    "bn_aggr",
    "bn_stats",
    "core_barrier",
    "dge_mode",
    "dma_compute",
    "dma_copy",
    "dma_engine",
    "dma_transpose",
    "dropout",
    "engine",
    "exponential",
    "get_nc_sub_version",
    "get_nc_version",
    "gpsimd_engine",
    "iota",
    "local_gather",
    "matmul_perf_mode",
    "max8",
    "memset",
    "nc_find_index8",
    "nc_match_replace8",
    "nc_matmul",
    "nc_matmul_mx",
    "nc_n_gather",
    "nc_stream_shuffle",
    "nc_transpose",
    "nc_version",
    "nonzero_with_count",
    "oob_mode",
    "quantize_mx",
    "rand2",
    "rand_get_state",
    "rand_set_state",
    "range_select",
    "reciprocal",
    "reduce_cmd",
    "register_alloc",
    "register_load",
    "register_move",
    "register_store",
    "rng",
    "scalar_engine",
    "scalar_tensor_tensor",
    "select_reduce",
    "sendrecv",
    "sequence_bounds",
    "set_rng_seed",
    "tensor_copy",
    "tensor_copy_predicated",
    "tensor_engine",
    "tensor_partition_reduce",
    "tensor_reduce",
    "tensor_scalar",
    "tensor_scalar_cumulative",
    "tensor_scalar_reduce",
    "tensor_tensor",
    "tensor_tensor_scan",
    "topk",
    "unknown_engine",
    "vector_engine",
]
