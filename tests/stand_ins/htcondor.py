#!/usr/bin/env python3
"""Stands in for HTCondor: its commands by their names, and the shadow that writes real event logs.

A pool of one machine with eight cores. What it gets it starts at once, on a copy of the script, in a
directory that is not the submitter's.
"""

import json
import re
import shlex
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import batch_jobs
from batch_jobs import Job

_CORES = 8
_HOST = "<127.0.0.1:9618?addrs=127.0.0.1-9618&alias=pool.example.org>"
_USAGE = "\t\tUsr 0 00:00:00, Sys 0 00:00:00  -  {} Usage\n"
_BYTES = "\t0  -  {} By Job\n"
_SHELL_SIGNAL = 128


def condor_submit(words: Sequence[str]) -> int:
    assert words[0] == "-terse", words
    text = Path(words[-1]).read_text()
    for option, command in zip(words[1:-1:2], words[2:-1:2], strict=True):
        assert option == "-append", words
        text = text.replace("\nqueue", f"\n{command}\nqueue")
    said = dict(re.split(r"\s*=\s*", line, maxsplit=1) for line in text.splitlines() if "=" in line)
    job = batch_jobs.new_job()
    job.put("said", json.dumps(said))
    _log(job, 0, f"Job submitted from host: {_HOST}\n")
    scratch = job.directory / "scratch"
    scratch.mkdir()
    script = scratch / "condor_exec.exe"
    script.write_bytes(Path(said["executable"]).read_bytes())
    script.chmod(0o700)
    _log(job, 1, f"Job executing on host: {_HOST}\n")
    out, err = shlex.quote(said["output"]), shlex.quote(said["error"])
    job.start(
        f"trap : TERM; cd {shlex.quote(str(scratch))}; ./condor_exec.exe >{out} 2>{err}; status=$?;"
        f" condor_shadow {job.number} $status; exit $status"
    )
    sys.stdout.write(f"{job.number}.0 - {job.number}.0\n")
    return 0


def condor_shadow(words: Sequence[str]) -> int:
    """Writes how a job ended."""
    job, status = batch_jobs.of_number(int(words[0])), int(words[1])
    assert job is not None
    if job.get("killed"):
        _log(job, 9, "Job was aborted.\n\tvia condor_rm (by user pilots)\n")
        return 0
    how = f"\t(1) Normal termination (return value {status})\n"
    if status > _SHELL_SIGNAL:
        how = f"\t(0) Abnormal termination (signal {status - _SHELL_SIGNAL})\n\t(0) No core file\n"
    usage = "".join(
        _USAGE.format(what) for what in ("Run Remote", "Run Local", "Total Remote", "Total Local")
    )
    bytes_ = "".join(
        _BYTES.format(f"{what} Bytes {way}") for what in ("Run", "Total") for way in ("Sent", "Received")
    )
    _log(job, 5, f"Job terminated.\n{how}{usage}{bytes_}")
    return 0


def condor_q(words: Sequence[str]) -> int:
    assert words[-2:] == ["-constraint", "PilotageStamp =!= undefined"], words
    return _show([_ad(job) for job in batch_jobs.all_jobs() if job.status is None])


def condor_history(words: Sequence[str]) -> int:
    constraint = words[words.index("-constraint") + 1]
    found = re.fullmatch(r'stringListMember\(PilotageStamp, "([^"]*)"\)', constraint)
    assert found, constraint
    stamps = set(found[1].split(","))
    ended = [_ad(job) for job in reversed(batch_jobs.all_jobs()) if job.status is not None]
    matching = [ad for ad in ended if ad["PilotageStamp"] in stamps]
    return _show(matching[: int(words[words.index("-limit") + 1])])


def condor_rm(words: Sequence[str]) -> int:
    failed = 0
    for word in words:
        job = batch_jobs.of_number(int(word.partition(".")[0]))
        if job is None or not job.runs:
            sys.stderr.write(f"Job {word} not found\n")
            failed = 1
        else:
            job.end()
            sys.stdout.write(f"Job {word} marked for removal\n")
    return failed


def condor_status(words: Sequence[str]) -> int:
    running = sum(job.runs for job in batch_jobs.all_jobs())
    if "-schedd" in words:
        return _show([{"TotalIdleJobs": 0, "TotalRunningJobs": running}])
    parent = {"SlotType": "Partitionable", "State": "Unclaimed", "TotalSlotCpus": _CORES}
    part = {"SlotType": "Dynamic", "State": "Claimed", "Cpus": 1, "TotalSlotCpus": 1}
    return _show([{**parent, "Cpus": max(0, _CORES - running)}, *[part] * running])


def _ad(job: Job) -> "dict[str, object]":
    ad: dict[str, object] = {
        "ClusterId": job.number,
        "ProcId": 0,
        "PilotageStamp": json.loads(json.loads(job.get("said"))["My.PilotageStamp"]),
    }
    status, killed = job.status, job.get("killed") != ""
    if status is None:
        return {**ad, "JobStatus": 3 if killed else 2}
    if killed:
        return {**ad, "JobStatus": 3, "RemoveReason": "via condor_rm (by user pilots)"}
    if status > _SHELL_SIGNAL:
        return {**ad, "JobStatus": 4, "ExitBySignal": True, "ExitSignal": status - _SHELL_SIGNAL}
    return {**ad, "JobStatus": 4, "ExitBySignal": False, "ExitCode": status}


def _show(ads: "list[dict[str, object]]") -> int:
    """As HTCondor does: an ad a line, nothing at all without any."""
    if ads:
        sys.stdout.write("[\n" + "\n,\n".join(map(json.dumps, ads)) + "\n]\n")
    return 0


def _log(job: Job, number: int, text: str) -> None:
    now = time.strftime("%Y-%m-%d %H:%M:%S")
    with Path(json.loads(job.get("said"))["log"]).open("a") as file:
        file.write(f"{number:03} ({job.number:03}.000.000) {now} {text}...\n")


_COMMANDS: dict[str, Callable[[Sequence[str]], int]] = {
    each.__name__: each
    for each in (condor_submit, condor_shadow, condor_q, condor_history, condor_rm, condor_status)
}

if __name__ == "__main__":
    sys.exit(_COMMANDS[Path(sys.argv[0]).name](sys.argv[1:]))
