"""Requests for work or pools, and their answers."""

from datetime import datetime
from typing import Any

from pydantic import AliasChoices, BaseModel, ConfigDict, Field

from cs_config.options import bounds
from pilotage.service.models import AnswerModel, StrictInput

#: Queues in one request.
MOST_QUEUES = 10_000
#: Resources in one request of demand.
MOST_RESOURCES = 2000
#: Jobs in one answer.
MOST_JOBS = 1000


class QueuesQuestion(StrictInput):
    """One queue or thousands: `queues`, or `Site`, `CE` and `Queue`."""

    model_config = ConfigDict(populate_by_name=True)

    queues: list[str] | None = Field(
        default=None, min_length=1, max_length=MOST_QUEUES, description="`Site/CE/Queue` of each."
    )
    site: str | None = Field(default=None, alias="Site")
    ce: str | None = Field(
        default=None,
        alias="CE",
        validation_alias=AliasChoices("CE", "GridCE", "CEName"),
        description="`GridCE`, as in a request for work, and `CEName` mean the same.",
    )
    queue: str | None = Field(
        default=None,
        alias="Queue",
        validation_alias=AliasChoices("Queue", "QueueName"),
        description="`QueueName` means the same.",
    )
    flags: bool = Field(default=False, description="Add the flags with which pilots for the pools are sent.")


class QueuePoolsPage(StrictInput):
    """The page of the pools of queues."""

    limit: int | None = Field(
        default=None,
        ge=1,
        le=bounds.QUEUE_POOLS,
        description="Most pools in the answer, over all queues; left out: all, in one answer.",
    )
    after: str | None = Field(
        default=None,
        pattern=r"^[0-9]{1,5}:[!-~]{1,64}$",
        description="`next` of the page before, for the same body.",
    )

    @property
    def cursor(self) -> tuple[int, str]:
        """The position of a queue in the request, and its pool behind which the page begins."""
        position, _, pool = (self.after or "0:").partition(":")
        return int(position), pool


class UnknownQueue(BaseModel):
    """A queue that is not in the configuration."""

    queue: str
    did_you_mean: str | None


class PilotGroupAnswer(AnswerModel):
    """Pilots of one queue that serve the same pools; pilots with other flags must not be mixed with them."""

    flags: list[str] = Field(description="Arguments of the submit command; empty: any node.")
    pools: list[str]


class QueuePoolsAnswer(BaseModel):
    """For each known queue the ids of the pools that it is eligible for."""

    pools: dict[str, list[str]]
    unknown: list[UnknownQueue]
    flags: dict[str, list[PilotGroupAnswer]] | None = Field(
        default=None, description="On request: the pools of each queue by the flags of their pilots."
    )
    next: str | None = Field(
        default=None, description="With `limit`: the `after` of the next page; null: this was the last."
    )


class ResourceDescription(BaseModel):
    """A resource offered by a pilot. Other names are kept as attributes and answered under `warnings`."""

    model_config = ConfigDict(extra="allow")

    Site: Any = Field(default=None, description="Site of the resource.")
    GridCE: Any = Field(default=None, description="The CE; `CE` means the same.")
    Queue: Any = Field(default=None, description="The batch queue.")
    CPUTime: Any = Field(default=None, description="Remaining CPU time in seconds.")
    Platform: Any = Field(default=None, description="Platforms that it can run.")
    Tag: Any = Field(default=None, description="Further capabilities.")
    RequiredTag: Any = Field(default=None, description="Only jobs that have all of these tags.")
    NumberOfProcessors: Any = Field(default=None, description="Cores.")
    MaxRAM: Any = Field(default=None, description="Memory in MB.")
    GPUs: Any = Field(default=None, description="GPUs.")
    JobType: Any = Field(default=None, description="Only jobs of these types.")
    OwnerGroup: Any = Field(default=None, description="Only jobs of these groups.")
    VO: Any = Field(default=None, description="VOs for which jobs are requested, of a caller with several.")
    PilotReference: Any = Field(default=None, description="The CE's id of the pilot.")
    SubmitPool: Any = Field(default=None, description="Pools that the pilot was sent for.")
    NodeFacts: Any = Field(default=None, description="Facts of the node measured by the pilot.")
    SubmitFlags: Any = Field(
        default=None,
        description="True: the jobs are submitted to the queue's batch system with the flags of the answer, "
        "so jobs come as well that leave to the nodes only what flags express.",
    )

    def to_record(self) -> dict[str, Any]:
        """The fields that are set, by the names used; the same order for the same names."""
        present = self.model_fields_set
        known = {name: getattr(self, name) for name in ResourceDescription.model_fields if name in present}
        return known | (self.model_extra or {})


