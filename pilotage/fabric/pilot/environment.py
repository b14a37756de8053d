"""The environment of a payload: made anew, so that nothing of ours reaches it by accident."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pilotage.fabric.pilot.settings import Place

#: What payloads may see of ours: the system's, nothing that could be a secret.
_PASSED_ON = ("PATH", "LANG", "LANGUAGE", "TZ", "USER", "LOGNAME", "SHELL", "LD_LIBRARY_PATH")
_PASSED_ON_PREFIXES = ("LC_",)
#: Never handed on, whoever asks for it.
_OURS = "PILOTAGE_"
_PATH = "/usr/local/bin:/usr/bin:/bin"
#: A payload may write lines to the file of this name; the last one is its progress.
PROGRESS = "PILOTAGE_PROGRESS_FILE"
#: MB of memory and the number of GPUs that are kept for a payload.
RAM, GPUS = "PILOTAGE_JOB_RAM", "PILOTAGE_JOB_GPUS"


@dataclass(frozen=True)
class Share:
    """What one job may use of the slot."""

    processors: int
    ram_mb: int | None = None  #: None: nothing was said of it
    gpus: int | None = None
    whole_node: bool = False


def for_payload(
    own: Mapping[str, str],
    *,
    job_id: int,
    place: Place,
    processors: int,
    share: Share,
    home: Path,
    scratch: Path,
    progress: Path,
    stated: Mapping[str, str],
    passed_on: Sequence[str] = (),
) -> dict[str, str]:
    """The variables of one payload.

    Args:
        own: The pilot's environment.
        job_id: Of the job.
        place: The batch queue we run in.
        processors: Of the slot.
        share: Of it, what the job may use.
        home: The job's work directory.
        scratch: Its directory for temporary files.
        progress: File to which it may write how far it is.
        stated: ExecutionEnvironment of the job.
        passed_on: Further names of `own` that payloads may see.

    Source: DIRAC's names for what a job wants to know.
    """
    wanted = {*_PASSED_ON, *passed_on}
    kept = {
        name: value
        for name, value in own.items()
        if (name in wanted or name.startswith(_PASSED_ON_PREFIXES)) and not name.startswith(_OURS)
    }
    ours = {
        "HOME": str(home),
        "PWD": str(home),
        "TMPDIR": str(scratch),
        "JOBID": str(job_id),
        "DIRACSITE": place.site,
        "DIRAC_CE": place.ce,
        "DIRAC_QUEUE": place.queue,
        "DIRAC_PROCESSORS": str(processors),
        "DIRAC_JOB_PROCESSORS": str(share.processors),
        "DIRAC_WHOLENODE": str(share.whole_node),
        **_where_known({RAM: share.ram_mb, GPUS: share.gpus}),
        PROGRESS: str(progress),
    }
    settable = {name: value for name, value in stated.items() if name not in ours}
    return {"PATH": _PATH, **kept, **ours, **settable}


def _where_known(numbers: Mapping[str, int | None]) -> dict[str, str]:
    return {name: str(number) for name, number in numbers.items() if number is not None}
