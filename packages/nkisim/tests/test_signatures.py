"""The signatures of NKI 0.6, as its stubs have them, without annotations."""

from __future__ import annotations

import inspect

import numpy as np
import pytest

import nkisim
import nkisim.collectives as ncc
import nkisim.isa as nisa
import nkisim.language as nl

ISA = """
get_nc_sub_version()
get_nc_version()
dma_copy(dst, src, priority=None, oob_mode=oob_mode.error, dge_mode=dge_mode.unknown,
    engine=engine.unknown, name=None)
tensor_copy(dst, src, engine=engine.unknown, name=None)
memset(dst, value, engine=engine.unknown, name=None)
tensor_copy_predicated(dst, src, predicate, reverse_pred=False, name=None)
nc_matmul(dst, stationary, moving, is_stationary_onezero=False, is_moving_onezero=False,
    is_transpose=False, accumulate=None, tile_position=(), tile_size=(),
    perf_mode=matmul_perf_mode.none, name=None)
nc_matmul_mx(dst, stationary, moving, stationary_scale, moving_scale, tile_position=None,
    tile_size=None, accumulate=None, name=None)
nc_transpose(dst, data, engine=engine.unknown, name=None)
dma_transpose(dst, src, axes=None, priority=None, dge_mode=dge_mode.unknown,
    oob_mode=oob_mode.error, name=None)
tensor_tensor(dst, data1, data2, op, engine=engine.unknown, name=None)
tensor_scalar(dst, data, op0, operand0, reverse0=False, op1=None, operand1=None, reverse1=False,
    engine=engine.unknown, name=None)
tensor_reduce(dst, op, data, axis, negate=False, keepdims=False, name=None)
tensor_partition_reduce(dst, op, data, name=None)
tensor_scalar_cumulative(dst, src, op0, op1, imm0, imm1=None, reduce_cmd=reduce_cmd.reset_reduce,
    name=None)
activation(dst, op, data, bias=None, scale=1.0, reduce_op=None, reduce_res=None,
    reduce_cmd=reduce_cmd.idle, name=None)
activation_reduce(dst, op, data, reduce_op, reduce_res, bias=None, scale=1.0, name=None)
activate2(dst, op, data, imm0, imm1, op0, op1, relu_param=0.0, reverse0=False, reverse1=False,
    reduce_op=None, reduce_res=None, reduce_cmd=reduce_cmd.idle, name=None)
iota(dst, pattern, offset=0, channel_multiplier=0, name=None)
affine_select(dst, pattern, channel_multiplier, on_true_tile, on_false_value, cmp_op=equal,
    offset=0, name=None)
local_gather(dst, src_buffer, index, num_elem_per_idx=1, num_valid_indices=None, name=None)
nc_n_gather(dst, data, indices, name=None)
bn_stats(dst, data, name=None)
bn_aggr(dst, data, name=None)
tensor_tensor_scan(dst, data0, data1, initial, op0, op1, reverse0=False, reverse1=False,
    name=None)
nc_stream_shuffle(dst, src, shuffle_mask, name=None)
rng(dst, engine=engine.vector, name=None)
dropout(dst, data, prob, name=None)
set_rng_seed(src_seeds, name=None)
rand_set_state(src_seeds, engine=engine.gpsimd, name=None)
rand_get_state(dst, engine=engine.gpsimd, name=None)
rand2(dst, min, max, name=None)
exponential(dst, src, max_value=0.0, reduce_res=None, reduce_cmd=reduce_cmd.idle, reduce_init=0.0,
    name=None)
reciprocal(dst, data, name=None)
max8(dst, src, name=None)
sequence_bounds(dst, segment_ids, name=None)
scalar_tensor_tensor(dst, data, op0, operand0, op1, operand1, reverse0=False, reverse1=False,
    name=None)
tensor_scalar_reduce(dst, data, op0, operand0, reduce_op, reduce_res=None, reverse0=False,
    reduce_cmd=reduce_cmd.reset_reduce, reduce_init=None, reduce_res_negate=False, name=None)
core_barrier(data, cores, engine=engine.gpsimd, name=None)
dma_compute(dst, srcs, reduce_op, scales=None, unique_indices=True, oob_mode=oob_mode.error,
    name=None)
quantize_mx(dst, src, dst_scale, name=None)
range_select(dst, on_true_tile, comp_op0, comp_op1, bound0, bound1,
    reduce_cmd=reduce_cmd.reset_reduce, reduce_res=None, reduce_op=maximum, range_start=0,
    on_false_value=FP32_MIN, name=None)
select_reduce(dst, predicate, on_true, on_false, reduce_res=None, reduce_cmd=reduce_cmd.idle,
    reduce_op=maximum, reverse_pred=False, name=None)
sendrecv(src, dst, send_to_rank, recv_from_rank, pipe_id, dma_engine=dma_engine.dma, name=None)
register_alloc(x=None)
register_move(dst, src)
register_load(dst, src)
register_store(dst, src)
nc_find_index8(dst, data, vals, name=None)
nc_match_replace8(dst, data, vals, imm, dst_idx=None, name=None)
nonzero_with_count(dst, src, index_offset=0, padding_val=-1, name=None)
topk(val_dst, idx_dst, src, n, name=None)
"""

