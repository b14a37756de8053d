"""What handlers answer, which may be anybody's: their faults end their grid jobs, and nothing else."""

import logging
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any, TypeVar

from pilotage.fabric.manager.asked import MOST
from pilotage.fabric.manager.errors import UnfitJob
from pilotage.fabric.manager.handlers import Command, Handler

log = logging.getLogger(__name__)

_Answer = TypeVar("_Answer")

#: Seconds that a handler may take for an answer.
PATIENCE = 60.0
#: Bytes of the files that a handler adds to a local job.
_MOST_ADDED = 1 << 20


def asked_of(handler: Handler, ask: Callable[[], _Answer], *, patience: float = PATIENCE) -> _Answer:
    """What a handler says.

    It is asked in a thread of its own, which is left alone if it hangs.

    Raises:
        UnfitJob: The handler refuses the job, breaks, or says nothing for so many seconds.
    """
    answer: Future[_Answer] = Future()
    name = f"handler {type(handler).__name__}"
    threading.Thread(target=_answered, args=(ask, answer), name=name, daemon=True).start()
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


def _answered(ask: Callable[[], _Answer], answer: Future[_Answer]) -> None:
    try:
        answer.set_result(ask())
    except (Exception, SystemExit) as error:  # noqa: BLE001 - raised again by the one who asks
        answer.set_exception(error)


def sound_command(command: Command) -> Command:
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


def sound_files(files: Mapping[str, bytes]) -> Mapping[str, bytes]:
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
