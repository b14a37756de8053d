"""A batch system defined by a dialect: runs its commands, extracts records, and sums up queue amounts.

Dialects for PBS and LSF are included; others are configured.
"""

import math
import shlex
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from pilotage.fabric.batch import command_line
from pilotage.fabric.batch.batch_system import BatchJob, BatchSystemAway, Capacity, JobResources, State
from pilotage.fabric.batch.command_line import CommandLineSystem
from pilotage.fabric.batch.dialect.dialect import REFERENCES, Dialect, Excuse, RecordSource, SubmitCommand
from pilotage.fabric.batch.shell import Completed
from pilotage.fabric.batch.work_area import ListedJob
from requirements.classad import restrictions


def read_records(
    said: str, source: RecordSource, *, needed: Collection[str] = ()
) -> Iterator[Mapping[str, str]]:
    """The groups of each record, as far as they take part in it; a record where nothing is found is left out.

    Raises:
        BatchSystemAway: A record lacks what is needed: the answer breaks off.
    """
    for part in _parts(said, source):
        found = _match_record(part, source)
        if not found.keys() >= set(needed):
            raise BatchSystemAway(
                f"{source.command[0]}: the answer breaks off, or cannot be read: {part[:80]!r}"
            )
        if found:
            yield found


def _match_record(part: str, source: RecordSource) -> dict[str, str]:
    found: dict[str, str] = {}
    for pattern in source.patterns:
        if match := restrictions.compiled(pattern, "m").search(part):
            found |= {name: text for name, text in match.groupdict().items() if text is not None}
    return found


def _parts(said: str, source: RecordSource) -> Iterator[str]:
    begins = None if source.record is None else restrictions.compiled(source.record, "m")
    part: list[str] = []
    for line in said.splitlines():
        is_begin = begins is None or begins.search(line) is not None
        if (is_begin or not part) and _is_nothing(line, source):
            continue
        if is_begin and part:
            yield "\n".join(part)
            part = []
        part.append(line)
    if part:
        yield "\n".join(part)


def _is_nothing(line: str, source: RecordSource) -> bool:
    if not line.strip():
        return True
    return source.ignore is not None and restrictions.compiled(source.ignore, "m").search(line) is not None


#: The queue of a record that names none: it counts for all.
_ALL = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """Sums of records by queue."""

    of: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    closed: set[str] = field(default_factory=set)

    def add(self, record: Mapping[str, str]) -> None:
        """Count a record; a group that is empty says nothing."""
        queue = record.get("queue", _ALL)
        found = self.of[queue]  # a queue that has nothing is one, too
        if record.get("closed"):
            self.closed.add(queue)
        found.update({name: _number(record.get(name)) for name in ("running", "waiting")})
        if not record.get("down"):
            cores = _number(record.get("cores"))
            used = cores if record.get("full") else min(cores, _number(record.get("used")))
            found.update(cores=cores, used=used)

    def queues(self) -> dict[str, Capacity]:
        """What each queue has; one that is closed has no cores for us."""
        return {name: self._capacity(name) for name in self.of if name != _ALL}

    def _capacity(self, queue: str) -> Capacity:
        sums = self.of[queue] + self.of.get(_ALL, Counter())
        cores = 0 if queue in self.closed else sums["cores"]
        return Capacity(
            cores=cores,
            free_cores=max(0, cores - sums["used"]),
            waiting=sums["waiting"],
            running=sums["running"],
        )


def _number(text: str | None) -> int:
    return int(text) if text and text.isdecimal() else 0


