"""What must hold, from the tables, the logs and what players saw; no code of the program is used."""

import re
import sqlite3
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from datetime import UTC, datetime
from itertools import takewhile
from pathlib import Path
from typing import Any

import psycopg

from tests.acceptance.campaign.record import Held, History

FINAL = frozenset({"Done", "Failed", "Killed"})
#: Questions whose answer is empty at any moment.
CONSISTENT = {
    "has two open attempts": """
        SELECT job_id FROM attempts WHERE closed_at IS NULL GROUP BY job_id HAVING count(*) > 1""",
    "waits in a task queue without being Waiting": """
        SELECT job_id FROM waiting_jobs JOIN jobs USING (job_id) WHERE status <> 'Waiting'""",
    "is Waiting in no task queue": """
        SELECT job_id FROM jobs WHERE status = 'Waiting'
        AND NOT EXISTS (SELECT 1 FROM waiting_jobs WHERE waiting_jobs.job_id = jobs.job_id)""",
    "is with a pilot without an open attempt": """
        SELECT job_id FROM jobs WHERE status IN ('Matched', 'Running', 'Stalled')
        AND NOT EXISTS (SELECT 1 FROM attempts WHERE attempts.job_id = jobs.job_id AND closed_at IS NULL)""",
    "has an open attempt although no pilot has it": """
        SELECT job_id FROM attempts JOIN jobs USING (job_id) WHERE closed_at IS NULL AND NOT ending
        AND status NOT IN ('Matched', 'Running', 'Stalled', 'Completing')""",
    "is Done a second time": """
        SELECT job_id FROM job_log WHERE to_status = 'Done' AND from_status <> 'Done'
        GROUP BY job_id HAVING count(*) > 1""",
}
#: Numbers that are zero when no job is on its way.
NOTHING_LEFT = {
    "waiting jobs": "SELECT count(*) FROM waiting_jobs",
    "open attempts": "SELECT count(*) FROM attempts WHERE closed_at IS NULL",
    "jobs due for the optimizers": "SELECT count(*) FROM jobs WHERE due_at IS NOT NULL",
    "jobs in limits": """
        SELECT coalesce(sum(abs(n)), 0) FROM (
            SELECT scope_rules.n + coalesce(sum(scope_returns.number), 0) AS n FROM scope_rules
            LEFT JOIN scope_returns ON scope_returns.rule_id = scope_rules.rule_id
            WHERE kind = 'running' GROUP BY scope_rules.rule_id, scope_rules.n) AS counts""",
}
#: Attempts of jobs whose payloads really run.
REAL_ATTEMPTS = """
SELECT job_id, opened_at, closed_at FROM attempts JOIN jobs USING (job_id) WHERE job_name = 'real'
"""
ROWS_OF_BLOBS = "SELECT digest FROM blobs"
#: What tells why jobs did not end.
UNFINISHED = (
    "SELECT * FROM jobs WHERE status NOT IN ('Done', 'Failed', 'Killed')",
    (
        "SELECT * FROM job_log WHERE job_id IN "
        "(SELECT job_id FROM jobs WHERE status NOT IN ('Done', 'Failed', 'Killed')) ORDER BY log_id"
    ),
    "SELECT * FROM attempts WHERE closed_at IS NULL",
    "SELECT * FROM task_queues",
    "SELECT * FROM requirement_classes",
    "SELECT * FROM submit_pools",
    "SELECT * FROM scopes",
    "SELECT * FROM scope_rules",
    "SELECT * FROM agent_leases",
)
PARKED = "SELECT DISTINCT job_id FROM job_log WHERE to_status = 'Parked'"
STEPS = """
SELECT job_log.job_id, job_log.to_status, attempts.site, jobs.job_type AS kind
FROM job_log JOIN jobs ON jobs.job_id = job_log.job_id
LEFT JOIN attempts ON attempts.job_id = job_log.job_id AND attempts.epoch = job_log.epoch
WHERE job_log.from_status IS NULL OR job_log.from_status <> job_log.to_status
ORDER BY job_log.log_id
"""
#: Lines in logs that no fault excuses.
_BAD_LINES = re.compile(
    r"Traceback \(most recent call last\)|error of the program itself|the counter of .* rows count"
    r"|scope counters differ"
)
_LOST_COMMITS = "has lost commits"
#: What a process says that gets no more memory.
_NO_MEMORY = re.compile(r"MemoryError|can't start new thread|[Cc]annot allocate memory|out of memory")
#: What the memory of a process may grow, after it has come up to its work: a part, and bytes besides.
GROWTH, SMALL_GROWTH = 0.05, 2 << 20
#: Fewest samples of which the memory of a process is judged.
_SAMPLES = 20
#: Errors of a database that is away.
AWAY = (psycopg.OperationalError, psycopg.InterfaceError, sqlite3.OperationalError)


