"""APEL's messages of usage records, and the directories from which its SSM sends them.

A message is a header and up to 1,000 records of lines `Name: value`, each ended by `%%`. Wall time is that of
the slot, not multiplied by its processors; normalised times are multiplied by the benchmark of one core.

Source: EGI's APEL/MessageFormat, and the records of github.com/apel/apel (job 0.3, summary 0.2, normalised
summary 0.4); python-dirq's QueueSimple for the names of files.
"""

import os
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Final
from uuid import uuid4

#: APEL's word for a name that is kept back.
WITHHELD: Final = "withheld"

_RECORDS: Final = 1000
_KB_IN_MB: Final = 1024
_BENCHMARK: Final = "HEPScore23"
_INFRASTRUCTURE: Final = "grid"
#: Seconds of which the files are in one directory of a queue.
_GRANULARITY: Final = 60

#: One record: its lines in their order.
Lines = Mapping[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class UsedSlot:
    """What a site reports of one attempt of a job."""

    job: str  #: its number and that of the attempt: 4711.1
    vo: str
    name: str  #: of the user: of the certificate, else that of the account; or `WITHHELD`
    ce: str
    queue: str
    processors: int
    started: datetime
    ended: datetime
    wall_seconds: float
    cpu_seconds: float
    peak_ram_mb: int | None
    hepscore23: float  #: of a core


def _list_jobs(site: str, used: Sequence[UsedSlot]) -> Iterator[Lines]:
    for each in used:
        memory = {} if each.peak_ram_mb is None else {"MemoryReal": each.peak_ram_mb * _KB_IN_MB}
        yield {
            "Site": site,
            "SubmitHost": each.ce,
            "MachineName": each.ce,
            "Queue": each.queue,
            "LocalJobId": each.job,
            "GlobalUserName": each.name,
            "VO": each.vo,
            "WallDuration": round(each.wall_seconds),
            "CpuDuration": round(each.cpu_seconds),
            "Processors": each.processors,
            "NodeCount": 1,
            "StartTime": int(each.started.timestamp()),
            "EndTime": int(each.ended.timestamp()),
            "InfrastructureType": _INFRASTRUCTURE,
            "InfrastructureDescription": "PILOTAGE",
            **memory,
            "ServiceLevelType": _BENCHMARK,
            "ServiceLevel": f"{each.hepscore23:.3f}",
        }


def _list_summaries(site: str, used: Sequence[UsedSlot]) -> Iterator[Lines]:
    for of_one in _group(used, lambda each: (*_key(each), each.hepscore23)):
        yield {
            **_describe_group(site, of_one),
            "InfrastructureType": _INFRASTRUCTURE,
            "ServiceLevelType": _BENCHMARK,
            "ServiceLevel": f"{of_one[0].hepscore23:.3f}",
            **_sum(of_one),
        }


def _list_normalised(site: str, used: Sequence[UsedSlot]) -> Iterator[Lines]:
    for of_one in _group(used, _key):
        wall = sum(each.wall_seconds * each.hepscore23 for each in of_one)
        cpu = sum(each.cpu_seconds * each.hepscore23 for each in of_one)
        yield {
            **_describe_group(site, of_one),
            "Infrastructure": _INFRASTRUCTURE,
            **_sum(of_one),
            "NormalisedWallDuration": f"{{{_BENCHMARK}: {round(wall)}}}",
            "NormalisedCpuDuration": f"{{{_BENCHMARK}: {round(cpu)}}}",
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageFormat:
    """A format of messages."""

    header: str
    list_records: Callable[[str, Sequence[UsedSlot]], Iterator[Lines]]
    what: str


FORMATS: Final[Mapping[str, MessageFormat]] = {
    "apel": MessageFormat(
        header="APEL-individual-job-message: v0.3", list_records=_list_jobs, what="a record of each job"
    ),
    "apel-summary": MessageFormat(
        header="APEL-summary-job-message: v0.2",
        list_records=_list_summaries,
        what="sums by VO, user, CE, processors and benchmark",
    ),
    "apel-normalised": MessageFormat(
        header="APEL-normalised-summary-message: v0.4",
        list_records=_list_normalised,
        what="sums that are normalised already",
    ),
}


def write_messages(name: str, *, site: str, used: Sequence[UsedSlot]) -> Iterator[str]:
    """The messages of a format about the attempts that ended in one month."""
    wanted = FORMATS[name]
    records = [f"{_write_record(each)}%%\n" for each in wanted.list_records(site, used)]
    for begin in range(0, len(records), _RECORDS):
        yield f"{wanted.header}\n" + "".join(records[begin : begin + _RECORDS])


def _write_record(lines: Lines) -> str:
    # Names come from tokens: none of them may begin another line.
    return "".join(f"{name}: {' '.join(str(value).split())}\n" for name, value in lines.items())


def _key(each: UsedSlot) -> tuple[object, ...]:
    return each.vo, each.name, each.ce, each.processors


def _group(
    used: Sequence[UsedSlot], key: Callable[[UsedSlot], tuple[object, ...]]
) -> Iterator[list[UsedSlot]]:
    found: defaultdict[tuple[object, ...], list[UsedSlot]] = defaultdict(list)
    for each in used:
        found[key(each)].append(each)
    yield from found.values()


def _describe_group(site: str, of_one: Sequence[UsedSlot]) -> Lines:
    first = of_one[0]
    return {
        "Site": site,
        "Month": first.ended.month,
        "Year": first.ended.year,
        "GlobalUserName": first.name,
        "VO": first.vo,
        "SubmitHost": first.ce,
        "NodeCount": 1,
        "Processors": first.processors,
    }


def _sum(of_one: Sequence[UsedSlot]) -> Lines:
    ends = [int(each.ended.timestamp()) for each in of_one]
    return {
        "EarliestEndTime": min(ends),
        "LatestEndTime": max(ends),
        "WallDuration": round(sum(each.wall_seconds for each in of_one)),
        "CpuDuration": round(sum(each.cpu_seconds for each in of_one)),
        "NumberOfJobs": len(of_one),
    }


def store_in_queue(directory: Path, message: str, *, at: float) -> Path:
    """Add a message to a queue of files, SSM's `path_type: dirq`; the file, named after the time."""
    second = int(at)
    below = directory / f"{second - second % _GRANULARITY:08x}"
    below.mkdir(parents=True, exist_ok=True)
    prepared = below / f"{uuid4().hex[:14]}.tmp"
    prepared.write_text(message, encoding="utf-8")
    # Microseconds, and a digit more.
    for number in range(int((at - second) * 1_000_000) << 4, 1 << 24):
        made = below / f"{second:08x}{number:06x}"
        with suppress(FileExistsError):
            os.link(prepared, made)  # fails where the name is taken
            prepared.unlink()
            return made
    raise FileExistsError(f"{below}: too many messages of one second")


def store_in_directory(directory: Path, message: str) -> Path:
    """Add a message to a directory without others below it, SSM's `path_type: directory`; the file."""
    directory.mkdir(parents=True, exist_ok=True)
    made = directory / str(uuid4())
    with made.open("x", encoding="utf-8") as file:
        file.write(message)
    return made
