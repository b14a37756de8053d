"""The fields of a job: a table from which its filters, lists, answers and options follow.

A new field is one row of `FIELDS`: with a filter it becomes a parameter of the interface and of its document,
an option of the commands, a filter of `Client`, an input of the page, and a column by which jobs are counted.
Its values are in answers, downloads and the list of the page. The column in the database has the same name,
unless `taskqueue.jobs.columns` makes it otherwise.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final, Generic, TypeVar

from requirements.states import JobStatus, LocalJobsStatus

V = TypeVar("V")

#: What a point in time may be; the service reads it.
MOMENT: Final = "a time (UTC without a zone), a date, or how long ago: 30m, 24h, 7d, 12w"


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """A filter of jobs by one of their fields."""

    name: str = ""  #: in the interface; empty: that of the field
    title: str = ""  #: on pages; empty: that of the field
    words: str = ""  #: in the document of the interface
    help: str = ""  #: of the option; empty: `Only jobs with this <title>.`
    option: str = ""  #: without the dashes; empty: the name
    metavar: str = "TEXT"
    hint: str = ""  #: in its empty input on pages
    noun: str = (
        ""  #: of a value that nobody has, so that it is probably misspelt; empty: such values are usual
    )
    has_several: bool = False  #: of which a job has one, separated by commas
    is_rare: bool = False  #: pages show it on demand


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class JobField(Generic[V]):
    """A field of a job."""

    name: str  #: in answers, and of its column
    type: type[V]
    title: str  #: in lists on pages
    words: str = ""  #: in the document of the interface
    filters: Sequence[Filter] = ()  #: one; of a time those for its earliest and latest value
    may_be_null: bool = False
    is_answered: bool = True  #: it is in lists and answers
    is_personal: bool = False  #: it shows the work of persons
    is_of_attempt: bool = False  #: of the latest attempt, not of the job itself
    is_of_change: bool = False  #: it changes with the status
    is_in_changes: bool = False  #: reports of changes of the status have it, too
    is_rare: bool = False  #: lists on pages show it on demand
    has_job_id: bool = False  #: descriptions may have `%j` in it, which stands for the id of each job

    @property
    def filter_name(self) -> str:
        """The name of its only filter."""
        return self.filters[0].name or self.name

    @property
    def is_number(self) -> bool:
        """Whether its values are numbers."""
        return self.type in (int, float)

    @property
    def is_counted(self) -> bool:
        """Whether jobs can be counted by its values."""
        return bool(self.filters) and self.type is not datetime and self.name != "job_id"


AnyField = (
    JobField[int]
    | JobField[str]
    | JobField[float]
    | JobField[datetime]
    | JobField[JobStatus]
    | JobField[LocalJobsStatus]
)

#: In the order of answers. Those that code refers to have a name.
# fmt: off
FIELDS: Final[Sequence[AnyField]] = (
    JOB_ID := JobField(name="job_id", type=int, title="Job", is_personal=True,
        filters=[Filter(name="ids", title="Job ids", words="Job ids.", hint="17, 18", has_several=True)]),
    VO := JobField(name="vo", type=str, title="VO", is_in_changes=True,
        filters=[Filter(words="VO; in filters several, separated by commas.", help="Only jobs of this VO.",
            metavar="VO", noun="VO", has_several=True)]),
    OWNER := JobField(name="owner", type=str, title="Owner", is_personal=True, is_in_changes=True,
        filters=[Filter(words="Owner of the jobs.", help="Only jobs of this owner.", metavar="NAME",
            noun="owner")]),
    OWNER_GROUP := JobField(name="owner_group", type=str, title="Owner group", is_personal=True,
        is_rare=True,
        filters=[Filter(words="Owner group of the jobs.", help="Only jobs of this owner group.",
            metavar="NAME", hint="cms_user", noun="owner group")]),
    STATUS := JobField(name="status", type=JobStatus, title="Status", is_of_change=True,
        filters=[Filter(words="One or several statuses, separated by commas.",
            help="Only jobs with one of these statuses.", metavar="S1,S2", has_several=True)]),
    MINOR_STATUS := JobField(name="minor_status", type=str, title="Minor status", is_of_change=True,
        words="Why it is in this status.",
        filters=[Filter(words="Minor status: the reason for the status.", hint="No eligible queue")]),
    JobField(name="application_status", type=str, title="Application status", is_rare=True,
        is_of_change=True,
        filters=[Filter(words="Application status, as the pilot or payload reported it.")]),
    JOB_NAME := JobField(name="job_name", type=str, title="Name", is_personal=True, is_in_changes=True,
        has_job_id=True,
        filters=[Filter(words="`JobName` of the description.", option="name", metavar="NAME", noun="name")]),
    JobField(name="job_type", type=str, title="Type", is_rare=True,
        filters=[Filter(words="`JobType` of the description.", help="Only jobs of this type.",
            option="type", metavar="TYPE")]),
    JOB_GROUP := JobField(name="job_group", type=str, title="Job group", is_personal=True,
        is_in_changes=True, is_rare=True, has_job_id=True,
        filters=[Filter(words="`JobGroup` of the description.", help="Only jobs of this JobGroup.",
            option="group", metavar="NAME", noun="group")]),
    JobField(name="priority", type=float, title="Priority", is_rare=True, words="The user's, 0 to 10."),
    SUBMIT_POOL := JobField(name="submit_pool", type=str, title="SubmitPool", may_be_null=True, is_rare=True,
        words="Id of its SubmitPool; null: no Requirements, or not yet.",
        filters=[Filter(name="pool", words="Id of the SubmitPool.", help="Only jobs of this SubmitPool.",
            metavar="ID", hint="its id", noun="pool")]),
    SITE := JobField(name="site", type=str, title="Site", is_in_changes=True,
        words="Site of the latest attempt; before that, the requested site.",
        filters=[Filter(words="Site, such as `LCG.CERN.ch`; in filters several, separated by commas.",
            help="Only jobs at this site.", metavar="SITE", hint="LCG.CERN.ch", noun="site",
            has_several=True)]),
    JobField(name="epoch", type=int, title="Attempt", is_rare=True, words="Number of its latest attempt."),
    JobField(name="reschedules", type=int, title="Rescheduled", is_rare=True),
    SUBMITTED_AT := JobField(name="submitted_at", type=datetime, title="Submitted",
        filters=[Filter(name="submitted_since", title="Submitted since (UTC)",
            words="Submitted then or later: a time, a date, or how long ago: 30m, 24h, 7d.",
            help=f"Only jobs submitted then or later: {MOMENT}.", option="since", metavar="TIME",
            hint="7d or 2026-03-28", is_rare=True),
            Filter(name="submitted_before", title="Submitted before (UTC)",
            words="Submitted before: the same forms.", help="Only jobs submitted before.", option="before",
            metavar="TIME", is_rare=True)]),
    UPDATED_AT := JobField(name="updated_at", type=datetime, title="Last change", is_of_change=True,
        words="Last change of status.",
        filters=[Filter(name="updated_since", title="Changed since (UTC)",
            words="Last change of status then or later: the same forms.",
            help="Only jobs whose status last changed then or later.", option="changed-since",
            metavar="TIME", is_rare=True),
            Filter(name="updated_before", title="Changed before (UTC)",
            words="Last change of status before: the same forms.",
            help="Only jobs whose status last changed before.", option="changed-before", metavar="TIME",
            is_rare=True)]),
    JobField(name="started_at", type=datetime, title="Started", may_be_null=True, is_rare=True),
    JobField(name="ended_at", type=datetime, title="Ended", may_be_null=True, is_rare=True),
    JobField(name="exit_code", type=int, title="Exit code", may_be_null=True, is_of_attempt=True,
        is_rare=True,
        words="Of the payload of the latest attempt; null: it has not ended.",
        filters=[Filter(
            words="Exit codes of payloads, of latest attempts, or ranges: 64-78; `none`: it has not ended.",
            help="Only jobs whose payload ended with one of these exit codes; none: it has not ended.",
            metavar="N,N-M", hint="1, 64-78", has_several=True)]),
    LOCAL_STATUS := JobField(name="local_status", type=LocalJobsStatus, title="Local jobs",
        is_answered=False, is_of_attempt=True, is_rare=True,
        filters=[Filter(words="Overall statuses of a grid job's local jobs, of its latest attempt.",
            help="Only grid jobs whose local jobs are together unsubmitted, active, done or error.",
            metavar="S1,S2", hint="active, error", has_several=True)]),
)
# fmt: on

#: Names of the fields in which `%j` of a description becomes the id of each job.
WITH_JOB_ID: Final = tuple(each.name for each in FIELDS if each.has_job_id)

#: Fields of lists with little room, of commands and in notebooks; the last ones give way first.
BRIEF: Final[Sequence[AnyField]] = (
    JOB_ID,
    STATUS,
    MINOR_STATUS,
    SITE,
    SUBMITTED_AT,
    JOB_NAME,
    OWNER,
    VO,
)


def _complete(field: AnyField, filter_: Filter) -> Filter:
    """The filter with what follows from its field."""
    name, title = filter_.name or field.name, filter_.title or field.title
    return replace(
        filter_,
        name=name,
        title=title,
        help=filter_.help or f"Only jobs with this {title.lower()}.",
        option=filter_.option or name.replace("_", "-"),
        is_rare=filter_.is_rare or field.is_rare,
    )


#: Filters by name, and the field of each.
FILTERS: Final[Mapping[str, Filter]] = {
    each.name: each for field in FIELDS for each in (_complete(field, given) for given in field.filters)
}
FILTERED: Final[Mapping[str, AnyField]] = {
    given.name or field.name: field for field in FIELDS for given in field.filters
}
#: Names of the filters whose values are times.
TIMES: Final = frozenset(name for name, field in FILTERED.items() if field.type is datetime)
#: Names of the filters, the groupings and the columns of lists that show the work of persons.
PERSONAL: Final = frozenset(
    name
    for field in FIELDS
    if field.is_personal
    for name in (field.name, *(given.name or field.name for given in field.filters))
)