class Tables:
    """The database, read past all links and without code of the program."""

    def __init__(self, url: str, *, patience: int) -> None:
        self._url, self._patience = url, patience  # seconds until the database answers

    def ask(self, question: str) -> list[tuple[Any, ...]]:
        """All rows."""
        if self._url.startswith("sqlite"):
            file = self._url.removeprefix("sqlite:///")
            with closing(sqlite3.connect(f"file:{file}?mode=ro", uri=True, timeout=300)) as connection:
                return connection.execute(question).fetchall()
        with psycopg.connect(
            self._url.replace("+psycopg", ""), autocommit=True, connect_timeout=self._patience
        ) as connection:
            return connection.execute(question).fetchall()

    def statuses(self) -> Counter[str]:
        return Counter(dict(self.ask("SELECT status, count(*) FROM jobs GROUP BY status")))


def list_inconsistencies(tables: Tables) -> Iterator[str]:
    """All at one moment, by one statement."""
    parts = (f"SELECT job_id, '{what}' FROM ({question}) AS found" for what, question in CONSISTENT.items())
    for job_id, what in tables.ask(" UNION ALL ".join(parts)):
        yield f"job {job_id} {what}"


def list_left(tables: Tables) -> Iterator[str]:
    for what, question in NOTHING_LEFT.items():
        [(number,)] = tables.ask(question)
        if number:
            yield f"{number} {what} although all jobs have ended"


def find_on_full_nodes(tables: Tables, full: Sequence[tuple[datetime, datetime]]) -> frozenset[int]:
    """Jobs that ran while nodes could write nothing: they may have failed, or have no output."""
    return frozenset(
        job_id
        for job_id, opened, closed in (tables.ask(REAL_ATTEMPTS) if full else ())
        if any(
            _read_time(opened) < over and (closed is None or _read_time(closed) > began)
            for began, over in full
        )
    )


def _read_time(stored: datetime | str) -> datetime:
    """A time as PostgreSQL has it, or SQLite, without its time zone."""
    read = datetime.fromisoformat(stored) if isinstance(stored, str) else stored
    return read if read.tzinfo else read.replace(tzinfo=UTC)


def list_wrong_ends(
    tables: Tables,
    submitted: Mapping[int, float],
    killed: Mapping[int, float],
    helds: Sequence[Held],
    history: History,
    *,
    on_full_nodes: Collection[int] = (),
) -> Iterator[str]:
    """Jobs that are not there, or did not end as their users and pilots were answered."""
    rows = tables.ask("SELECT job_id, status, minor_status, reschedules FROM jobs")
    stored = {job_id: status for job_id, status, *_ in rows}
    causes = {job_id: f"{minor}, rescheduled {count} times" for job_id, _, minor, count in rows}
    failed = {held.job_id for held in helds if held.finished == "Failed"}
    # The end of its attempt was lost with other commits, so a late report could end it again.
    failed |= {held.job_id for held in helds if held.may_have_failed and history.recently_lost(held.asked)}
    failed |= set(on_full_nodes)
    # The kill was lost with other commits, after the pilot had obeyed it.
    failed |= {job_id for job_id, at in killed.items() if history.recently_lost(at)}
    for job_id, at in submitted.items():
        if job_id not in stored:
            if not history.recently_lost(at):
                yield f"job {job_id} was acknowledged and is not there"
            continue
        right = (
            {"Done"}
            | ({"Killed"} if job_id in killed else set())
            | ({"Failed"} if job_id in failed else set())
        )
        if stored[job_id] not in right:
            yield f"job {job_id} ended as {stored[job_id]} ({causes[job_id]}), which nobody caused"
    done = [held for held in helds if held.finished == "Done" and not history.recently_lost(held.asked)]
    for job_id, number in Counter(held.job_id for held in done).items():
        if number > 1:
            yield f"job {job_id}: {number} pilots were acknowledged its end"
    for held in done:
        if stored.get(held.job_id) not in {"Done", "Killed"}:
            yield f"job {held.job_id} is {stored.get(held.job_id)} after Done was acknowledged"


