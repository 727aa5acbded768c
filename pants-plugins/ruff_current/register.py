"""`ruff check` and `ruff format` of a current ruff.

The backend that Pants 2.17 has runs `ruff FILE`, which ruff 0.5 removed, and it cannot format. This
one takes its place and keeps its options, the [ruff] section of pants.toml.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pants.backend.python.lint.ruff import skip_field, subsystem
from pants.backend.python.lint.ruff.subsystem import Ruff, RuffFieldSet
from pants.backend.python.util_rules import pex
from pants.backend.python.util_rules.pex import PexRequest, VenvPex, VenvPexProcess
from pants.core.goals.fix import FixResult, FixTargetsRequest
from pants.core.goals.fmt import FmtResult, FmtTargetsRequest
from pants.core.goals.lint import LintResult, LintTargetsRequest
from pants.core.util_rules.config_files import ConfigFiles, ConfigFilesRequest
from pants.core.util_rules.partitions import PartitionerType
from pants.core.util_rules.source_files import SourceFiles, SourceFilesRequest
from pants.engine.fs import Digest, MergeDigests
from pants.engine.internals.native_engine import Snapshot
from pants.engine.process import FallibleProcessResult, ProcessExecutionFailure
from pants.engine.rules import Get, MultiGet, collect_rules, rule
from pants.util.logging import LogLevel
from pants.util.meta import classproperty


class RuffCheckFix(FixTargetsRequest):
    field_set_type = RuffFieldSet
    tool_subsystem = Ruff
    partitioner_type = PartitionerType.DEFAULT_SINGLE_PARTITION

    @classproperty
    def tool_name(cls) -> str:
        return "ruff check --fix"


class RuffFormat(FmtTargetsRequest):
    field_set_type = RuffFieldSet
    tool_subsystem = Ruff
    partitioner_type = PartitionerType.DEFAULT_SINGLE_PARTITION

    @classproperty
    def tool_name(cls) -> str:
        return "ruff format"


class RuffCheck(LintTargetsRequest):
    field_set_type = RuffFieldSet
    tool_subsystem = Ruff
    partitioner_type = PartitionerType.DEFAULT_SINGLE_PARTITION


@dataclass(frozen=True)
class _Run:
    snapshot: Snapshot
    command: tuple[str, ...]


@rule(level=LogLevel.DEBUG)
async def run_ruff(request: _Run, ruff: Ruff) -> FallibleProcessResult:
    ruff_pex, config = await MultiGet(
        Get(VenvPex, PexRequest, ruff.to_pex_request()),
        Get(ConfigFiles, ConfigFilesRequest, ruff.config_request(request.snapshot.dirs)),
    )
    digest = await Get(Digest, MergeDigests((request.snapshot.digest, config.snapshot.digest)))
    result = await Get(
        FallibleProcessResult,
        VenvPexProcess(
            ruff_pex,
            argv=(
                *request.command,
                "--force-exclude",
                "--no-cache",
                *((f"--config={ruff.config}",) if ruff.config else ()),
                *ruff.args,
                *request.snapshot.files,
            ),
            input_digest=digest,
            output_files=request.snapshot.files,
            description=f"Run ruff {' '.join(request.command)}",
            level=LogLevel.DEBUG,
        ),
    )
    # 1 is findings; more is ruff itself failing, which `fix` must not hide
    if result.exit_code > 1:
        raise ProcessExecutionFailure(
            result.exit_code,
            result.stdout,
            result.stderr,
            f"ruff {' '.join(request.command)}",
            keep_sandboxes=None,  # type: ignore[arg-type]
        )
    return result


@rule(desc="Fix with ruff check", level=LogLevel.DEBUG)
async def fix(request: RuffCheckFix.Batch) -> FixResult:
    run = _Run(request.snapshot, ("check", "--fix"))
    result = await Get(FallibleProcessResult, _Run, run)
    return await FixResult.create(request, result, strip_chroot_path=True)


@rule(desc="Format with ruff", level=LogLevel.DEBUG)
async def fmt(request: RuffFormat.Batch) -> FmtResult:
    result = await Get(FallibleProcessResult, _Run, _Run(request.snapshot, ("format",)))
    return await FmtResult.create(request, result, strip_chroot_path=True)


@rule(desc="Lint with ruff check", level=LogLevel.DEBUG)
async def lint(request: RuffCheck.Batch[RuffFieldSet, Any]) -> LintResult:
    sources = await Get(SourceFiles, SourceFilesRequest(fs.source for fs in request.elements))
    result = await Get(FallibleProcessResult, _Run, _Run(sources.snapshot, ("check",)))
    return LintResult.create(request, result, strip_chroot_path=True)


def rules() -> tuple[Any, ...]:
    return (
        *collect_rules(),
        *RuffCheckFix.rules(),
        *RuffFormat.rules(),
        *RuffCheck.rules(),
        *pex.rules(),
        *skip_field.rules(),
        *subsystem.rules(),
    )
