"""The resources of the batch job around the pilot, by batch systems that state them in no variable.

HTCondor has them in files with the ClassAds of slot and job; Grid Engine and PBS are queried for the job.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from pilotage.fabric.pilot.node.commands import read_output

#: Timeout of such a query in seconds.
_PATIENCE = 10.0
#: Files with the ClassAds of the slot and of the job. Source: HTCondor, environment of jobs.
_ADS = ("_CONDOR_MACHINE_AD", "_CONDOR_JOB_AD")
#: More digits are no amount of anything.
_AD_LINE = re.compile(r"^\s*(\w+)\s*=\s*([0-9]{1,18})\s*$", re.MULTILINE)
#: `1:00:00`, `90:00` or seconds.
_TIME = re.compile(r"(?:(?:(\d{1,9}):)?(\d{1,9}):)?(\d{1,9})")
_SIZE = re.compile(r"(\d{1,18}(?:\.\d{1,9})?)\s*([kmgt]?)(b?)", re.IGNORECASE)
_UNITS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}
_OF_GRID_ENGINE = re.compile(r"^hard[ _]resource_list:\s*(\S+)", re.MULTILINE)
_OF_PBS = re.compile(r"^\s*Resource_List\.(\w+) = (\S+)", re.MULTILINE)


@dataclass(frozen=True)
class BatchResources:
    """What batch systems state about a job; several statements of one kind may differ, the least counts."""

    cores: tuple[int, ...] = ()
    ram_mb: tuple[int, ...] = ()
    scratch_mb: tuple[int, ...] = ()
    seconds: tuple[int, ...] = ()  #: of wall time from the start of the pilot
    ends: tuple[int, ...] = ()  #: seconds since the epoch


def read_resources(environment: Mapping[str, str]) -> BatchResources:
    """The resources of the batch job; empty where there is none, or its batch system does not answer."""
    if any(environment.get(name) for name in _ADS):
        return _read_ads(environment)
    if environment.get("PBS_JOBID"):
        return _query_pbs(environment)
    if environment.get("SGE_ROOT") and environment.get("JOB_ID"):
        return _query_grid_engine(environment)
    return BatchResources()


def _read_ads(environment: Mapping[str, str]) -> BatchResources:
    slot, job = (dict(_list_numbers(environment.get(name, ""))) for name in _ADS)
    lengths = [job[name] for name in ("allowedjobduration", "allowedexecuteduration") if name in job]
    ends = [job["jobcurrentstartdate"] + length for length in lengths if "jobcurrentstartdate" in job]
    # In KiB. A job that asks for no disk gets as much as its files take at its start, and is not held to it.
    disk = (*_pick(slot, "disk"), *_pick(job, "diskprovisioned")) if "requestdisk" in job else ()
    return BatchResources(
        cores=tuple(_pick(slot, "cpus")),
        ram_mb=(*_pick(slot, "memory"), *_pick(job, "memoryprovisioned")),
        scratch_mb=tuple(mb for each in disk if (mb := each >> 10)),
        ends=(*ends, *_pick(slot, "glidein_todie")),
    )


def _pick(ad: Mapping[str, int], name: str) -> Iterator[int]:
    if ad.get(name):
        yield ad[name]


def _list_numbers(file: str) -> Iterator[tuple[str, int]]:
    try:
        text = Path(file).read_text(encoding="utf-8", errors="replace") if file else ""
    except OSError:
        return
    for name, number in _AD_LINE.findall(text):
        yield name.lower(), int(number)


def _query_pbs(environment: Mapping[str, str]) -> BatchResources:
    stated = dict(
        _OF_PBS.findall(read_output(("qstat", "-f", environment["PBS_JOBID"]), environment, _PATIENCE))
    )
    return BatchResources(
        ram_mb=tuple(each for name in ("mem", "vmem") for each in read_size(stated.get(name, ""))),
        scratch_mb=tuple(read_size(stated.get("file", ""))),
        seconds=tuple(_read_time(stated.get("walltime", ""))),
    )


def _query_grid_engine(environment: Mapping[str, str]) -> BatchResources:
    """Its limits of memory are those of a slot, of which a job has one for each core."""
    found = _OF_GRID_ENGINE.search(
        read_output(("qstat", "-j", environment["JOB_ID"]), environment, _PATIENCE)
    )
    pairs = (part.partition("=") for part in (found[1].split(",") if found else ()))
    stated = {name: value for name, _, value in pairs}
    slots = int(environment["NSLOTS"]) if environment.get("NSLOTS", "").isdecimal() else 1
    return BatchResources(
        ram_mb=tuple(
            slots * each for name in ("h_vmem", "h_rss") for each in read_size(stated.get(name, ""))
        ),
        seconds=tuple(each for name in ("h_rt", "s_rt") for each in _read_time(stated.get(name, ""))),
    )


def read_size(text: str) -> Iterator[int]:
    """MB of a size such as `4gb`, `4G` or bytes; of anything else none."""
    found = _SIZE.fullmatch(text)
    if found and (size := int(float(found[1]) * 1024 ** _UNITS[found[2].lower()]) >> 20):
        yield size


def _read_time(text: str) -> Iterator[int]:
    if found := _TIME.fullmatch(text):
        hours, minutes, seconds = (int(each or 0) for each in found.groups())
        if total := (hours * 60 + minutes) * 60 + seconds:
            yield total
