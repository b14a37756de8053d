"""A request for work and its answer."""

from collections.abc import Hashable
from dataclasses import dataclass

from cs_config.address import QueueAddress
from matcher.resource import Presented
from taskqueue.claims import Claimed

#: Seconds until an idle pilot asks again.
RETRY_AFTER = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """Who asks, as their token says."""

    subject: str
    vos: frozenset[str]  #: lower case; only jobs of these
    queue: QueueAddress | None = None  #: the only one it may speak for; None: any
    stamp: str | None = None  #: of the pilot


@dataclass(frozen=True, slots=True, kw_only=True)
class MatchRequest:
    """A pilot's request for work."""

    presented: Presented
    caller: Caller
    deadline: float  #: on the monotonic clock; what cannot be delivered by then is not claimed
    count: int = 1  #: jobs at most
    request_id: str | None = None  #: the same again within the lease gets the same jobs
    #: The same for all that say the same of the same place with the same rights; None: nobody compares.
    likeness: Hashable | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MatchAnswer:
    """What the pilot is given, or why nothing."""

    matches: tuple[Claimed, ...] = ()
    reason: str | None = None  #: one word if there is nothing: no_task_queue, not_usable, banned
    retry_after: int | None = None  #: seconds
    warnings: tuple[str, ...] = ()
