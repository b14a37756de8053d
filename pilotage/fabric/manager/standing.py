"""How a grid job stands, by what the book has of it."""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from pilotage.fabric.manager import records
from pilotage.fabric.manager.grid_job import GridJob, LocalState, Phase
from pilotage.fabric.manager.records import Entry, LocalJob
from pilotage.fabric.runner import progress


def standing(entry: Entry, local_jobs: Sequence[LocalJob]) -> GridJob:
    """A grid job as it stands by what the book has."""
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


def _phase(entry: Entry, local_jobs: Sequence[LocalJob]) -> Phase:
    waiting = Counter(each.was_submitted for each in local_jobs if each.is_to_submit)
    return records.phase(entry, waiting[False], waiting[True])


def _missing(local_jobs: Sequence[LocalJob]) -> Mapping[str, int]:
    """By phase of the payload, the units of local jobs that have not said anything of it yet."""
    names = {each.name for job in local_jobs for each in job.progress}
    missing: Counter[str] = Counter()
    for job in local_jobs:
        for name in names - {each.name for each in job.progress}:
            missing[name] += job.size or 0
    return missing
