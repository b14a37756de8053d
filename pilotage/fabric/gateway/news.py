"""How far a grid job is, in the words of a heartbeat."""

from collections.abc import Mapping

from pilotage.fabric.manager.grid_job import GridJob, Phase, Taken
from pilotage.fabric.pilot import tail
from pilotage.fabric.runner.progress import Progress

#: What a grid job is in when it has just come.
FIRST = Phase.SUBMITTING
#: Numbers beyond this are not exact in every JSON reader; the service takes none.
_LARGEST = 2**53
#: Characters that the service takes.
_LONGEST = 2000
_LONGEST_TAIL = 16_384


def of(grid_job: GridJob) -> Mapping[str, object]:
    """What a heartbeat tells of it."""
    return {
        "progress": tail.printable(_in_words(grid_job), _LONGEST),
        "output_tail": tail.printable(grid_job.tail[-_LONGEST_TAIL:], _LONGEST_TAIL),
        "phases": [_phase(each, grid_job.taken) for each in grid_job.progress],
        "local_jobs": {state.value: number for state, number in grid_job.local.items() if number},
    }


def _phase(phase: Progress, taken: Taken) -> Mapping[str, object]:
    """One phase; one that goes over all that the user asks for counts events."""
    unit = "events" if phase.of == taken.description.get("Events") else ""
    done, of = min(phase.done, _LARGEST), min(phase.of, _LARGEST)
    return {"name": phase.name, "done": done, "of": of, "unit": unit}


def _in_words(grid_job: GridJob) -> str:
    said = [f"{grid_job.phase}, {grid_job.aggregate}"]
    said += [f"{number} local jobs {state}" for state, number in sorted(grid_job.local.items()) if number]
    said += [str(each) for each in grid_job.progress]
    return "; ".join([*said, *filter(None, [grid_job.problem])])
