"""The environment of a payload: made anew, so that nothing of ours reaches it by accident."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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


def for_payload(
    own: Mapping[str, str],
    *,
    job_id: int,
    place: Place,
    processors: int,
    job_processors: int,
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
        job_processors: That the job may use.
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
        "DIRAC_JOB_PROCESSORS": str(job_processors),
        "DIRAC_WHOLENODE": "False",
        PROGRESS: str(progress),
    }
    settable = {name: value for name, value in stated.items() if name not in ours}
    return {"PATH": _PATH, **kept, **ours, **settable}