LANGUAGE = """
is_hbm(buffer)
is_on_chip(buffer)
is_psum(buffer)
is_sbuf(buffer)
add(x, y, dtype=None)
subtract(x, y, dtype=None)
multiply(x, y, dtype=None)
divide(x, y, dtype=None)
maximum(x, y, dtype=None)
minimum(x, y, dtype=None)
abs_max(x, y, dtype=None)
abs_min(x, y, dtype=None)
abs(x, dtype=None)
square(x, dtype=None)
power(x, y, dtype=None)
equal(x, y, dtype=None)
not_equal(x, y, dtype=None)
less(x, y, dtype=None)
less_equal(x, y, dtype=None)
greater(x, y, dtype=None)
greater_equal(x, y, dtype=None)
bitwise_and(x, y, dtype=None)
bitwise_or(x, y, dtype=None)
bitwise_xor(x, y, dtype=None)
invert(x, dtype=None)
left_shift(x, y, dtype=None)
right_shift(x, y, dtype=None)
logical_and(x, y, dtype=None)
logical_or(x, y, dtype=None)
logical_xor(x, y, dtype=None)
logical_not(x, dtype=None)
exp(x, dtype=None)
log(x, dtype=None)
sqrt(x, dtype=None)
rsqrt(x, dtype=None)
tanh(x, dtype=None)
sigmoid(x, dtype=None)
relu(x, dtype=None)
gelu(x, dtype=None)
gelu_apprx_sigmoid(x, dtype=None)
gelu_apprx_tanh(x, dtype=None)
gelu_dx(x, dtype=None)
gelu_apprx_sigmoid_dx(x, dtype=None)
silu(x, dtype=None)
silu_dx(x, dtype=None)
softplus(x, dtype=None)
mish(x, dtype=None)
erf(x, dtype=None)
erf_dx(x, dtype=None)
reciprocal(x, dtype=None)
copy(x, dtype=None)
sin(x, dtype=None)
cos(x, dtype=None)
tan(x, dtype=None)
arctan(x, dtype=None)
ceil(x, dtype=None)
floor(x, dtype=None)
trunc(x, dtype=None)
negative(x, dtype=None)
sign(x, dtype=None)
fmod(x, y, dtype=None)
mod(x, y, dtype=None)
sum(x, axis, dtype=None, keepdims=False)
max(x, axis, dtype=None, keepdims=False)
min(x, axis, dtype=None, keepdims=False)
mean(x, axis, dtype=None, keepdims=False)
prod(x, axis, dtype=None, keepdims=False)
var(x, axis, dtype=None, keepdims=False)
all(x, axis, dtype=None)
softmax(x, axis=-1, dtype=None)
rms_norm(x, w, axis, n, epsilon=1e-06, dtype=None, compute_dtype=None)
where(condition, x, y, dtype=None)
dropout(x, rate, dtype=None)
ones(shape, dtype, buffer=sbuf, name='')
full(shape, fill_value, dtype, buffer=sbuf, name='')
zeros_like(x, dtype=None, buffer=None, name='')
empty_like(x, dtype=None, buffer=None, name='')
random_seed(seed)
expand_dims(x, axis)
broadcast_to(x, shape, dtype=None)
transpose(x, dtype=None)
matmul(x, y, transpose_x=False)
no_reorder()
load_transpose2d(src, dtype=None)
gather_flattened(data, indices, axis=0, dtype=None)
ds(start, size)
affine_range(start, stop=None, step=1)
sequential_range(start, stop=None, step=1)
static_range(start, stop=None, step=1)
dynamic_range(start, stop=None, step=1)
fori_loop(lower, upper, body_fun, step=1)
while_loop(init, body_fun)
ndarray(shape, dtype, buffer=sbuf, name='', address=None)
zeros(shape, dtype, buffer=sbuf, name='')
load(src, dtype=None)
store(dst, value)
program_id(axis=0)
num_programs(axes=0)
program_ndim()
shared_constant(constant)
shared_identity_matrix(n, dtype=uint8, dst=None)
device_print(print_prefix, tensor)
rand(shape, dtype, buffer=sbuf, name='')
"""

