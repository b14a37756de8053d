"""How far a grid job is, in the words of a heartbeat."""

from collections.abc import Mapping

from pilotage.fabric.manager.grid_job import GridJob, Phase
from pilotage.fabric.pilot import tail

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
        "phases": [
            {"name": each.name, "done": min(each.done, _LARGEST), "of": min(each.of, _LARGEST)}
            for each in grid_job.progress
        ],
        "local_jobs": {state.value: number for state, number in grid_job.local.items() if number},
    }


def _in_words(grid_job: GridJob) -> str:
    said = [f"{grid_job.phase}, {grid_job.aggregate}"]
    said += [f"{number} local jobs {state}" for state, number in sorted(grid_job.local.items()) if number]
    said += [str(each) for each in grid_job.progress]
    return "; ".join([*said, *filter(None, [grid_job.problem])])
