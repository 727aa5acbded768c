"""`nki.language`: what kernels know as `nl`."""

from __future__ import annotations

from nkisim.dtypes import (
    DType,
    bfloat16,
    bool_,
    float4_e2m1fn_x4,
    float8_e4m3,
    float8_e4m3fn,
    float8_e4m3fn_x4,
    float8_e5m2,
    float8_e5m2_x4,
    float8_e8m0fnu,
    float16,
    float32,
    int8,
    int16,
    int32,
    tfloat32,
    uint8,
    uint16,
    uint32,
)
from nkisim.enums import MemoryRegion
from nkisim.language.buffers import (
    ds,
    hbm,
    is_hbm,
    is_on_chip,
    is_psum,
    is_sbuf,
    private_hbm,
    psum,
    sbuf,
    shared_hbm,
)
from nkisim.language.creation import (
    empty_like,
    full,
    load,
    ndarray,
    ones,
    rand,
    random_seed,
    shared_constant,
    shared_identity_matrix,
    store,
    zeros,
    zeros_like,
)
from nkisim.language.elementwise import dropout, where
from nkisim.language.grid import num_programs, program_id, program_ndim
from nkisim.language.loops import (
    affine_range,
    dynamic_range,
    fori_loop,
    no_reorder,
    sequential_range,
    static_range,
    while_loop,
)
from nkisim.language.movement import (
    broadcast_to,
    device_print,
    expand_dims,
    gather_flattened,
    load_transpose2d,
    matmul,
    transpose,
)
from nkisim.language.objects import NKIObject
from nkisim.language.reductions import all, rms_norm, softmax
from nkisim.language.tiles import tile_size
from nkisim.operations import (
    abs_,
    abs_max,
    abs_min,
    add,
    arctan,
    average,
    bitwise_and,
    bitwise_or,
    bitwise_xor,
    bypass,
    ceil,
    copy,
    cos,
    divide,
    equal,
    erf,
    erf_dx,
    exp,
    floor,
    fmod,
    gelu,
    gelu_apprx_sigmoid,
    gelu_apprx_sigmoid_dx,
    gelu_apprx_tanh,
    gelu_dx,
    greater,
    greater_equal,
    invert,
    left_shift,
    less,
    less_equal,
    log,
    logical_and,
    logical_not,
    logical_or,
    logical_xor,
    max_,
    maximum,
    mean,
    min_,
    minimum,
    mish,
    mod,
    multiply,
    negative,
    not_equal,
    power,
    prelu,
    prod,
    reciprocal,
    relu,
    right_shift,
    rsqrt,
    sigmoid,
    sign,
    silu,
    silu_dx,
    sin,
    softplus,
    sqrt,
    square,
    subtract,
    sum_,
    tan,
    tanh,
    trunc,
    var,
)
from nkisim.register import VirtualRegister
from nkisim.tensor import NkiTensor

# NKI gives these the names of Python's own
abs = abs_
max = max_
min = min_
sum = sum_
range = affine_range
bool = bool_

# for annotations
dtype = DType
tensor = NkiTensor

__all__ = [
    # classes
    "DType", "MemoryRegion", "NKIObject", "NkiTensor", "VirtualRegister", "dtype", "tensor",
    # data types
    "bool", "bool_", "int8", "int16", "int32", "uint8", "uint16", "uint32", "float32", "tfloat32",
    "bfloat16", "float16", "float8_e4m3", "float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu",
    "float8_e4m3fn_x4", "float8_e5m2_x4", "float4_e2m1fn_x4",
    # memories
    "sbuf", "psum", "hbm", "private_hbm", "shared_hbm", "is_hbm", "is_sbuf", "is_psum",
    "is_on_chip", "ds", "tile_size",
    # new tensors
    "ndarray", "zeros", "ones", "full", "zeros_like", "empty_like", "shared_constant",
    "shared_identity_matrix", "rand", "random_seed", "load", "store",
    # movement
    "load_transpose2d", "transpose", "matmul", "gather_flattened", "expand_dims", "broadcast_to",
    "device_print",
    # element by element, two operands
    "add", "subtract", "multiply", "divide", "maximum", "minimum", "abs_max", "abs_min", "power",
    "equal", "not_equal", "less", "less_equal", "greater", "greater_equal", "bitwise_and",
    "bitwise_or", "bitwise_xor", "left_shift", "right_shift", "logical_and", "logical_or",
    "logical_xor", "fmod", "mod", "where", "dropout",
    # element by element, one operand
    "abs", "square", "invert", "logical_not", "exp", "log", "sqrt", "rsqrt", "tanh", "sigmoid",
    "relu", "gelu", "gelu_apprx_sigmoid", "gelu_apprx_tanh", "gelu_dx", "gelu_apprx_sigmoid_dx",
    "silu", "silu_dx", "softplus", "mish", "erf", "erf_dx", "reciprocal", "copy", "sin", "cos",
    "tan", "arctan", "ceil", "floor", "trunc", "negative", "sign",
    # reductions
    "sum", "max", "min", "mean", "prod", "var", "all", "softmax", "rms_norm",
    # only operators of instructions
    "average", "prelu", "bypass",
    # loops and the grid
    "range", "affine_range", "sequential_range", "static_range", "dynamic_range", "fori_loop",
    "while_loop", "no_reorder", "program_id", "num_programs", "program_ndim",
]  # fmt: skip
