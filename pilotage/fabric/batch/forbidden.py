"""What a submission must not have: with it, it would not be one job that starts and can be followed.

Batch systems accept such flags, also in their dry runs. Each has a table of its own, which the check of a
configuration, `--check` and each submission read.
"""

from collections.abc import Collection, Iterable, Mapping
from typing import Annotated, Final, Literal

from pydantic import AfterValidator, Field

from pilotage.fabric.file_section import FileSection
from requirements.classad import restrictions

#: What would come of it instead.
Kind = Literal["elsewhere", "several_jobs", "blocking", "held", "renamed", "unread"]
WHY: Final[Mapping[Kind, str]] = {
    "elsewhere": "only the submission would go there, not the commands that list and end jobs",
    "several_jobs": "a submission has to make one job: nobody would follow and end the others",
    "blocking": "the submission would last as long as the job, and no other is made meanwhile",
    "held": "the job would not start by itself, or only at a time",
    "renamed": "jobs are found by their names, and nobody would follow and end one of another name",
    "unread": "no job would be made, or its reference not be printed",
}


def _pattern(text: str) -> str:
    if (why := restrictions.refusal(text, "m")) is not None:
        raise ValueError(why)
    return text


Pattern = Annotated[str, Field(min_length=1), AfterValidator(_pattern)]


class ForbiddenFlags(FileSection):
    """Flags, variables and names of queues of one kind that are refused."""

    flags: Pattern  #: in the words of the submit command, of which each is a line
    variables: tuple[str, ...] = ()  #: of the environment
    queue: Pattern | None = None  #: in the name of the batch queue
    instead: str = Field(min_length=1)  #: what to do, for messages

    def find(self, flags: Iterable[str], environment: Collection[str], queue: str) -> str | None:
        """The words, the variable or the name of the queue that are refused; None: there are none."""
        words = "\n".join(flags)
        if found := restrictions.compiled(self.flags, "m").search(words):
            begin, end = words.rfind("\n", 0, found.start()) + 1, words.find("\n", found.end())
            return words[begin : end if end >= 0 else None].replace("\n", " ")
        if self.queue is not None and restrictions.compiled(self.queue, "m").search(queue):
            return queue
        return next((each for each in self.variables if each in environment), None)


def check_submission(
    forbidden: Mapping[Kind, ForbiddenFlags | None],
    flags: Iterable[str],
    environment: Collection[str] = (),
    *,
    queue: str = "",
) -> None:
    """Refuse what a table of a batch system forbids.

    Raises:
        ValueError: It is among the flags or variables, or in the name of the queue.
    """
    words = list(flags)
    for kind, each in forbidden.items():
        if each is not None and (found := each.find(words, environment, queue)) is not None:
            raise ValueError(f"{found}: {WHY[kind]}: {each.instead}")
