"""A prepared request, with its candidates and the place where its jobs would run; and its result."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from cs_config.cache import evict
from cs_config.tree.configuration import Configuration
from matcher import allotment, rules
from matcher.allotment import JobSize, read_size
from matcher.index.sampling import CandidateOrder
from matcher.limits.admission import AdmissionPolicy
from matcher.request.match_request import MatchRequest
from requirements.resource import Allotment, Location, Resource
from taskqueue.leases.opening import ClaimedJob, LeaseHolder
from taskqueue.task_queues.task_queues import TaskQueue

#: Cached allotments per place.
_ALLOTMENTS = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimRequest:
    """A prepared request: the place where its jobs would run, and the candidates."""

    request: MatchRequest
    resource: Resource  #: shared by the jobs
    place: Location
    holder: LeaseHolder
    drawn: CandidateOrder  #: matching task queues, in the order to try them
    draw: Callable[[Sequence[str]], Iterator[TaskQueue]]  #: again, those of some VOs before all others
    config: Configuration  #: with which it was prepared
    #: VOs that it does not serve, with a floor at the site and work that its slot would go to
    owners: frozenset[str] = frozenset()
    admission: AdmissionPolicy | None = None  #: checks jobs one by one; None: all are admitted
    otherwise: str | None = None  #: reason if none of the candidates has a job any more
    is_restricted: bool = False  #: whether the place is known to have limits, bans or throttles
    #: The scope that keeps statements with limits apart; None: no limits, or no statement applies them.
    locks: str | None = None
    #: of single jobs, by the cores that they need: shared by requests that differ in the time left only
    allotments: dict[JobSize, Allotment] = field(default_factory=dict)

    @property
    def is_single(self) -> bool:
        """Whether one batch statement may claim for it: one job, and any will do.

        Not without a queue: the statement does not search for rules inside a place.
        """
        is_any = self.admission is None and self.request.presented.job_id is None
        return self.request.count == 1 and is_any and bool(self.place.queue)

    def allot_one(self, task_queue: TaskQueue) -> Allotment:
        """The allotment of a single job of a task queue."""
        asked = task_queue.requirement_class
        size = rules.needed_cores(asked, self.resource), *read_size(asked)
        known = self.allotments.get(size)
        if known is None:
            known = allotment.allot_one(self.resource, asked)
            if len(self.allotments) >= _ALLOTMENTS:
                evict(self.allotments, _ALLOTMENTS)
            self.allotments[size] = known
        return known


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimResult:
    """The result of a claim for one request: jobs, or a reason."""

    claimed: tuple[ClaimedJob, ...] = ()
    refused: str | None = None  #: reason code why it may have none now, as `Matches.reason` lists them
    emptied: frozenset[int] = frozenset()  #: tried task queues without a job
    #: matching jobs are locked by other transactions; they may become free again
    in_other_hands: bool = False
