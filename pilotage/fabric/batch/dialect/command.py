"""A batch system whose commands, words and answers are data: PBS and LSF are shipped, others configured."""

import math
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from pilotage.fabric.batch import joining
from pilotage.fabric.batch.batch_system import BatchJob, Capacity, Resources, State
from pilotage.fabric.batch.commanded import Commanded
from pilotage.fabric.batch.dialect import records
from pilotage.fabric.batch.dialect.amounts import Tally
from pilotage.fabric.batch.dialect.dialect import REFERENCES, Dialect, Excuse, Source, Submit
from pilotage.fabric.batch.errors import BatchSystemAway
from pilotage.fabric.batch.listing import Row
from pilotage.fabric.batch.shell import Completed
from requirements import regexps

_NEEDED = ("reference", "name", "state")
#: PBS says 256 + number for a signal, everybody else 128 + number.
_SIGNALS_OF_PBS = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Command(Commanded):
    """A batch system that is told in a dialect, as one user of it."""

    dialect: Dialect

    def capacity(self) -> Mapping[str, Capacity]:
        """What the queues have, as far as the dialect says where to look."""
        tally = Tally()
        for source in self.dialect.capacity:
            for amounts in records.read(self._ask(source), source):
                tally.add(amounts)
        return tally.queues()

    def _submission(self, job: BatchJob) -> list[str]:
        submit, values = self.dialect.submit, self._values(job)
        asked = [word.format_map(values) for word in (*submit.command, *_asked(submit, job.resources))]
        words = [*asked, *self.flags, *job.flags]
        if submit.joined is not None:
            words = joining.join(words, submit.joined)
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
        match = regexps.compiled(self.dialect.submit.reference, "m").search(said)
        return match["reference"] if match else None

    def _is_away(self, done: Completed) -> bool:
        return self.dialect.away is not None and _found(self.dialect.away, done.stdout + done.stderr)

    def _listing(self) -> Iterator[Row]:
        listing, (before, after) = self.dialect.listing, self.dialect.name.format(stamp="\0").split("\0")
        for record in records.read(self._ask(listing), listing, needed=_NEEDED):
            name = "".join(record["name"].split())  # a long one may be folded
            if name.startswith(before) and name.endswith(after):
                yield self._row(record, name.removeprefix(before).removesuffix(after))

    def _row(self, record: Mapping[str, str], stamp: str) -> Row:
        word = record["state"]
        meaning = self.dialect.listing.states.get(word, "unknown")
        status = _status(record.get("exit", ""))
        ended = State.GONE if status is None else State.FAILED if status else State.DONE
        unknown = f"{word}: not among the states of the dialect"
        return Row(
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

    def _ask(self, source: Source) -> str:
        return _answer(source.command, self._shell.run(source.command), source.excuse)


def _asked(submit: Submit, resources: Resources) -> Iterable[str]:
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
    return _found(excuse.said, done.stderr.strip() or done.stdout.strip())


def _found(pattern: str, text: str) -> bool:
    return regexps.compiled(pattern, "m").search(text) is not None


def _status(text: str) -> int | None:
    if not text.isdecimal():
        return None
    number = int(text)
    return number - _SIGNALS_OF_PBS + 128 if number > _SIGNALS_OF_PBS else number