COLLECTIVES = """
all_reduce(srcs, dsts, replica_group, op, priority=None, name=None)
all_gather(srcs, dsts, replica_group, collective_dim, priority=None, name=None)
all_gather_v(srcs, dsts, replica_group, metadata_tensor, recv_counts_known=False,
    has_rdispls=False, priority=None, name=None)
reduce_scatter(srcs, dsts, replica_group, collective_dim, op, priority=None, name=None)
all_to_all(srcs, dsts, replica_group, collective_dim, priority=None, name=None)
all_to_all_v(srcs, dsts, replica_group, metadata_tensor, recv_counts_known=False,
    has_rdispls=False, priority=None, name=None)
collective_permute(srcs, dsts, source_target_pairs, priority=None, name=None)
collective_permute_implicit(srcs_by_channel, dsts_by_channel, replica_group, channel_ids=[0],
    priority=None, name=None)
collective_permute_implicit_reduce(srcs0_by_channel, srcs1_by_channel, dsts_by_channel,
    replica_group, op, channel_ids=[0], priority=None, name=None)
collective_permute_implicit_current_processing_rank_id(iteration_id, replica_group, channel_id=0,
    name=None)
rank_id(name=None)
"""

METHODS = """
is_contiguous()
get_pattern()
is_indirect()
permute(dims)
broadcast(dim, size)
expand_dim(dim)
squeeze_dim(dim)
reshape_dim(dim, shape)
flatten_dims(start_dim, end_dim)
reshape(shape)
rearrange(src_pattern, dst_pattern, fixed_sizes=None)
slice(dim, start, end, step=1)
select(dim, index)
vector_select(dim, vector_offset)
ap(pattern, offset=None, scalar_offset=None, vector_offset=None, indirect_dim=0, dtype=None)
view(dtype)
reinterpret_cast(dtype)
indirect(index, num_elem=None)
"""


def entries(module, table):
    """`(module, name, parameters)` of each line; an indented line continues the one before."""
    lines = []
    for line in table.strip().splitlines():
        if line.startswith(" "):
            lines[-1] += " " + line.strip()
        else:
            lines.append(line)
    return [pytest.param(module, *line.split("(", 1), id=line.split("(")[0]) for line in lines]


def plain_signature(function):
    """As text, without annotations and without `self`."""
    parameters = []
    for parameter in inspect.signature(function).parameters.values():
        default = parameter.default
        if isinstance(default, float) and np.float32(default) == np.finfo(np.float32).min:
            default = Named("FP32_MIN")
        if parameter.name != "self":
            parameters.append(parameter.replace(annotation=parameter.empty, default=default))
    return str(inspect.Signature(parameters))


class Named:
    """Prints as a name."""

    def __init__(self, name):
        self._name = name

    def __repr__(self):
        return self._name


@pytest.mark.parametrize(
    ("module", "name", "parameters"),
    [
        *entries(nisa, ISA),
        *entries(nl, LANGUAGE),
        *entries(ncc, COLLECTIVES),
        *entries(nkisim.NkiTensor, METHODS),
    ],
)
def test_signature(module, name, parameters):
    function = getattr(module, name)
    assert plain_signature(function) == f"({parameters}"
    assert function.__name__ in (name, "view" if name == "reinterpret_cast" else name)


def test_the_tables_are_whole():
    counts = [len(entries(None, table)) for table in (ISA, LANGUAGE, COLLECTIVES, METHODS)]
    assert counts == [52, 103, 11, 18]


def test_jit():
    assert plain_signature(nkisim.jit) == "(fn=None, **kwargs)"
    assert next(iter(inspect.signature(nkisim.simulate).parameters)) == "kernel"


def test_no_public_function_is_without_a_line_here():
    """What NKI does not have would not run on the device."""
    known = {line.split("(")[0] for line in (ISA + LANGUAGE + COLLECTIVES).splitlines()}
    for module in (nisa, nl, ncc):
        for name in module.__all__:
            value = getattr(module, name)
            if inspect.isfunction(value):
                assert name in known or name == "range", name
