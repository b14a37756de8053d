"""What is submitted for a local job: one text that brings its order along and fetches the archive."""

import shlex
from collections.abc import Mapping
from typing import Any

from pilotage.fabric.director.outlets import Outlet
from pilotage.fabric.manager.planning import Piece
from pilotage.fabric.manager.records import Entry, LocalJob
from pilotage.fabric.manager.shared_area import SharedArea
from pilotage.fabric.manager.station import Habits
from pilotage.fabric.node_script import NodeScript
from pilotage.fabric.runner.order import Order

#: Jobs of all VOs run as one account, which may change the archive; the script is the batch system's own.
_FETCH = """\
cp {archive} "$area/job.pyz" && {{
  [ "$(sha256sum <"$area/job.pyz")" = "{digest}  -" ] ||
  {{ echo "local-job: "{archive}" was changed since this job was submitted" >&2; false; }}
}}"""


def text(entry: Entry, job: LocalJob, piece: Piece, area: SharedArea, outlet: Outlet, habits: Habits) -> str:
    """The script of one try of a local job."""
    order = Order(
        job_id=entry.taken.job_id,
        number=job.number,
        place=_place(outlet.queue),
        description=_description(entry, job, piece),
        marks=area.marks(job),
        files=piece.files,
        processors=outlet.resources.cores,
        memory=outlet.resources.memory,
        wall_time=outlet.resources.wall_time,
        beat=habits.beat,
        grace=habits.grace,
        sandbox_limit=habits.sandbox_limit,
        output_limit=habits.local_output_limit,
    )
    return NodeScript(
        name="local-job",
        about=f"Local job {job.number} of grid job {entry.taken.job_id}.",
        program="job.pyz",
        words=['"$area/order.json"'],
        files={"order.json": order.as_json()},
        fetch=_FETCH.format(archive=shlex.quote(area.archive), digest=entry.digest),
    ).text()


def _description(entry: Entry, job: LocalJob, piece: Piece) -> Mapping[str, Any]:
    """The description of the grid job, with the command of this local job."""
    stated = entry.taken.description
    own = stated.get("ExecutionEnvironment")
    numbers = {"LOCAL_JOB": str(job.number), "LOCAL_JOBS": str(entry.number)}
    return {
        **stated,
        "Executable": piece.command.words[0],
        "Arguments": list(piece.command.words[1:]),
        "ExecutionEnvironment": {
            **(own if isinstance(own, Mapping) else {}),
            **numbers,
            **piece.command.environment,
        },
    }


def _place(queue: str) -> tuple[str, str, str]:
    site, ce, name = queue.split("/", 2)
    return site, ce, name
