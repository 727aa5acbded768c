"""Reports on traces: `make(trace)` times one and says where the time goes."""

from nkisim.report.report import CoreReport, Report, make

__all__ = ["CoreReport", "Report", "make"]
