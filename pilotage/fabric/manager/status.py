"""Status and outcome of a grid job, computed from the journal's records of its local jobs."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from pilotage.fabric.manager import records
from pilotage.fabric.manager.grid_job import GridJob, LocalState, ManagerPhase
from pilotage.fabric.manager.records import GridJobEntry, LocalJob
from pilotage.fabric.pilot.payload import payload
from pilotage.fabric.pilot.payload.payload import Report
from pilotage.fabric.runner import progress


def grid_job_status(entry: GridJobEntry, local_jobs: Sequence[LocalJob]) -> GridJob:
    """The current status of a grid job."""
    return GridJob(
        taken=entry.taken,
        phase=_phase(entry, local_jobs),
        local=Counter(each.state for each in local_jobs),
        progress=progress.summed([each.progress for each in local_jobs], _missing(local_jobs)),
        output=None if entry.output is None else Path(entry.output),
        outcome=entry.outcome,
        problem=entry.problem,
        tail=next((each.tail for each in local_jobs if each.tail and each.state is LocalState.RUNNING), ""),
    )


def _phase(entry: GridJobEntry, local_jobs: Sequence[LocalJob]) -> ManagerPhase:
    waiting = Counter(each.was_submitted for each in local_jobs if each.is_to_submit)
    return records.phase(entry, waiting[False], waiting[True])


def _missing(local_jobs: Sequence[LocalJob]) -> Mapping[str, int]:
    """By phase of the payload, the units of local jobs that have not reported it yet."""
    names = {each.name for job in local_jobs for each in job.progress}
    missing: Counter[str] = Counter()
    for job in local_jobs:
        for name in names - {each.name for each in job.progress}:
            missing[name] += job.size or 0
    return missing


#: Minor status if some local jobs are done and others failed.
PARTIAL = "Partially Done"
#: Maximum local jobs named in a message.
_SHOWN = 5


def job_outcome(entry: GridJobEntry, jobs: Sequence[LocalJob]) -> Report:
    """The final report on a grid job whose local jobs have all ended."""
    done = sum(each.state is LocalState.DONE for each in jobs)
    counted = f"{done} of {len(jobs)} local jobs done"
    if done == len(jobs):
        said = Report(payload.DONE, payload.COMPLETE, counted, 0)
        lacking = [each.message for each in jobs if each.message]
        return said.without_output("; ".join(lacking[:_SHOWN])) if lacking else said
    bad = [each for each in jobs if each.state is not LocalState.DONE]
    why = f"{counted}; {_some(bad)}"
    if entry.cancelled:
        return payload.failure_report(payload.KILLED, counted)
    code = next((each.exit_code for each in bad if each.exit_code), None)
    return Report(payload.FAILED, PARTIAL if done else payload.ERRORS, why, code)


def outcome_table(jobs: Sequence[LocalJob]) -> bytes:
    """The end of each local job as JSON, for readers of the output."""
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
