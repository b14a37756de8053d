"""The check of the batch systems of a site, as `--check` of directors and gateways runs it.

Each has to answer, its directory has to take files, its batch queues have to exist and be open, and a job as
it would be submitted must not be refused, as far as the batch system can tell that without running it.
"""

import secrets
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent import futures
from concurrent.futures import Future

from pilotage.fabric.batch.batch_system import (
    BatchJob,
    BatchSystemAway,
    Capacity,
    ChecksWorkAreas,
    DryRuns,
    ReliableSystem,
    SubmissionRefused,
)
from pilotage.fabric.director.targets import QueueTarget

_SCRIPT = "#!/bin/sh\nexit 0\n"


def check_systems(
    systems: Mapping[str, ReliableSystem], queues: Iterable[QueueTarget], *, seconds: float
) -> Mapping[str, str]:
    """What is wrong with each batch system, all checked at the same time; empty: nothing.

    One that has not answered after these seconds is not waited for any more.
    """
    of_system: dict[str, list[QueueTarget]] = {name: [] for name in systems}
    for each in queues:
        of_system[each.system].append(each)
    tasks = {name: _begin(system, of_system[name]) for name, system in systems.items()}
    futures.wait(tasks.values(), timeout=seconds)
    return {name: _read(name, task, seconds) for name, task in tasks.items()}


def _begin(system: ReliableSystem, queues: Sequence[QueueTarget]) -> Future[list[str]]:
    task: Future[list[str]] = Future()

    def run() -> None:
        try:
            task.set_result(_list_problems(system, queues))
        except Exception as error:  # noqa: BLE001 - of an adapter; for the thread that takes the result
            task.set_exception(error)

    threading.Thread(target=run, daemon=True).start()  # a command that hangs keeps no process from its end
    return task


def _read(name: str, task: Future[list[str]], seconds: float) -> str:
    if not task.done():
        return f"{name}: a command or its file system hangs for {seconds:.0f} s"
    error = task.exception()
    if error is None:
        return "; ".join(task.result())
    return (
        str(error)
        if isinstance(error, BatchSystemAway)
        else f"{name}: a fault of its adapter: {error!r:.300}"
    )


def _list_problems(system: ReliableSystem, queues: Sequence[QueueTarget]) -> list[str]:
    """What is wrong with the queues of a batch system that answers; `BatchSystemAway` if it does not."""
    stamp = f"check.{secrets.token_hex(8)}"
    system.survey((), stamp)
    if isinstance(system.system, ChecksWorkAreas):
        system.system.check_areas()
    capacity = system.capacity()
    found = (problem for each in queues for problem in _check_queue(system, capacity, each, stamp))
    return list(dict.fromkeys(found))


def _check_queue(
    system: ReliableSystem, capacity: Mapping[str, Capacity], target: QueueTarget, stamp: str
) -> Iterator[str]:
    names = target.batch_queue.split(",")
    # A name such as `all.q@host` is that of a part of a queue; behind some CEs no queues are known.
    if missing := [name for name in names if capacity and name not in capacity and "@" not in name]:
        yield f"{target.queue}: no batch queue {', '.join(missing)}, there are {', '.join(sorted(capacity))}"
        return
    if closed := [name for name in names if name in capacity and capacity[name].cores <= 0]:
        yield f"{target.queue}: the batch queue {', '.join(closed)} is closed, or no node of it is up"
    if isinstance(system.system, DryRuns):
        job = BatchJob(
            stamp=stamp,
            script=_SCRIPT,
            queue=target.batch_queue,
            resources=target.resources,
            flags=target.flags,
        )
        try:
            system.system.dry_run(job)
        except SubmissionRefused as error:
            flags = f" with {' '.join(target.flags)}" if target.flags else ""
            yield f"{target.queue}: a job{flags} would be refused: {str(error).removeprefix(f'{stamp}: ')}"
