"""The environment of a payload, built from an allowlist so that no variable of the pilot leaks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from pilotage.fabric.pilot.allotment import Allotment
from pilotage.fabric.pilot.settings import QueuePlace

#: Variables of the pilot that are passed on: the system's, none that could be a secret.
_PASSED_ON = ("PATH", "LANG", "LANGUAGE", "TZ", "USER", "LOGNAME", "SHELL", "LD_LIBRARY_PATH")
_PASSED_ON_PREFIXES = ("LC_",)
#: Prefix of variables that are never passed on, even by --pass-env.
_OURS = "PILOTAGE_"
_PATH = "/usr/local/bin:/usr/bin:/bin"
#: A payload may write lines to the file of this name; the last one is its progress.
PROGRESS = "PILOTAGE_PROGRESS_FILE"
#: Variables with the MB of memory and the number of GPUs allotted to a payload.
RAM, GPUS = "PILOTAGE_JOB_RAM", "PILOTAGE_JOB_GPUS"
#: Names of GPUs: those of the slot in our environment, those of a payload in its own.
DEVICES = "CUDA_VISIBLE_DEVICES"


def payload_environment(
    own: Mapping[str, str],
    *,
    job_id: int,
    place: QueuePlace,
    whole: Allotment,
    share: Allotment,
    home: Path,
    scratch: Path,
    progress: Path,
    stated: Mapping[str, str],
    passed_on: Sequence[str] = (),
) -> dict[str, str]:
    """The variables of one payload, named as in DIRAC where jobs rely on them.

    Args:
        own: The pilot's environment.
        job_id: Id of the job.
        place: Queue of the pilot.
        whole: The whole slot.
        share: The part allotted to the job.
        home: The job's work directory.
        scratch: Its directory for temporary files.
        progress: File to which it may write its progress.
        stated: ExecutionEnvironment of the job.
        passed_on: Further names in `own` to pass on.
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
        "DIRAC_PROCESSORS": str(whole.processors),
        "DIRAC_JOB_PROCESSORS": str(share.processors),
        "DIRAC_WHOLENODE": str(share.whole_node),
        GPUS: str(len(share.gpus)),
        **_memory(share),
        **_devices(whole, share),
        PROGRESS: str(progress),
    }
    settable = {name: value for name, value in stated.items() if name not in ours}
    return {"PATH": _PATH, **kept, **ours, **settable}


def _memory(share: Allotment) -> dict[str, str]:
    return {} if share.ram_mb is None else {RAM: str(share.ram_mb)}


def _devices(whole: Allotment, share: Allotment) -> dict[str, str]:
    """The payload's GPUs, possibly none; no variable where the slot's GPUs are unknown."""
    return {DEVICES: ",".join(share.gpus)} if whole.gpus else {}
