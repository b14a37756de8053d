#!/usr/bin/env python3
"""Stands in for LSF: its commands by their names, answering in the forms that its reference describes.

It has one queue, `normal`, on one host of eight slots, and runs what it gets at once.
"""

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import batch_jobs  # type: ignore[import-not-found]  # beside this program

_SLOTS = 8
_WITHOUT_VALUE = {"-rn", "-x"}


def bsub(words: Sequence[str]) -> int:
    options: dict[str, str] = {}
    rest = list(words)
    while rest and rest[0].startswith("-"):
        name = rest.pop(0)
        options[name] = "" if name in _WITHOUT_VALUE else rest.pop(0)
    if options["-q"] != "normal":
        sys.stderr.write(f"{options['-q']}: No such queue. Job not submitted.\n")
        return 255
    job = batch_jobs.new_job()
    job.put("name", options["-J"])
    job.start(" ".join(rest))
    sys.stdout.write(f"Job <{job.number}> is submitted to queue <{options['-q']}>.\n")
    return 0


def bjobs(words: Sequence[str]) -> int:
    assert list(words) == ["-a", "-noheader", "-o", "jobid stat exit_code job_name delimiter='|'"], words
    jobs = batch_jobs.all_jobs()
    for job in jobs:
        status = job.status
        state = "RUN" if status is None else "DONE" if status == 0 else "EXIT"
        sys.stdout.write(f"{job.number}|{state}|{status or '-'}|{job.get('name')}\n")
    if not jobs:
        sys.stderr.write("No job found\n")
        return 255
    return 0


def bkill(words: Sequence[str]) -> int:
    worst = 0
    for word in words:
        job = batch_jobs.of_number(int(word))
        if job is None or not job.runs:
            why = "No matching job found" if job is None else "Job has already finished"
            sys.stderr.write(f"Job <{word}>: {why}\n")
            worst = 255
        else:
            job.end()
            sys.stdout.write(f"Job <{word}> is being terminated\n")
    return worst


def bqueues(_: Sequence[str]) -> int:
    running = _running()
    sys.stdout.write(
        "QUEUE_NAME      PRIO STATUS          MAX JL/U JL/P JL/H NJOBS  PEND   RUN  SUSP  RSV PJOBS\n"
        f"normal           30  Open:Active       -    -    -    - {running:5}     0 {running:5}     0\n"
        "night            20  Closed:Inact_Win  -    -    -    -     0     0     0     0    0     0\n"
    )
    return 0


def bhosts(_: Sequence[str]) -> int:
    used = min(_SLOTS, _running())
    sys.stdout.write(
        "HOST_NAME          STATUS          JL/U    MAX  NJOBS    RUN  SSUSP  USUSP    RSV \n"
        f"node1              ok              -      {_SLOTS}  {used:5}  {used:5}      0      0      0 \n"
        "node2              unavail         -      16      0      0      0      0      0 \n"
        "node3              closed_Full     -      4      4      4      0      0      0 \n"
    )
    return 0


def _running() -> int:
    return sum(job.runs for job in batch_jobs.all_jobs())


_COMMANDS: dict[str, Callable[[Sequence[str]], int]] = {
    each.__name__: each for each in (bsub, bjobs, bkill, bqueues, bhosts)
}

if __name__ == "__main__":
    sys.exit(_COMMANDS[Path(sys.argv[0]).name](sys.argv[1:]))
