"""Step capture: what the modules of two runs give at every step, and where they begin to differ."""

from __future__ import annotations

from wantrn.model.capture.comparison import Comparison, Measurement, Series, compare
from wantrn.model.capture.description import Description, StepFacts
from wantrn.model.capture.errors import CaptureError
from wantrn.model.capture.folder import Capture
from wantrn.model.capture.metrics import Error, overlap
from wantrn.model.capture.plan import CapturePlan, Selection
from wantrn.model.capture.points import DEFAULT_MODULES, Branch, Point
from wantrn.model.capture.recording import Recorder, recording
from wantrn.model.capture.trend import Trend, TrendRules, classify
from wantrn.model.capture.verdict import Failure, Limits, Verdict, judge

__all__ = [
    "Branch",
    "Capture",
    "CaptureError",
    "CapturePlan",
    "Comparison",
    "DEFAULT_MODULES",
    "Description",
    "Error",
    "Failure",
    "Limits",
    "Measurement",
    "Point",
    "Recorder",
    "Selection",
    "Series",
    "StepFacts",
    "Trend",
    "TrendRules",
    "Verdict",
    "classify",
    "compare",
    "judge",
    "overlap",
    "recording",
]
