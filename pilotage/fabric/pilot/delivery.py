"""Packing and sending what a job leaves."""

from __future__ import annotations

from pilotage.fabric.pilot import packing
from pilotage.fabric.pilot.description import Description
from pilotage.fabric.pilot.packing import Packed
from pilotage.fabric.pilot.report import Report
from pilotage.fabric.pilot.work_area import WorkArea

_SHOWN = 5


def pack(asked: Description, area: WorkArea, *, limit: int) -> Packed:
    """Pack standard output and error first, then the OutputSandbox.

    Raises:
        OSError: There is no room for the archive.
    """
    wanted = (asked.std_output, asked.std_error, *asked.output_sandbox)
    with area.output.open("wb") as archive:
        return packing.pack(area.home, wanted, archive, limit=limit)


def with_shortcomings(report: Report, packed: Packed) -> Report:
    """The report with what is not in the archive: missing files are noted, too large ones fail the job."""
    if packed.missing:
        report = report.noting(f"missing from OutputSandbox: {_some(packed.missing)}")
    if packed.refused:
        report = report.noting(f"not a file of the work directory: {_some(packed.refused)}")
    if packed.too_large:
        report = report.without_output(f"too large: {_some(packed.too_large)}")
    return report


def _some(names: list[str]) -> str:
    shown = ", ".join(names[:_SHOWN])
    return shown if len(names) <= _SHOWN else f"{shown} and {len(names) - _SHOWN} more"