class JobRequest(ResourceDescription):
    """A request for work by a resource."""

    count: int = Field(
        default=1,
        ge=1,
        le=MOST_JOBS,
        description="Most jobs in the answer; they fit into the resource together.",
    )
    request_id: str | None = Field(
        default=None,
        min_length=1,
        max_length=255,
        description="Repeating a request with the same id within the lease gives the same matches.",
    )
    said_before: bool | None = Field(
        default=None,
        description="False: this `request_id` is sent for the first time, so earlier matches need not be "
        "looked up; left out: it may be a repetition.",
    )


class MatchedJob(BaseModel):
    """A job given to the pilot."""

    job_id: int
    epoch: int
    lease: str = Field(description="Identifies the attempt in `/leases/…`.")
    lease_expires_at: datetime = Field(description="The job must be started before.")
    description: dict[str, Any]
    sandbox: str | None = Field(default=None, description="Digest of the input sandbox to fetch.")
    processors: int | None = Field(default=None, description="Cores that it may use.")
    ram: int | None = Field(
        default=None, description="MB of memory reserved for it; absent: it requested none."
    )
    gpus: int | None = Field(default=None, description="GPUs that it may use.")
    flags: list[str] | None = Field(
        default=None,
        description="With `SubmitFlags`: arguments for the submit command, which has to get all of them; "
        "absent: any node of the queue.",
    )
    owner: str | None = Field(default=None, description="Owner of the job, if `SubmitFlags` was requested.")


class Matches(BaseModel):
    """The matched jobs, or the reason why there are none."""

    matches: list[MatchedJob]
    warnings: list[str] = []
    reason: str | None = Field(
        default=None,
        description="`no_task_queue`, `not_usable` (the queue is switched off, or not for the VO), `limits`, "
        "`banned`, `throttled`, `node` (waiting jobs fit only other nodes, by attributes that the queue "
        "declares), `node_features` (the same, by hardware and tags that pilots measure), `slot_full` (the "
        "pilot holds what its slot has room for), `too_many_claims` or `pilot_ended`.",
    )
    retry_after: int | None = Field(default=None, description="Seconds until the next request makes sense.")


class DemandQuestion(StrictInput):
    """Resources that pilots would offer, one for each target of a director."""

    resources: list[ResourceDescription] = Field(min_length=1, max_length=MOST_RESOURCES)


class DemandedTaskQueue(BaseModel):
    """A task queue that some of the resources may serve now, with what each of its jobs needs."""

    task_queue: int
    submit_pool: str | None
    waiting: int = Field(description="Jobs that limits, delays and bans do not exclude.")
    processors: int
    ram: int = Field(description="MB; 0: not stated.")
    gpus: int
    whole_node: bool


_SERVED = (
    "For each resource the task queues that it may serve. Of very many, only for the first resources: send"
    " the others again."
)


class DemandAnswer(BaseModel):
    """Waiting jobs for pilots."""

    task_queues: list[DemandedTaskQueue]
    resources: list[list[int]] = Field(description=_SERVED)
    ranks: list[list[float | None]] = Field(
        description="For each resource the rank of its queue for each of these task queues, by the `Rank` of "
        "the first job in it, else of the queue; null: no number; empty: none has one."
    )
    flag_sets: list[list[str]] = Field(description="Arguments of submit commands; the first are none.")
    flags: list[list[int]] = Field(
        description="For each resource, for each of these task queues, which of `flag_sets` its pilots are "
        "submitted with, beside the flags of its pool; empty: none has any."
    )


class TaskQueueAnswer(BaseModel):
    """A task queue that a resource may serve now."""

    task_queue: int
    vo: str
    owner_group: str
    owner: str
    submit_pool: str | None
    priority: float
    tier: int | None = Field(
        default=None,
        description="Of its job type in `JobPriorities`, from 1; null: the VO does not order its types.",
    )
    waiting: int
    definition: dict[str, Any]
    job_ids: list[int] = Field(description="Ids of its first 100 waiting jobs.")


class TaskQueues(BaseModel):
    """Task queues that a resource may serve now."""

    task_queues: list[TaskQueueAnswer]
    warnings: list[str] = []
