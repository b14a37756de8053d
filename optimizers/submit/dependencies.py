"""The jobs that a submission's jobs wait for: names resolved within it, ids checked, cycles refused."""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final

from sqlalchemy import Connection

from cs_config.options import bounds
from optimizers.description.parametric import JobMember
from optimizers.submit.checking import CheckedJobs
from requirements.errors import MOST_HINTS, InvalidJob, Problem, did_you_mean
from requirements.job_fields import JOB_ID
from requirements.states import AfterPolicy, JobStatus
from requirements.values import MAX_INTEGER
from taskqueue.jobs import dependencies, search
from taskqueue.jobs.optimizer_queue import DecidedState, StatusUpdate
from taskqueue.jobs.search import JobSelector
from taskqueue.jobs.withheld import DEPENDENCIES

#: Names in the message about a cycle.
_SHOWN: Final = 20
_KEYWORD: Final = "After"
#: Names of a submission that an unknown one is compared with.
_COMPARED: Final = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Dependents:
    """Which jobs of a submission wait for which, by their places in it."""

    ids: Mapping[int, Sequence[int]]  #: stored jobs that each waits for
    places: Mapping[int, Sequence[int]]  #: jobs of the submission that each waits for
    policies: Mapping[int, AfterPolicy]
    stated: Mapping[int, tuple[str, ...]]  #: as in the descriptions
    owners: Mapping[int, tuple[str, str]]  #: VO and owner
    paths: Mapping[int, str]  #: for messages

    @property
    def edges(self) -> int:
        """Pairs of a job and one that it waits for."""
        return sum(len(each) for found in (self.ids, self.places) for each in found.values())

    def withhold(self, states: Sequence[DecidedState | None]) -> list[DecidedState | None]:
        """The states of all jobs, of which dependents are kept from pilots unless they failed."""
        kept: dict[tuple[str, ...], DecidedState] = {}
        found = list(states)
        for place, stated in self.stated.items():
            state = states[place]
            if state is None or state.update.status is not JobStatus.FAILED:
                found[place] = kept.setdefault(stated, _keep(stated))
        return found

    def store(self, conn: Connection, job_ids: Sequence[int]) -> None:
        """Store what each of the new jobs waits for."""
        parents = {
            job_ids[place]: [
                *self.ids.get(place, ()),
                *(job_ids[each] for each in self.places.get(place, ())),
            ]
            for place in self.policies
        }
        policies = {job_ids[place]: policy for place, policy in self.policies.items()}
        dependencies.store_parents(conn, parents, policies)

    def require_stored(self, conn: Connection) -> None:
        """Require that the jobs named by id are stored, and of the owner and VO of those that wait."""
        wanted = {job_id for each in self.ids.values() for job_id in each}
        if not wanted:
            return
        named = search.list_jobs(conn, JobSelector().where(JOB_ID, wanted), limit=len(wanted))
        owners = {job.job_id: (job.vo, job.owner) for job in named}
        problems = [
            Problem(
                path=f"{self.paths[place]}{_KEYWORD}",
                message=f"{self.owners[place][1]} has no job {job_id} in {self.owners[place][0]}",
            )
            for place, each in self.ids.items()
            for job_id in each
            if owners.get(job_id) != self.owners[place]
        ]
        if problems:
            raise InvalidJob(problems)


def _keep(stated: Sequence[str]) -> DecidedState:
    named = ", ".join(stated[:_SHOWN]) + (" …" if len(stated) > _SHOWN else "")
    update = StatusUpdate(
        status=JobStatus.CHECKING,
        minor_status=DEPENDENCIES.minor,
        application_status=f"after {named}",
        source=dependencies.SOURCE,
        step=DEPENDENCIES.step,
    )
    return DecidedState(update=update)