_NEEDED = ("reference", "name", "state")
#: PBS says 256 + number for a signal, everybody else 128 + number.
_SIGNALS_OF_PBS = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class DialectSystem(CommandLineSystem):
    """A batch system defined by a dialect, used as one account."""

    dialect: Dialect

    def capacity(self) -> Mapping[str, Capacity]:
        """What the queues have, as far as the dialect says where to look."""
        tally = Tally()
        for source in self.dialect.capacity:
            for amounts in read_records(self._ask(source), source):
                tally.add(amounts)
        return tally.queues()

    def _submission(self, job: BatchJob) -> list[str]:
        submit, values = self.dialect.submit, self._values(job)
        asked = [
            word.format_map(values) for word in (*submit.command, *_resource_values(submit, job.resources))
        ]
        words = [*asked, *self.flags, *job.flags]
        if submit.joined is not None:
            words = command_line.join_option(words, submit.joined)
        return [*words, *(word.format_map(values) for word in submit.script)]

    def _values(self, job: BatchJob) -> dict[str, str]:
        asked, script = job.resources, self.areas.prepare(job)
        memory, wall_time = asked.memory or 0, asked.wall_time or 0
        values = {
            "name": self.dialect.name.format(stamp=job.stamp),
            "stamp": job.stamp,
            "queue": job.queue,
            "directory": self.areas.path(job.stamp),
            "script": script,
            "quoted_script": shlex.quote(script),
            "cores": asked.cores,
            "memory": memory,
            "memory_per_core": math.ceil(memory / asked.cores),
            "wall_time": wall_time,
            "wall_minutes": math.ceil(wall_time / 60),
            "gpus": asked.gpus,
        }
        return {name: str(value) for name, value in values.items()}

    def _reference(self, said: str) -> str | None:
        match = restrictions.compiled(self.dialect.submit.reference, "m").search(said)
        return match["reference"] if match else None

    def _is_away(self, done: Completed) -> bool:
        return self.dialect.away is not None and _match_group(self.dialect.away, done.stdout + done.stderr)

    def _listing(self) -> Iterator[ListedJob]:
        listing, (before, after) = self.dialect.listing, self.dialect.name.format(stamp="\0").split("\0")
        for record in read_records(self._ask(listing), listing, needed=_NEEDED):
            name = "".join(record["name"].split())  # a long one may be folded
            if name.startswith(before) and name.endswith(after):
                yield self._row(record, name.removeprefix(before).removesuffix(after))

    def _row(self, record: Mapping[str, str], stamp: str) -> ListedJob:
        word = record["state"]
        meaning = self.dialect.listing.states.get(word, "unknown")
        status = _exit_status(record.get("exit", ""))
        ended = State.GONE if status is None else State.FAILED if status else State.DONE
        unknown = f"{word}: not among the states of the dialect"
        return ListedJob(
            stamp=stamp,
            reference=record["reference"],
            state=ended if meaning == "ended" else State(meaning),
            message=record.get("message", "").strip() or (word if meaning != "unknown" else unknown),
            exit_code=status,
        )

    def _end(self, references: Sequence[str]) -> None:
        kill = self.dialect.kill
        words = [each for word in kill.command for each in (references if word == REFERENCES else (word,))]
        _answer(words, self._shell.run(words), kill.excuse)

    def _ask(self, source: RecordSource) -> str:
        return _answer(source.command, self._shell.run(source.command), source.excuse)


def _resource_values(submit: SubmitCommand, resources: JobResources) -> Iterable[str]:
    yield from submit.cores
    if resources.memory is not None:
        yield from submit.memory
    if resources.wall_time is not None:
        yield from submit.wall_time
    if resources.gpus:
        yield from submit.gpus
    if resources.whole_node:
        yield from submit.whole_node


def _answer(command: Sequence[str], done: Completed, excuse: Excuse | None) -> str:
    if done.status != 0 and not _is_excused(done, excuse):
        raise BatchSystemAway(f"{command[0]}: {done.said}")
    return done.stdout


def _is_excused(done: Completed, excuse: Excuse | None) -> bool:
    if excuse is None or done.status < 0 or done.status not in (excuse.statuses or (done.status,)):
        return False
    return _match_group(excuse.said, done.stderr.strip() or done.stdout.strip())


def _match_group(pattern: str, text: str) -> bool:
    return restrictions.compiled(pattern, "m").search(text) is not None


def _exit_status(text: str) -> int | None:
    if not text.isdecimal():
        return None
    number = int(text)
    return number - _SIGNALS_OF_PBS + 128 if number > _SIGNALS_OF_PBS else number
