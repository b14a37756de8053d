"""Handlers of job types: what is particular to a kind of grid job, in a few short methods.

A handler for one more job type is a class of somebody else's package, registered under the entry point
group `pilotage.job_types`; its name there is the `JobType` of the jobs. Source: SAM-Grid, job manager
adapters.

The user's command for one local job: what differs from one to the next is put in its place.

Numbers that a job description asks for, read with words for the user.

What handlers answer, which may be anybody's: their faults end their grid jobs, and nothing else.
"""

import logging
import shlex
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from fractions import Fraction
from importlib import metadata
from typing import Any, Protocol, TypeVar, runtime_checkable

from pilotage.fabric.manager.errors import UnfitJob

GROUP = "pilotage.job_types"


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteLimits:
    """What a site says of grid jobs of one type."""

    max_cpu_per_job: float | None = None  #: seconds of CPU that one local job should take at most
    cpu_per_event: float | None = None  #: seconds of CPU, where the user does not say
    max_local_jobs: int = 10_000  #: of one grid job


@dataclass(frozen=True, slots=True, kw_only=True)
class HandledJob:
    """A grid job as its handler sees it."""

    job_id: int
    description: Mapping[str, Any]  #: as the service checked it, keywords in its spelling
    number: int = 0  #: of its local jobs, once that is decided; it stays as it is from then on


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalCommand:
    """What a local job runs."""

    words: tuple[str, ...]  #: the program, in the sandbox or on the node, and its arguments
    environment: Mapping[str, str] = field(default_factory=dict)  #: beside what the user states
    size: int | None = None  #: units that it will do, such as events; None: they are not counted


@runtime_checkable
class Handler(Protocol):
    """A job type. Local jobs are numbered from 1."""

    def check(self, job: HandledJob) -> None:
        """Look for what is wrong with a grid job before anything is done.

        Raises:
            UnfitJob: In words for the user: which keyword, what was seen, what is allowed.
        """
        ...

    def number_of_jobs(self, job: HandledJob, site: SiteLimits) -> int:
        """How many local jobs a grid job becomes.

        Raises:
            UnfitJob: It cannot be done at this site.
        """
        ...

    def prepare_work_area(self, job: HandledJob, n: int) -> Mapping[str, bytes]:
        """Small files for the directory of local job `n`, by name, beside the input sandbox."""
        ...

    def command(self, job: HandledJob, n: int) -> LocalCommand:
        """What local job `n` runs."""
        ...


def installed_handlers() -> dict[str, Handler]:
    """The handlers of all installed packages, by the `JobType` that they are for.

    Raises:
        TypeError: What an entry point names is no handler.
        ImportError: It cannot be imported.
    """
    return {each.name: _load_handler(each) for each in metadata.entry_points(group=GROUP)}


def _load_handler(entry: metadata.EntryPoint) -> Handler:
    handler = entry.load()()
    if not isinstance(handler, Handler):
        raise TypeError(f"{GROUP}: {entry.name} = {entry.value!r} is no handler: methods are missing")
    return handler


def build_command(
    description: Mapping[str, Any], values: Mapping[str, int], *, size: int | None = None
) -> LocalCommand:
    """The program with its arguments, where `{name}` stands for a value.

    Args:
        description: Of the grid job.
        values: By name; each is in the environment, too, under its name in capitals.
        size: Units that the local job does.

    Raises:
        UnfitJob: There is nothing to run, or the arguments cannot be separated into words.
    """
    executable = str(description.get("Executable") or "").strip()
    if not executable:
        raise UnfitJob("Executable: is missing")
    words = [_fill_word(word, values) for word in _words(description.get("Arguments"))]
    environment = {name.upper(): str(value) for name, value in values.items()}
    return LocalCommand(words=(executable, *words), environment=environment, size=size)


def _words(stated: object) -> list[str]:
    if stated is None:
        return []
    if isinstance(stated, list | tuple):
        return [str(word) for word in stated]
    try:
        return shlex.split(str(stated))
    except ValueError as error:
        raise UnfitJob(f"Arguments: {str(stated)!r:.80}: {error}") from None


def _fill_word(word: str, values: Mapping[str, int]) -> str:
    for name, value in values.items():
        word = word.replace(f"{{{name}}}", str(value))
    return word


#: More than anybody means.
MOST = 10**12


