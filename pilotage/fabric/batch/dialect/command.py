"""A batch system defined by a dialect: runs its commands, extracts records, and sums up queue amounts.

Dialects for Slurm, Grid Engine, PBS and LSF are included; others are configured.
"""

import math
import shlex
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Self, cast

from pydantic import model_validator

from pilotage.fabric.batch.batch_system import (
    ENDED,
    BatchJob,
    BatchSystemAway,
    Capacity,
    JobCounts,
    State,
    SubmissionRefused,
)
from pilotage.fabric.batch.command_line import CommandLineSystem
from pilotage.fabric.batch.dialect import dialect, options
from pilotage.fabric.batch.dialect.dialect import (
    NAMES_OF_JOBS,
    REFERENCES,
    Dialect,
    Excuse,
    ListingCommand,
    RecordSource,
    Resource,
    SubmitCommand,
    Words,
)
from pilotage.fabric.batch.settings import BatchSystemKind, CommandSettings, Connections
from pilotage.fabric.batch.shell import Completed
from pilotage.fabric.batch.work_area import ListedJob, split_words
from requirements.classad import restrictions
from requirements.nodes.lrms_vocabulary import Vocabulary


def read_records(
    said: str, source: RecordSource, *, needed: Collection[str] = ()
) -> Iterator[Mapping[str, str]]:
    """The groups of each record, as far as they take part in it; a record where nothing is found is left out.

    A record that lacks what is needed means that the answer breaks off: `BatchSystemAway`.
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
    jobs: dict[str, Counter[str]] = field(
        default_factory=lambda: defaultdict(Counter)
    )  #: from records of one
    closed: set[str] = field(default_factory=set)

    def add(self, record: Mapping[str, str]) -> None:
        """Count a record; an empty group counts as missing, and a record of a job alone makes no queue."""
        for queue in record.get("queue", _ALL).split(","):
            states = [name for name in ("running", "waiting") if record.get(name, "").isalpha()]
            if states:
                self.jobs[queue].update(states)
            else:
                self._add_amounts(queue, record)

    def _add_amounts(self, queue: str, record: Mapping[str, str]) -> None:
        found = self.of[queue]  # a queue that has nothing is one, too
        if record.get("closed"):
            self.closed.add(queue)
        found.update({name: _number(record.get(name)) for name in ("running", "waiting")})
        if not record.get("down"):
            used, free = _number(record.get("used")), _number(record.get("free"))
            counts_both = "cores" not in record and "free" in record
            cores = used + free if counts_both else _number(record.get("cores"))
            if record.get("full"):
                used = cores
            elif "free" in record:
                used = cores - min(cores, free)
            found.update(cores=cores, used=min(cores, used))

    def queues(self) -> dict[str, Capacity]:
        """Amounts of each queue; a closed one has no cores for us."""
        return {name: self._capacity(name) for name in self.of if name != _ALL}

    def _capacity(self, queue: str) -> Capacity:
        sums = Counter[str]()
        for counts in (self.of, self.jobs):
            sums += counts.get(queue, Counter()) + counts.get(_ALL, Counter())
        cores = 0 if queue in self.closed else sums["cores"]
        return Capacity(
            cores=cores,
            free_cores=max(0, cores - sums["used"]),
            waiting=sums["waiting"],
            running=sums["running"],
        )


def _count(text: str) -> int:
    """A number of jobs, or the one job that has this state."""
    return 1 if text.isalpha() else _number(text)


def _number(text: str | None) -> int:
    return int(text) if text and text.isdecimal() else 0


#: Words for what happens on the way to a server or within it, of which a submission may have been taken.
_TROUBLE = (
    r"(?i)timed? ?-?out|connection|connect failure|not connected|communication|socket|protocol|broken pipe"
    r"|(?:fail\w*|unable|cannot|can't|could not|couldn't) (?:to )?"
    r"(?:connect|contact|communicate|establish|open|reach|read|receive|resolve|send|write)\b"
    r"|transport endpoint|no route to host|unreachable|service not known|name resolution|zero bytes"
    r"|\bend of file|\beof\b|not respond|no (?:response|answer|reply)|\bis down\b|shutting down|standby"
    r"|\bbusy\b|try (?:again|later)|retry|temporar(?:il|y (?:[^d]|d[^i]))|interrupted|killed|terminated"
    r"|authentication|munge|internal error|system error|segmentation|core dumped|no space left|quota exceeded"
    r"|i/o error|input/output|read-only file system|cannot allocate|out of memory|too many open files"
)
#: Exit statuses of shells whose command could not be run, or was ended by a signal.
_NOT_ITS_OWN = range(126, 144)
_NEEDED = ("reference", "name", "state")
#: PBS reports 256 + number for a signal, all others 128 + number.
_SIGNALS_OF_PBS = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class DialectSystem(CommandLineSystem):
    """A batch system defined by a dialect, used as one account."""

    dialect: Dialect

    def capacity(self) -> Mapping[str, Capacity]:
        """Amounts of the queues, as far as the dialect has sources for them."""
        tally = Tally()
        for source in self.dialect.capacity:
            for amounts in read_records(self._output_of(source), source):
                tally.add(amounts)
        return tally.queues()

    def dry_run(self, job: BatchJob) -> None:
        """Check the flags of a job, and submit it with those of a dry run, where the dialect has such."""
        self._check_flags(job)
        flags = self.dialect.submit.dry_run
        if not flags:
            return
        try:
            words = self._submission(job, flags)
            done = self._shell.run(words)
        finally:
            self.areas.remove([job.stamp])
        if done.status != 0:
            raise SubmissionRefused(f"{words[0]}: {done.said}")

    def count_jobs(self, queues: Collection[str]) -> JobCounts:
        """Count the jobs in these queues (empty: in all), also those that wait for several queues or for any.

        Raises:
            ValueError: There is no such queue.
        """
        counted, known = Counter[str](), set[str]()
        for source in self.dialect.counts or self.dialect.capacity:
            for record in read_records(self._output_of(source), source):
                named = set(filter(None, record.get("queue", _ALL).split(",")))
                known |= named
                if not queues or not named or named & set(queues):
                    counted.update({name: _count(record.get(name, "")) for name in ("waiting", "running")})
        if set(queues) - known:
            known |= self.capacity().keys()  # one without jobs
        if missing := sorted(set(queues) - known):
            raise ValueError(f"no queue {', '.join(missing)}, there are {', '.join(sorted(known)) or 'none'}")
        return JobCounts(waiting=counted["waiting"], running=counted["running"])

    def _submission(self, job: BatchJob, dry_run: Sequence[str] = ()) -> list[str]:
        submit, flags = self.dialect.submit, (*self.flags, *job.flags)
        self._check_flags(job)
        values = self._values(job)
        asked = [word.format_map(values) for word in _words(submit, job, flags)]
        words = options.merge_options([*asked, *flags, *dry_run], submit.merged, submit.short)
        if submit.joined is not None:
            words = options.join_option(words, submit.joined)
        return [*words, *(word.format_map(values) for word in submit.script)]

    def _check_flags(self, job: BatchJob) -> None:
        try:
            self.dialect.check_submission((*self.flags, *job.flags), queue=job.queue)
        except ValueError as error:
            raise SubmissionRefused(f"{job.stamp}: {error}") from None

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
            "nodes": ",".join(job.avoided_nodes),
            "about": ";".join(f"{name}={value}" for name, value in job.labels.items()),
        }
        return {name: str(value) for name, value in values.items()}

    def _reference(self, said: str) -> str | None:
        match = restrictions.compiled(self.dialect.submit.reference, "m").search(said)
        return match["reference"] if match else None

    def _is_refused(self, done: Completed) -> bool:
        """Whether a submission that failed was refused, also in words that nobody has foreseen.

        A submit command fails by its server's answer, which says why, or because none came, which it says
        in the words of its system or of the libraries. So a command that ended by itself, for another
        reason, left no job. Should one be there, it bears its stamp: directors end jobs that nobody follows,
        job managers look for it before they try again.
        """
        said, uncertain = f"{done.stdout}\n{done.stderr}".strip(), self.dialect.uncertain
        if _is_found(_TROUBLE, said) or (uncertain is not None and _is_found(uncertain, said)):
            return False
        if self.dialect.refused is not None and _is_found(self.dialect.refused, said):
            return True
        return uncertain is not None and bool(said) and done.status not in _NOT_ITS_OWN

    def _listing(self) -> Iterator[ListedJob]:
        listing = self.dialect.listing
        for record in read_records(self._output_of(listing), listing, needed=_NEEDED):
            yield from self._rows(record, listing)

    def _accounted(self, stamps: Collection[str]) -> Iterator[ListedJob]:
        if (source := self.dialect.accounting) is None:
            return
        # One for all jobs of everybody costs the same whatever is named in it.
        parts = (
            split_words(sorted(stamps)) if any(NAMES_OF_JOBS in word for word in source.command) else [stamps]
        )
        for some in parts:
            names = ",".join(self.dialect.name.format(stamp=stamp) for stamp in sorted(some))
            words = [word.replace(NAMES_OF_JOBS, names) for word in source.command]
            records = read_records(_stdout(words, self._shell.run(words), source.excuse), source)
            whole = [each for each in records if each.keys() >= set(_NEEDED)]  # of a job all records or none
            for record in whole:
                yield from self._rows(record, source)

    def _rows(self, record: Mapping[str, str], source: ListingCommand) -> Iterator[ListedJob]:
        """The job of a record; none: it does not bear a name of ours."""
        before, after = self.dialect.name.format(stamp="\0").split("\0")
        name = "".join(record["name"].split())  # a long one may be folded
        if name.startswith(before) and name.endswith(after):
            stamp = name.removeprefix(before).removesuffix(after)
            yield _listed_job(record, source, stamp)

    def _lives(self, row: ListedJob) -> bool:
        return row.state not in ENDED or (self.dialect.listing.kill_failed and row.state is State.FAILED)

    def _end(self, references: Sequence[str]) -> None:
        kill = self.dialect.kill
        words = [each for word in kill.command for each in (references if word == REFERENCES else (word,))]
        _stdout(words, self._shell.run(words), kill.excuse)

    def _output_of(self, source: RecordSource) -> str:
        said = _stdout(source.command, self._shell.run(source.command), source.excuse)
        if source.end is not None and not _is_found(source.end, said):
            raise BatchSystemAway(f"{source.command[0]}: the answer breaks off at {said[-80:]!r}")
        return said


def _words(submit: SubmitCommand, job: BatchJob, flags: Sequence[str]) -> Iterable[str]:
    resources = job.resources
    asked: Mapping[Resource, bool] = {
        "cores": True,
        "several_cores": resources.cores > 1,
        "memory": resources.memory is not None,
        "wall_time": resources.wall_time is not None,
        "gpus": resources.gpus > 0,
        "whole_node": resources.whole_node,
    }
    yield from submit.command
    if job.about:
        yield from submit.about
    for name, is_asked in asked.items():
        other = submit.replaced.get(name)
        if is_asked and not (other is not None and any(_is_found(other, flag) for flag in flags)):
            yield from cast("Words", getattr(submit, name))
    if job.avoided_nodes:
        yield from submit.exclude


def _listed_job(record: Mapping[str, str], source: ListingCommand, stamp: str) -> ListedJob:
    word = record["state"]
    meaning = source.states.get(word, source.otherwise)
    status = _exit_status(record.get("exit", ""))
    ended = State.GONE if status is None else State.FAILED if status else State.DONE
    is_strange = meaning == "unknown" and word not in source.states
    said = f"{word}: not among the states of the dialect" if is_strange else word
    return ListedJob(
        stamp=stamp,
        reference=record["reference"],
        state=ended if meaning == "ended" else State(meaning),
        message=" ".join(record.get("message", "").split()) or said,
        exit_code=status,
        node=record.get("node", ""),
    )


def _stdout(command: Sequence[str], done: Completed, excuse: Excuse | None) -> str:
    if done.status != 0 and not _is_excused(done, excuse):
        raise BatchSystemAway(f"{command[0]}: {done.said}")
    return done.stdout


def _is_excused(done: Completed, excuse: Excuse | None) -> bool:
    if excuse is None or done.status < 0 or done.status not in (excuse.statuses or (done.status,)):
        return False
    return _is_found(excuse.said, f"{done.stdout}\n{done.stderr}".strip())


def _is_found(pattern: str, text: str) -> bool:
    return restrictions.compiled(pattern, "m").search(text) is not None


def _exit_status(text: str) -> int | None:
    if not text.isdecimal():
        return None
    number = int(text)
    return number - _SIGNALS_OF_PBS + 128 if number > _SIGNALS_OF_PBS else number


class DialectSettings(CommandSettings):
    """Settings of a batch system with a dialect: all of it, or what differs from the one of its kind."""

    dialect: Dialect

    @model_validator(mode="before")
    @classmethod
    def _complete_dialect(cls, said: object) -> object:
        """Put the changes of a site into the dialect that is shipped for its kind."""
        if not isinstance(said, dict) or said.get("kind") not in dialect.SHIPPED:
            return said
        changes = {} if said.get("dialect") is None else said["dialect"]
        if not isinstance(changes, dict):
            return said
        return {**said, "dialect": dialect.merge_dialect(dialect.shipped_content(said["kind"]), changes)}

    @model_validator(mode="after")
    def _has_nothing_forbidden(self) -> Self:
        self.dialect.check_submission(self.flags, self.environment)
        return self

    @property
    def unset(self) -> tuple[str, ...]:
        """Variables of the environment that its commands do not get."""
        return self.dialect.unset

    @property
    def languages(self) -> tuple[Vocabulary, ...]:
        """The vocabularies of the flags that it takes from the service."""
        return self.dialect.languages

    def check_flags(self, flags: Iterable[str], *, queue: str = "") -> None:
        """Raise a `ValueError` for flags and the name of a batch queue that its dialect forbids."""
        self.dialect.check_submission(flags, queue=queue)


def _open(settings: DialectSettings, connections: Connections) -> DialectSystem:
    return DialectSystem(areas=connections.areas(settings), flags=settings.flags, dialect=settings.dialect)


KIND: Final = BatchSystemKind(open=_open, settings=DialectSettings)
KIND_WITH_QUEUE_LISTS: Final = replace(KIND, takes_queue_list=True)
