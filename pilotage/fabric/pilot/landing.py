"""Where a pilot is that was not told: a broker picked its batch queue, and the place itself says which."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from pilotage.fabric.pilot.settings import Place

#: The variable by which a site says `Site/CE/Queue`; what it says goes before all else.
VARIABLE = "PILOTAGE_PLACE"
#: The file by which a node says so whose jobs all come through one queue.
FILE = Path("/etc/pilotage/place")
#: Variables by which batch systems tell their jobs the batch queue: Slurm, PBS, LSF, Grid Engine.
_BATCH_QUEUE = ("SLURM_JOB_PARTITION", "PBS_QUEUE", "LSB_QUEUE", "QUEUE")
_PARTS = 3


def read(file: str) -> Mapping[str, str]:
    """The queues of the resource tree by their batch queues, from a file that holds a JSON object.

    Raises:
        ValueError: It holds none.
    """
    try:
        said = json.loads(Path(file).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(f"--landings: {error}") from None
    if not isinstance(said, dict) or not all(isinstance(each, str) for each in said.values()):
        raise ValueError(f"--landings: {file} does not hold queues by batch queue")
    return said


def find(landings: Mapping[str, str], environment: Mapping[str, str], file: Path = FILE) -> Place:
    """The place, by what the site says, by the batch queue that we run in, or by what the node says.

    Args:
        landings: `Site/CE/Queue` by batch queue; there may be none.
        environment: The process environment.
        file: Of the node.

    Raises:
        ValueError: It cannot be found out; the message says what was looked at.
    """
    if said := environment.get(VARIABLE, "").strip():
        return _place(said, VARIABLE)
    batch_queues = [queue for name in _BATCH_QUEUE if (queue := environment.get(name))]
    for queue in batch_queues:
        if queue in landings:
            return _place(landings[queue], f"the landing for {queue}")
    if file.is_file():
        return _place(file.read_text(encoding="utf-8").strip(), str(file))
    known = f", which is none of {', '.join(sorted(landings))}" if landings else ""
    where = f"in the batch queue {', '.join(batch_queues)}{known}" if batch_queues else "in no batch queue"
    raise ValueError(
        f"cannot tell where this is: {where}, and neither {VARIABLE} nor {file} says it;"
        " give --site, --ce and --queue"
    )


def _place(said: str, by: str) -> Place:
    parts = said.split("/")
    if len(parts) != _PARTS or not all(parts):
        raise ValueError(f"{by}: {said!r:.200} is no address of a queue, which is Site/CE/Queue")
    return Place(*parts)