def read_whole(description: Mapping[str, Any], keyword: str, *, least: int = 1) -> int | None:
    """A whole number; None: it is not stated.

    Raises:
        UnfitJob: It is something else, too small or beyond `MOST`.
    """
    stated = description.get(keyword)
    if stated is None:
        return None
    if isinstance(stated, bool) or not isinstance(stated, int | float) or stated != stated // 1:
        raise UnfitJob(f"{keyword}: {stated!r:.80} is no whole number")
    if not least <= stated <= MOST:
        raise UnfitJob(f"{keyword}: {stated!r:.80} is not allowed, only {least} to {MOST}")
    return int(stated)


def read_seconds(description: Mapping[str, Any], keyword: str) -> Fraction | None:
    """A time, exactly as it is written; None: it is not stated.

    Raises:
        UnfitJob: It is no number above 0.
    """
    stated = description.get(keyword)
    if stated is None:
        return None
    if isinstance(stated, bool) or not isinstance(stated, int | float) or not 0 < stated <= MOST:
        raise UnfitJob(f"{keyword}: {stated!r:.80} is no number of seconds above 0")
    return exact_fraction(stated)


def exact_fraction(number: float) -> Fraction:
    """A number as its decimal digits say: 0.3 / 0.1 is 3."""
    return Fraction(repr(number))


log = logging.getLogger(__name__)

_Answer = TypeVar("_Answer")

#: Seconds that a handler may take for an answer.
PATIENCE = 60.0
#: Bytes of the files that a handler adds to a local job.
_MOST_ADDED = 1 << 20


def call_handler(handler: Handler, ask: Callable[[], _Answer], *, patience: float = PATIENCE) -> _Answer:
    """What a handler says.

    It is asked in a thread of its own, which is left alone if it hangs.

    Raises:
        UnfitJob: The handler refuses the job, breaks, or says nothing for so many seconds.
    """
    answer: Future[_Answer] = Future()
    name = f"handler {type(handler).__name__}"
    threading.Thread(target=_call, args=(ask, answer), name=name, daemon=True).start()
    try:
        return answer.result(patience)
    except UnfitJob:
        raise
    except TimeoutError:
        log.error("the %s does not answer", name)  # noqa: TRY400 - there is nothing to see in ours
        raise UnfitJob(f"the {name} gave no answer within {patience:g} s") from None
    except (Exception, SystemExit) as error:  # other people's code
        log.exception("the %s broke", name)
        raise UnfitJob(f"the {name} broke: {error!r:.300}") from error


def _call(ask: Callable[[], _Answer], answer: Future[_Answer]) -> None:
    try:
        answer.set_result(ask())
    except (Exception, SystemExit) as error:  # noqa: BLE001 - raised again by the one who asks
        answer.set_exception(error)


def checked_command(command: LocalCommand) -> LocalCommand:
    """A command as the book and the scripts can take it.

    Raises:
        TypeError: Something in it is not what it should be.
    """
    words: Any = command.words
    environment: Any = command.environment
    size: Any = command.size
    if not isinstance(words, tuple | list) or not words or not all(isinstance(each, str) for each in words):
        raise TypeError(f"words: {words!r:.100} are no strings, the program first")
    if not isinstance(environment, Mapping) or not all(
        isinstance(each, str) for pair in environment.items() for each in pair
    ):
        raise TypeError(f"environment: {environment!r:.100} does not map strings to strings")
    if size is not None and not (isinstance(size, int) and 0 <= size <= MOST):
        raise TypeError(f"size: {size!r:.100} is no whole number from 0 to {MOST}")
    return command


def checked_files(files: Mapping[str, bytes]) -> Mapping[str, bytes]:
    """Files for a local job, as its script can bring them along.

    Raises:
        UnfitJob: They are too large, or have no plain names.
        TypeError: They are something else.
    """
    stated: dict[Any, Any] = dict(files)
    if not all(isinstance(name, str) and isinstance(content, bytes) for name, content in stated.items()):
        raise TypeError("files: they are no bytes by name")
    if sum(map(len, stated.values())) > _MOST_ADDED or not all(map(_is_plain, stated)):
        raise UnfitJob(f"the files of a local job are no plain names with {_MOST_ADDED} bytes at most")
    return stated


def _is_plain(name: str) -> bool:
    return name not in ("", ".", "..") and "/" not in name and name.isprintable()
