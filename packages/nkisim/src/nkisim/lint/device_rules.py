"""Rules about instructions: what passes in a simulation and fails on the device."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from nkisim.lint.values import Known, Path, Register, Several, Tensor, Value, integers

# rule and detail
Broken = tuple[str, str]


@dataclass(frozen=True)
class Call:
    """A call of a function of NKI.

    Attributes:
        path: `nl.`, `nisa.` or `ncc.` and the function's name
        arguments: what is known about each, by parameter name
        names: the operands as the source spells them, by parameter name
    """

    path: str
    arguments: dict[str, Value]
    names: dict[str, str]

    def tensor(self, name: str) -> Tensor | None:
        value = self.arguments.get(name)
        return value if isinstance(value, Tensor) else None

    def tensors(self, name: str) -> list[Tensor]:
        return list(_flatten(self.arguments.get(name)))


# The positional parameters of the functions that are checked (NKI 0.6 signatures).
PARAMETERS: dict[str, tuple[str, ...]] = {
    "nl.ndarray": ("shape", "dtype", "buffer", "name", "address"),
    "nl.zeros": ("shape", "dtype", "buffer", "name"),
    "nl.ones": ("shape", "dtype", "buffer", "name"),
    "nl.full": ("shape", "fill_value", "dtype", "buffer", "name"),
    "nl.rand": ("shape", "dtype", "buffer", "name"),
    "nl.store": ("dst", "value"),
    "nl.ds": ("start", "size"),
    "nl.fori_loop": ("lower", "upper", "body_fun", "step"),
    "nl.while_loop": ("init", "body_fun"),
    "nisa.dma_copy": ("dst", "src", "priority", "oob_mode", "dge_mode", "engine"),
    "nisa.dma_transpose": ("dst", "src", "axes", "priority", "dge_mode", "oob_mode"),
    "nisa.dma_compute": ("dst", "srcs", "reduce_op", "scales"),
    "nisa.memset": ("dst", "value", "engine"),
    "nisa.tensor_copy": ("dst", "src", "engine"),
    "nisa.nc_matmul": ("dst", "stationary", "moving"),
    "nisa.nc_transpose": ("dst", "data", "engine"),
    "nisa.tensor_tensor": ("dst", "data1", "data2", "op", "engine"),
    "nisa.tensor_scalar": ("dst", "data", "op0", "operand0"),
    "nisa.scalar_tensor_tensor": ("dst", "data", "op0", "operand0", "op1", "operand1"),
    "nisa.tensor_tensor_scan": ("dst", "data0", "data1", "initial", "op0", "op1"),
    "nisa.tensor_copy_predicated": ("dst", "src", "predicate"),
    "nisa.select_reduce": ("dst", "predicate", "on_true", "on_false"),
    "nisa.tensor_reduce": ("dst", "op", "data", "axis"),
    "nisa.tensor_partition_reduce": ("dst", "op", "data"),
    "nisa.activation": ("dst", "op", "data", "bias", "scale"),
    "nisa.activation_reduce": ("dst", "op", "data", "reduce_op", "reduce_res"),
    "nisa.reciprocal": ("dst", "data"),
    "nisa.iota": ("dst", "pattern", "offset", "channel_multiplier"),
    "nisa.affine_select": ("dst", "pattern", "channel_multiplier", "on_true_tile"),
    "nisa.local_gather": ("dst", "src_buffer", "index"),
    "nisa.nc_n_gather": ("dst", "data", "indices"),
    "nisa.nonzero_with_count": ("dst", "src"),
    "nisa.sequence_bounds": ("dst", "segment_ids"),
    "nisa.topk": ("val_dst", "idx_dst", "src", "n"),
}
_BINARY = (
    *("add", "subtract", "multiply", "divide", "power", "fmod", "mod"),
    *("maximum", "minimum", "abs_max", "abs_min"),
    *("equal", "not_equal", "less", "less_equal", "greater", "greater_equal"),
    *("bitwise_and", "bitwise_or", "bitwise_xor", "left_shift", "right_shift"),
    *("logical_and", "logical_or", "logical_xor"),
)
PARAMETERS |= {f"nl.{name}": ("x", "y", "dtype") for name in _BINARY}
PARAMETERS |= {f"nl.{name}": ("x", "dtype") for name in ("rsqrt", "copy")}

_TWO_INPUTS = {
    "nisa.tensor_tensor": ("data1", "data2"),
    "nisa.scalar_tensor_tensor": ("data", "operand1"),
    "nisa.tensor_tensor_scan": ("data0", "data1"),
    "nisa.tensor_copy_predicated": ("src", "predicate"),
    "nisa.select_reduce": ("on_true", "predicate"),
}
_NO_BROADCAST = {
    "nisa.tensor_tensor": ("data1", "data2"),
    "nisa.scalar_tensor_tensor": ("data", "operand1"),
    **{f"nl.{name}": ("x", "y") for name in _BINARY},
}
_GPSIMD = (
    "nisa.iota",
    "nisa.affine_select",
    "nisa.tensor_partition_reduce",
    "nisa.local_gather",
    "nisa.nc_n_gather",
    "nisa.nonzero_with_count",
    "nisa.sequence_bounds",
    "nisa.topk",
    "nl.rsqrt",
)
_GPSIMD_ENGINES = (Path("nisa.engine.gpsimd"), Path("nisa.gpsimd_engine"))
_DMA = ("nisa.dma_copy", "nisa.dma_transpose", "nisa.dma_compute", "nl.store")
_ENUMS = ("engine", "dge_mode", "oob_mode", "reduce_cmd", "perf_mode", "dma_engine")
_INTEGERS = ("int8", "int16", "int32", "uint8", "uint16", "uint32")
_STARTS = (0, 32, 64, 96)
_GONE = (
    "nl.arange",
    "nl.mgrid",
    "nl.par_dim",
    "nl.spmd_dim",
    "nisa.tensor_copy_dynamic_src",
    "nisa.tensor_copy_dynamic_dst",
)


def check_call(call: Call) -> Iterator[Broken]:
    """The rules that `call` breaks."""
    for check in _CHECKS:
        yield from check(call)


def check_path(path: str) -> Iterator[Broken]:
    """The rules that naming `path` breaks, as a call or as an opcode."""
    if path in ("nl.divide", "nl.fmod", "nl.mod"):
        yield "uncompilable", path
    if path in _GONE:
        yield "beta1", path
    if path == "nl.dynamic_range":
        yield "dynamic-range", ""
    if path.split(".")[0] == "neuronxcc":
        yield "neuronxcc", path


def _arguments(call: Call) -> Iterator[Broken]:
    if "mask" in call.arguments and call.path.startswith(("nl.", "nisa.")):
        yield "beta1", f"mask= of {call.path}"
    for name in _ENUMS:
        value = call.arguments.get(name)
        if isinstance(value, Known) and type(value.value) is int:
            yield "raw-enum", f"{name}={value.value}"
    buffer = call.arguments.get("buffer")
    if call.path.startswith("nl.") and isinstance(buffer, Known) and isinstance(buffer.value, str):
        yield "string-buffer", f"buffer={buffer.value!r}"


def _matmul(call: Call) -> Iterator[Broken]:
    stationary = call.tensor("stationary")
    if call.path != "nisa.nc_matmul" or stationary is None or stationary.shape is None:
        return
    # double_row reads two rows of K from a dimension of its own
    if len(stationary.shape) > 2 and "perf_mode" not in call.arguments:
        yield "stationary-dims", f"{call.names['stationary']} has shape {_shape(stationary)}"


def _broadcast(call: Call) -> Iterator[Broken]:
    first, second = (call.tensor(name) for name in _NO_BROADCAST.get(call.path, ("", "")))
    if first is None or second is None:
        return
    sizes = _elements(first), _elements(second)
    if None not in sizes and sizes[0] != sizes[1]:
        names = _NO_BROADCAST[call.path]
        yield (
            "tensor-broadcast",
            f"{call.names[names[0]]} is {_shape(first)}, {call.names[names[1]]} {_shape(second)}",
        )


def _power(call: Call) -> Iterator[Broken]:
    if call.path == "nl.power" and isinstance(call.arguments.get("y"), Known):
        yield "power-exponent", call.names["y"]


def _buffers(call: Call) -> Iterator[Broken]:
    inputs = [call.tensor(name) for name in _TWO_INPUTS.get(call.path, ())]
    if inputs and all(tensor is not None and tensor.buffer == "psum" for tensor in inputs):
        yield "both-psum", " and ".join(call.names[name] for name in _TWO_INPUTS[call.path])
    on_gpsimd = call.path in _GPSIMD or call.arguments.get("engine") in _GPSIMD_ENGINES
    for name in call.arguments:
        if any(tensor.buffer == "psum" for tensor in call.tensors(name)):
            if on_gpsimd:
                yield "gpsimd-psum", f"{call.names[name]} of {call.path}"
            if call.path in _DMA:
                yield "dma-psum", f"{call.names[name]} of {call.path}"


def _starts(call: Call) -> Iterator[Broken]:
    if not call.path.startswith("nisa.") or call.path in (*_DMA, "nisa.sendrecv"):
        return
    for name in call.arguments:
        tensor = call.tensor(name)
        if tensor is None or tensor.buffer not in ("sbuf", "psum") or tensor.start is None:
            continue
        if tensor.start not in _STARTS:
            yield "partition-start", f"{call.names[name]} starts at partition {tensor.start}"


def _memset(call: Call) -> Iterator[Broken]:
    dst, value = call.tensor("dst"), call.arguments.get("value")
    if call.path != "nisa.memset" or dst is None or not isinstance(value, Known):
        return
    if dst.dtype in _INTEGERS and isinstance(value.value, float):
        yield "memset-kind", f"{call.names['dst']} is {dst.dtype}, the value {value.value}"
    if dst.dtype is not None and dst.dtype.endswith("_x4") and value.value != 0:
        yield "memset-kind", f"{call.names['dst']} is {dst.dtype}, the value {value.value}"


def _hwdge(call: Call) -> Iterator[Broken]:
    mode = call.arguments.get("dge_mode")
    if not isinstance(mode, Path) or not mode.path.endswith("dge_mode.hwdge"):
        return
    dst, src = call.tensor("dst"), call.tensor("src")
    if dst is None or src is None or None in (dst.dtype, src.dtype) or dst.dtype == src.dtype:
        return
    yield "hwdge-cast", f"{call.names['src']} is {src.dtype}, {call.names['dst']} {dst.dtype}"


def _collective(call: Call) -> Iterator[Broken]:
    if not call.path.startswith("ncc."):
        return
    for name in call.arguments:
        if not name.startswith(("srcs", "dsts")):
            continue
        for tensor in call.tensors(name):
            if tensor.parameter:
                yield "collective-io", f"{tensor.origin} is an argument of the kernel"
            elif tensor.hbm and not tensor.named:
                yield "collective-name", f"{call.names[name]} of {call.path}"
            small = call.path == "ncc.all_reduce" and tensor.buffer == "sbuf"
            elements = _elements(tensor)
            if small and elements is not None and elements < 512:
                yield "collective-size", f"{call.names[name]} has {elements}"


_CHECKS: tuple[Callable[[Call], Iterator[Broken]], ...] = (
    _arguments,
    _matmul,
    _broadcast,
    _power,
    _buffers,
    _starts,
    _memset,
    _hwdge,
    _collective,
)


def result(call: Call) -> Value:
    """The value that `call` returns: a tensor or a register, where that can be said."""
    if call.path in _ALLOCATIONS:
        return Tensor(
            "",
            buffer=_buffer(call.arguments.get("buffer", Path("nl.sbuf"))),
            dtype=dtype_name(call.arguments.get("dtype")),
            shape=integers(call.arguments.get("shape")),
            named="name" in call.arguments,
        )
    if call.path in _REGISTERS:
        return Register()
    return Tensor("", buffer="sbuf") if call.path in _TILES else None


_ALLOCATIONS = ("nl.ndarray", "nl.zeros", "nl.ones", "nl.full", "nl.rand")
_REGISTERS = (
    "nisa.register_alloc",
    "ncc.rank_id",
    "ncc.collective_permute_implicit_current_processing_rank_id",
)
_TILES = ("nl.load", "nl.copy", "nl.rsqrt", *(f"nl.{name}" for name in _BINARY))


def dtype_name(value: Value) -> str | None:
    """The name of the dtype that `value` is."""
    if isinstance(value, Path) and value.path.startswith("nl."):
        return value.path.removeprefix("nl.")
    if isinstance(value, Known) and isinstance(value.value, str):
        return str.__str__(value.value)
    return None


def _buffer(value: Value) -> str | None:
    if not isinstance(value, Path):
        return None
    name = value.path.split(".")[-1]
    return "private_hbm" if name == "hbm" else name


def _flatten(value: Value) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Several):
        for item in value.items:
            yield from _flatten(item)


def _elements(tensor: Tensor) -> int | None:
    """Elements per partition."""
    if tensor.shape is None:
        return None
    count = 1
    for extent in tensor.shape[1:]:
        if extent is None:
            return None
        count *= extent
    return count


def _shape(tensor: Tensor) -> str:
    extents = ["?" if extent is None else str(extent) for extent in tensor.shape or ()]
    return f"[{', '.join(extents)}]"
