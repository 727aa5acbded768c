"""The rules of the linter in one table, and what a finding is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

FrontEnd = Literal["parser", "tracer"]
Level = Literal["error", "warn"]

FRONT_ENDS: dict[FrontEnd, str] = {
    "parser": "the parser front end, NKI 0.6 and older",
    "tracer": "the tracing front end of NKI 0.7",
}


@dataclass(frozen=True)
class Rule:
    """One rule of the linter.

    Attributes:
        name: its identifier, as findings show it
        level: `error` for what the compiler or the device rejects, `warn` for what is deprecated,
            undefined or doubtful
        frontends: the front ends of AWS's compiler that it holds for
        text: what the rule says and what to write instead
    """

    name: str
    level: Level
    frontends: tuple[FrontEnd, ...]
    text: str


@dataclass(frozen=True, order=True)
class Finding:
    """One place in a kernel's source that breaks a rule.

    Attributes:
        file: the source file
        line: counted from 1
        column: counted from 1
        rule: the identifier of the rule
        level: `error` or `warn`
        message: what is wrong, and what to write instead
    """

    file: str
    line: int
    column: int
    rule: str
    level: Level
    message: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}: {self.rule}: {self.message}"


_PARSER: tuple[FrontEnd, ...] = ("parser",)
_TRACER: tuple[FrontEnd, ...] = ("tracer",)
_BOTH: tuple[FrontEnd, ...] = ("parser", "tracer")

# Sources: the NKI language guide and the migration guides (0.1 to 0.7) for the Python that the
# front ends take; the NKI ISA reference, the nki.language reference and the simulator's guide for
# what a simulator takes and the device does not.
RULES: tuple[Rule, ...] = (
    # Python that a front end rejects
    Rule("is-comparison", "error", _PARSER, "`is` and `is not` are not taken; use == or !=."),
    Rule("try-statement", "error", _PARSER, "try and except are not taken."),
    Rule("generator", "error", _PARSER, "yield and generator expressions are not taken."),
    Rule(
        "with-statement",
        "error",
        _PARSER,
        "`with` is taken for nl.no_reorder() only.",
    ),
    Rule("set-use", "error", _PARSER, "Sets are not taken; use a tuple, a list or a dict."),
    Rule("sorting", "error", _PARSER, "sorted() and .sort() are not taken; sort outside."),
    Rule(
        "class-bases",
        "error",
        _PARSER,
        "A class that a kernel uses derives from nl.NKIObject and from nothing else, or from Enum.",
    ),
    Rule("property", "warn", _PARSER, "Properties are not folded; use a method or an attribute."),
    Rule("keyword-only", "error", _PARSER, "A kernel's signature has no `*`."),
    Rule("list-argument", "error", _PARSER, "A kernel takes no list as argument; use a tuple."),
    Rule("dict-keys", "error", _PARSER, "The keys of a dict are strings."),
    Rule(
        "register-control-flow",
        "error",
        _TRACER,
        "A register in if, while, range, int, float or bool raises TypeError; use nl.fori_loop or "
        "nl.while_loop.",
    ),
    Rule(
        "register-while",
        "warn",
        _PARSER,
        "`while register:` is deprecated since NKI 0.6; use nl.while_loop.",
    ),
    Rule("dynamic-range", "warn", _BOTH, "nl.dynamic_range is deprecated since NKI 0.6."),
    Rule(
        "global-state",
        "warn",
        _BOTH,
        "A kernel changes nothing outside itself: compiled kernels are cached by their arguments.",
    ),
    Rule(
        "foreign-call",
        "warn",
        _BOTH,
        "NumPy and torch run at trace time, on host values only; use math, or nl and nisa for "
        "device values.",
    ),
    Rule(
        "print-tensor",
        "warn",
        _BOTH,
        "print() shows a tensor's handle at trace time; nl.device_print shows its values.",
    ),
    Rule(
        "neuronxcc",
        "error",
        _BOTH,
        "neuronxcc.nki in a kernel does not compile since NKI 0.4; import from nki.",
    ),
    Rule(
        "beta1",
        "error",
        _BOTH,
        "mask=, nl.arange, nl.mgrid, nl.par_dim and the copies with dynamic offsets are gone; use "
        "slices and .ap().",
    ),
    # what passes in a simulation and fails on the device
    Rule(
        "register-arithmetic",
        "error",
        _BOTH,
        "The device has no arithmetic or comparison of registers; look values up in a table by "
        ".ap(scalar_offset=register).",
    ),
    Rule(
        "stationary-dims",
        "warn",
        _BOTH,
        "A stationary operand of nc_matmul with more than one free dimension gives wrong results "
        "on Trainium2.",
    ),
    Rule(
        "tensor-broadcast",
        "error",
        _BOTH,
        "Operations on two tensors do not broadcast; use .broadcast(), an access pattern with "
        "step 0, or tensor_scalar for a [P, 1] operand.",
    ),
    Rule("uncompilable", "warn", _BOTH, "nl.divide, nl.fmod and nl.mod do not compile."),
    Rule(
        "power-exponent",
        "warn",
        _BOTH,
        "nl.power takes no number as exponent; use nisa.tensor_scalar or nisa.activation.",
    ),
    Rule(
        "gpsimd-psum",
        "error",
        _BOTH,
        "GpSimd does not reach PSUM (iota, affine_select, tensor_partition_reduce, gathers, "
        "nl.rsqrt since NKI 0.5); copy to SBUF.",
    ),
    Rule("both-psum", "error", _BOTH, "The two data inputs of an instruction are not both PSUM."),
    Rule("dma-psum", "error", _BOTH, "DMA does not reach PSUM since NKI 0.3; copy to SBUF."),
    Rule(
        "partition-start",
        "error",
        _BOTH,
        "Compute engines start at partition 0, 32, 64 or 96 only.",
    ),
    Rule(
        "memset-kind",
        "error",
        _BOTH,
        "memset of an integer tensor takes an integer, and of a packed (x4) tensor only 0.",
    ),
    Rule(
        "hwdge-cast",
        "error",
        _BOTH,
        "Descriptors of the hardware (dge_mode.hwdge) cannot cast: equal dtypes only.",
    ),
    Rule(
        "raw-enum",
        "warn",
        _BOTH,
        "Enumerations are not written as integers since NKI 0.3.",
    ),
    Rule("string-buffer", "error", _BOTH, "Buffers are not strings since NKI 0.3; use nl.sbuf."),
    Rule(
        "output-buffer",
        "error",
        _BOTH,
        "A kernel returns tensors in nl.shared_hbm.",
    ),
    Rule(
        "collective-io",
        "error",
        _BOTH,
        "A collective may not use the kernel's arguments or results; copy through an nl.shared_hbm "
        "tensor with a name.",
    ),
    Rule(
        "collective-name",
        "error",
        _BOTH,
        "An HBM tensor that a collective uses needs name=.",
    ),
    Rule(
        "collective-size",
        "error",
        _BOTH,
        "all_reduce in SBUF needs at least 512 elements a partition; pad.",
    ),
    Rule(
        "no-reorder-loop",
        "error",
        _BOTH,
        "Loops over registers may not stand inside nl.no_reorder().",
    ),
    Rule(
        "unseen-helper",
        "warn",
        _BOTH,
        "A function that the kernel calls has no source to examine.",
    ),
)

RULE: dict[str, Rule] = {rule.name: rule for rule in RULES}


class Report:
    """Collects findings, each once, for one front end or for both.

    Args:
        frontend: the front end whose rules count, None for all.
    """

    def __init__(self, frontend: FrontEnd | None) -> None:
        self._frontend = frontend
        self._found: set[Finding] = set()

    def add(self, name: str, file: str, line: int, column: int, detail: str) -> None:
        """Records that rule `name` is broken at `line` and `column`, both counted from 1."""
        rule = RULE[name]
        if self._frontend is not None and self._frontend not in rule.frontends:
            return
        message = f"{detail}: {rule.text}" if detail else rule.text
        if len(rule.frontends) == 1:
            message += f" ({FRONT_ENDS[rule.frontends[0]]})"
        self._found.add(Finding(file, line, column, name, rule.level, message))

    def findings(self) -> list[Finding]:
        """What was found, by file and line."""
        return sorted(self._found)