def find_dependents(checked: Sequence[CheckedJobs]) -> Dependents:
    """Which jobs of a submission wait for which; `InvalidJob` for unfit names, cycles, and too many."""
    jobs = [_read_job(each, member) for each in checked for member in each.submitted.members]
    stated = {place: job.after for place, job in enumerate(jobs) if job.after}
    names: defaultdict[str, list[int]] = defaultdict(list)
    for place, job in enumerate(jobs if stated else ()):
        names[job.name].append(place)
    by_name = {name: places for name, places in names.items() if name}
    paths = {place: jobs[place].path for place in stated}
    _require_few(stated, by_name)
    if unfit := list(_list_unfit(stated, by_name, paths)):
        raise InvalidJob(unfit)
    _require_order(stated, by_name)
    return Dependents(
        ids={place: [int(word) for word in after if word not in by_name] for place, after in stated.items()},
        places={
            place: [one for word in after for one in by_name.get(word, ())] for place, after in stated.items()
        },
        policies={place: jobs[place].policy for place in stated},
        stated=stated,
        owners={place: jobs[place].whose for place in stated},
        paths=paths,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Job:
    """What a job states about others, and what others may name it by."""

    name: str
    after: tuple[str, ...]
    policy: AfterPolicy
    whose: tuple[str, str]
    path: str


def _read_job(checked: CheckedJobs, member: JobMember) -> _Job:
    own, shared, whose = member.own, member.description, checked.submitted.whose
    return _Job(
        name=own.get("job_name", shared.job_name),
        after=own.get("after", shared.after),
        policy=AfterPolicy(own.get("after_policy", shared.after_policy)),
        whose=(whose.vo, whose.owner),
        path=checked.path,
    )


def _is_id(word: str) -> bool:
    return word.isdecimal() and len(word) <= len(str(MAX_INTEGER)) and int(word) <= MAX_INTEGER


def _list_unfit(
    stated: Mapping[int, Sequence[str]], known: Collection[str], paths: Mapping[int, str]
) -> Iterator[Problem]:
    words = ((place, word) for place, after in stated.items() for word in after)
    # A name of digits could be either: one of them is not chosen silently.
    unfit = ((place, word) for place, word in words if (word in known) == _is_id(word))
    for number, (place, word) in enumerate(unfit):
        if word in known:
            message = (
                f"{word!r} may be the id of a job, and is the JobName of one in this submission: rename it"
            )
            yield Problem(path=f"{paths[place]}{_KEYWORD}", message=message)
            continue
        meant = did_you_mean(word, islice(known, _COMPARED)) if number < MOST_HINTS else None
        hint = f", did you mean {meant}?" if meant else ""
        message = f"{word!r} is neither the id of a job nor the JobName of one in this submission{hint}"
        yield Problem(path=f"{paths[place]}{_KEYWORD}", message=message)


def _require_few(stated: Mapping[int, tuple[str, ...]], by_name: Mapping[str, Sequence[int]]) -> None:
    """Refuse too many pairs of jobs; jobs that share a description are counted together."""
    number = sum(
        times * sum(len(by_name.get(word, "1")) for word in after)
        for after, times in Counter(stated.values()).items()
    )
    if number > bounds.DEPENDENCIES:
        message = (
            f"{number:,} pairs of a job and one before it, allowed are {bounds.DEPENDENCIES:,}: "
            "put a job between that waits for all, and let the others wait for it"
        )
        raise InvalidJob([Problem(path=_KEYWORD, message=message)])


def _require_order(stated: Mapping[int, tuple[str, ...]], by_name: Mapping[str, Sequence[int]]) -> None:
    """Refuse names that wait for each other."""
    after = {
        name: {word for place in places for word in stated.get(place, ()) if word in by_name}
        for name, places in by_name.items()
    }
    if cycle := find_cycle(after):
        named = " after ".join(cycle[:_SHOWN]) + (" after …" if len(cycle) > _SHOWN else "")
        raise InvalidJob([Problem(path=_KEYWORD, message=f"jobs would wait for each other: {named}")])


def find_cycle(after: Mapping[str, Collection[str]]) -> list[str]:
    """Names of which each is after the next one, and the last is the first; empty: there is no cycle."""
    done: set[str] = set()
    for start in after:
        path: dict[str, Iterator[str]] = {}
        name: str | None = start
        while name is not None:
            if name in path:
                names = list(path)
                return [*names[names.index(name) :], name]
            if name in done:
                name = _next(path, done)
                continue
            path[name] = iter(sorted(after.get(name, ())))
            name = _next(path, done)
    return []


def _next(path: dict[str, Iterator[str]], done: set[str]) -> str | None:
    """The next name to visit behind a path, whose finished ends are taken off; None: all is visited."""
    while path:
        last = next(reversed(path))
        for following in path[last]:
            if following not in done:
                return following
        done.add(last)
        del path[last]
    return None