def list_missing_blobs(tables: Tables, directory: Path) -> Iterator[str]:
    """Rows without a file."""
    files = {path.name for path in directory.rglob("*") if path.is_file()}
    for (digest,) in tables.ask(ROWS_OF_BLOBS):
        if digest not in files:
            yield f"the blob {digest} has a row and no file"


def list_wrong_runs(tables: Tables, ledger: Path) -> Iterator[str]:
    """Payloads that did not run once although their job had one attempt and is Done."""
    runs: dict[int, Counter[str]] = {}
    for line in ledger.read_text().splitlines():
        word, job_id, _ = line.split()
        runs.setdefault(int(job_id), Counter())[word] += 1
    single = tables.ask("""
        SELECT job_id FROM attempts JOIN jobs USING (job_id) WHERE job_name = 'real' AND status = 'Done'
        GROUP BY job_id HAVING count(*) = 1 AND min(attempts.epoch) = 1""")
    for (job_id,) in single:
        counts = runs.get(job_id, Counter())
        if counts != {"begin": 1, "end": 1}:
            yield f"job {job_id} is Done with one attempt, but its payload ran {dict(counts)}"


def list_bad_lines(logs: Iterable[tuple[str, str]], *, lost: bool, is_short: bool = False) -> Iterator[str]:
    """Tracebacks and the like, each with the line that says most.

    `lost`: commits were lost; `is_short`: some process was refused memory, of which it may complain.
    """
    for name, text in logs:
        lines = text.splitlines()
        for number, line in enumerate(lines):
            if _BAD_LINES.search(line) or (_LOST_COMMITS in line and not lost):
                place = cause = ""
                if line.startswith("Traceback"):
                    frames = list(takewhile(lambda each: each.startswith((" ", "\t")), lines[number + 1 :]))
                    place = next((each.strip() for each in reversed(frames) if "File " in each), "")
                    cause = next(filter(None, lines[number + 1 + len(frames) :]), "")
                if is_short and _NO_MEMORY.search(f"{line} {cause}"):
                    continue
                yield f"log of {name}: {line[:200]} {cause[:200]} {place[:200]}".rstrip()


def list_dishonest(
    probes: Sequence[tuple[float, float, str, bool]],
    blind: Iterable[tuple[float, float, str]],
    *,
    grace: float,
) -> Iterator[str]:
    """Services that were ready for so long after they could store nothing any more.

    A probe has the times of its request and of its answer, the service, and whether that was ready.
    """
    for began, over, name in blind:
        wrong = [
            sent
            for sent, answered, of, ready in probes
            if of == name and ready and began + grace < sent and answered < over
        ]
        if wrong:
            yield f"/readyz of {name} was 200 {wrong[0] - began:.0f} s after nothing could be stored"


def list_grown(memory: Mapping[str, Sequence[tuple[float, int]]], *, since: float) -> Iterator[str]:
    """Processes that have more memory in the second half of the time since a moment than in the first.

    Each is measured by the bytes that it does not exceed for nine tenths of a half: single answers are large.
    """
    for name, (first, second) in measure_halves(memory, since=since).items():
        if second > first * (1 + GROWTH) + SMALL_GROWTH:
            yield f"{name} has grown from {first >> 20} to {second >> 20} MB, allowed are {GROWTH:.0%}"


def measure_halves(
    memory: Mapping[str, Sequence[tuple[float, int]]], *, since: float
) -> dict[str, tuple[int, int]]:
    """Bytes of each process in the two halves of the time since a moment; those with too few samples not.

    A sample has seconds since the beginning, and bytes.
    """
    found: dict[str, tuple[int, int]] = {}
    for name, samples in memory.items():
        late = [each for each in samples if each[0] >= since]
        if len(late) >= _SAMPLES:
            middle = (late[0][0] + late[-1][0]) / 2
            halves = ([size for at, size in late if at < middle], [size for at, size in late if at >= middle])
            first, second = (sorted(half)[len(half) * 9 // 10] for half in halves if half)
            found[name] = first, second
    return found


def list_banned_matches(
    helds: Iterable[Held], bans: Iterable[tuple[float, float]], site: str
) -> Iterator[str]:
    for began, ends in bans:
        for held in helds:
            if held.site == site and began < held.asked and held.answered < ends:
                yield f"job {held.job_id} was matched at the banned {site}"
