"""What must hold after a campaign, from ledgers, tables and logs; no code of the program is used."""

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path

from examples.cluster.installation import KIND, LIMITED, MOST
from examples.cluster.players import ClusterLedger, HeldJob

Ask = Callable[[str], list[tuple[object, ...]]]
#: Questions that have no row at any moment.
AT_ANY_MOMENT = {
    f"more than {MOST} jobs of the type {KIND} at {LIMITED}": f"""
        SELECT count(*) FROM attempts JOIN jobs USING (job_id) WHERE closed_at IS NULL
        AND attempts.site = '{LIMITED}' AND job_type = '{KIND}' HAVING count(*) > {MOST}""",  # noqa: S608 - constants
    "two open attempts of a job": """
        SELECT job_id FROM attempts WHERE closed_at IS NULL GROUP BY job_id HAVING count(*) > 1""",
}
_LOST = re.compile(r"has lost commits")


def list_lost(ask: Ask, ledger: ClusterLedger) -> Iterator[str]:
    """Work that was acknowledged and is not there, or is another's."""
    names = dict(ask("SELECT job_id, job_name FROM jobs"))
    for job in ledger.submitted:
        if names.get(job.job_id) != job.name:
            yield f"job {job.job_id} was acknowledged as {job.name} and is {names.get(job.job_id)}"
    done = {(row[0], row[1]) for row in ask("SELECT job_id, epoch FROM job_log WHERE to_status = 'Done'")}
    for held in ledger.held:
        if held.is_finished and (held.job_id, held.epoch) not in done:
            yield f"job {held.job_id}: its end in epoch {held.epoch} was acknowledged and is not in the log"


def list_doubled(ask: Ask, ledger: ClusterLedger) -> Iterator[str]:
    """Work that was stored, handed out or done twice."""
    for name, number in ask("SELECT job_name, count(*) FROM jobs GROUP BY job_name HAVING count(*) > 1"):
        yield f"{number} jobs have the name {name}"
    for job_id, number in Counter(job.job_id for job in ledger.submitted).items():
        if number > 1:
            yield f"the id {job_id} was given to {number} jobs"
    leases = defaultdict(set)
    for held in ledger.held:
        leases[held.job_id, held.epoch].add(held.lease)
    for (job_id, epoch), several in leases.items():
        if len(several) > 1:
            yield f"job {job_id} was handed out {len(several)} times in epoch {epoch}"
    for job_id, number in Counter(held.job_id for held in ledger.held if held.is_finished).items():
        if number > 1:
            yield f"job {job_id} was finished {number} times"
    for (job_id,) in ask(
        "SELECT job_id FROM job_log WHERE to_status = 'Done' AND from_status <> 'Done' "
        "GROUP BY job_id HAVING count(*) > 1"
    ):
        yield f"job {job_id} is Done a second time in the log"


def count_most(held: Iterable[HeldJob]) -> int:
    """The most jobs of the limited type that pilots surely had at once at the limited site."""
    steps = sorted(
        step
        for each in held
        if (each.site, each.kind) == (LIMITED, KIND)
        for step in ((each.answered, 1), (each.end_sent, -1))
    )
    most = now = 0
    for _, change in steps:
        now += change
        most = max(most, now)
    return most


def list_left(ask: Ask) -> Iterator[str]:
    """What is left over when all work is done."""
    for status, number in ask("SELECT status, count(*) FROM jobs WHERE status <> 'Done' GROUP BY status"):
        yield f"{number} jobs are {status}"
    for (number,) in ask("SELECT count(*) FROM attempts WHERE closed_at IS NULL HAVING count(*) > 0"):
        yield f"{number} attempts are open"


def find_silence(writes: Iterable[float]) -> tuple[float, float]:
    """The longest time without an acknowledged write in seconds, and when it began."""
    return max(((after - before, before) for before, after in pairwise(sorted(writes))), default=(0.0, 0.0))


def list_recoveries(logs: Sequence[Path]) -> list[str]:
    """The lines in which a process wants `db recover`."""
    return [
        f"{log.name}: {line}"
        for log in logs
        for line in log.read_text(errors="replace").splitlines()
        if _LOST.search(line)
    ]
