"""How a grid job ended, told from how its local jobs did."""

import json
from collections import Counter
from collections.abc import Sequence

from pilotage.fabric.manager.grid_job import LocalState
from pilotage.fabric.manager.records import Entry, LocalJob
from pilotage.fabric.pilot import report
from pilotage.fabric.pilot.report import Report

#: Some local jobs are done, others are not and never will be.
PARTIAL = "Partially Done"
#: Local jobs that are named.
_SHOWN = 5


def of(entry: Entry, jobs: Sequence[LocalJob]) -> Report:
    """What the service is told."""
    done = sum(each.state is LocalState.DONE for each in jobs)
    counted = f"{done} of {len(jobs)} local jobs done"
    if done == len(jobs):
        said = Report(report.DONE, report.COMPLETE, counted, 0)
        lacking = [each.message for each in jobs if each.message]
        return said.without_output("; ".join(lacking[:_SHOWN])) if lacking else said
    bad = [each for each in jobs if each.state is not LocalState.DONE]
    why = f"{counted}; {_some(bad)}"
    if entry.cancelled:
        return report.failed(report.KILLED, counted)
    code = next((each.exit_code for each in bad if each.exit_code), None)
    return Report(report.FAILED, PARTIAL if done else report.ERRORS, why, code)


def table(jobs: Sequence[LocalJob]) -> bytes:
    """How each local job ended, for who looks into the output."""
    rows = [
        {
            "local_job": each.number,
            "state": each.state,
            "tries": each.tries,
            "stamp": each.stamp,
            "reference": each.reference,
            "exit_code": each.exit_code,
            "message": each.message,
            "size": each.size,
            "progress": [str(phase) for phase in each.progress],
        }
        for each in jobs
    ]
    return json.dumps(rows, indent=1).encode()


def _some(bad: Sequence[LocalJob]) -> str:
    named = [f"{each.number}: {each.message or each.state}"[:150] for each in bad[:_SHOWN]]
    if len(bad) > _SHOWN:
        states = Counter(each.state for each in bad[_SHOWN:])
        named += [f"{number} more {state}" for state, number in sorted(states.items())]
    return "; ".join(named)
