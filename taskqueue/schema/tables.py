"""All tables of the task queue, each with a sentence.

A Waiting job has exactly one row in `waiting_jobs`, and no other job has one: the transaction that deletes
the row owns the job. A job that is assigned to a pilot has exactly one open attempt.
"""

from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    Float,
    ForeignKey,
    Index,
    Integer,
    PrimaryKeyConstraint,
    String,
    Table,
    Text,
    UniqueConstraint,
    false,
    text,
    true,
)
from sqlalchemy.schema import SchemaItem

from cs_config.versions.tables import UtcTime, metadata
from requirements.quantities import QUANTITIES
from requirements.states import FINAL
from taskqueue.schema.types import BitsetType, folded_name

#: SQLite generates row ids only for a primary key of type INTEGER.
BigId = BigInteger().with_variant(Integer, "sqlite")

#: PostgreSQL settings for large tables: with the default (a fifth of the rows), vacuum and analyze would wait
#: for 20 million dead rows out of a hundred million.
_LARGE = {
    "autovacuum_vacuum_scale_factor": 0.02,
    "autovacuum_vacuum_insert_scale_factor": 0.05,
    "autovacuum_analyze_scale_factor": 0.02,
}
#: PostgreSQL: free space in each page for the new version of a row (HOT update), so that no index changes.
_ROOMY = {**_LARGE, "fillfactor": 85}
#: PostgreSQL: rows come and go all the time; dead rows slow down the search for the first one.
_QUEUE = {"autovacuum_vacuum_scale_factor": 0.01, "autovacuum_analyze_scale_factor": 0.02}
#: PostgreSQL: few rows that are updated many times a second.
_BUSY = {"fillfactor": 50, "autovacuum_vacuum_scale_factor": 0.0, "autovacuum_vacuum_threshold": 500}


def _table(name: str, *parts: SchemaItem, **options: Any) -> Table:
    return Table(name, metadata, *parts, **options)


def _hourly_sum_columns(*more: Column[str]) -> list[Column[Any] | PrimaryKeyConstraint]:
    """Key columns of accounting sums: hour, place and owner, and `more`."""
    names = ("vo", "site", "ce", "queue", "owner", "owner_group")  # the place: empty, if there was no attempt
    by: list[Column[Any]] = [Column("hour", UtcTime, nullable=False)]
    by += [Column(name, Text, nullable=False) for name in names]
    by += more
    return [*by, PrimaryKeyConstraint(*(each.name for each in by))]


def _index_where(condition: str, name: str, *columns: str | folded_name, unique: bool = False) -> Index:
    where = text(condition)
    return Index(name, *columns, unique=unique, sqlite_where=where, postgresql_where=where)


_FINAL = ", ".join(f"'{status}'" for status in sorted(FINAL))
#: Partial-index conditions on status. SQLite uses the index only if the query repeats the condition.
ENDED, LIVING = f"status IN ({_FINAL})", f"status NOT IN ({_FINAL})"
#: The same of pilots that have not requested jobs yet. Not by `last_seen_at`: PostgreSQL would then write all
#: indexes of a pilot whenever that changes, each minute (no HOT update).
NOT_ASKED = "status = 'Running' AND processors IS NULL"

#: Job descriptions, one row for all jobs of a submission that share it (parametric jobs).
descriptions = _table(
    "descriptions",
    Column("description_id", BigId, primary_key=True),
    Column("source", Text, nullable=False),  # the submitted text: JDL, YAML or JSON
    Column("body", Text, nullable=False),  # JSON object: the validated description, canonical key names
    Column("sandbox", String(64)),  # blob of the input sandbox
    Column("rank", Text),  # expression that orders queues, for directors; NULL: all are equal
    Column("waiting_ttl", BigInteger),  # seconds that its jobs may wait for a match; NULL: as the VO has it
    # Seconds until its jobs give something up by rules of their own; 0: they have none; NULL: rules of the VO
    Column("relax_after", BigInteger),
    _index_where("relax_after > 0", "ix_descriptions_relax_after", "description_id"),
    _index_where("sandbox IS NOT NULL", "ix_descriptions_sandbox", "sandbox"),
    sqlite_autoincrement=True,
)

#: Grid jobs: state, location and owner. Wide and rarely read by matching, which uses `waiting_jobs`.
jobs = _table(
    "jobs",
    Column("job_id", BigId, primary_key=True),
    Column("vo", Text, nullable=False),  # lower case
    Column("owner", Text, nullable=False),
    Column("owner_group", Text, nullable=False),
    Column("status", String(16), nullable=False),  # states.JobStatus
    Column("minor_status", Text, nullable=False, default=""),
    Column("application_status", Text, nullable=False, default=""),
    Column("job_name", Text, nullable=False, default=""),
    Column("job_type", Text, nullable=False, default=""),
    Column("job_group", Text, nullable=False, default=""),
    Column("priority", Float, nullable=False, default=1.0),  # the user's, 0 … 10
    Column("description_id", BigId, ForeignKey("descriptions.description_id"), nullable=False),
    Column("parameters", Text),  # JSON object: values of this parametric job for %s, %n, %(name)s
    Column("step", Text),  # the next optimizer; None: start of the chain
    Column("due_at", UtcTime),  # when the optimizers may process it; None: not in the chain
    Column("submit_pool", String(64)),  # submit_pools.pool_id; no foreign key: final jobs outlive their pool
    Column("task_queue_id", BigId),  # task_queues.task_queue_id, set when Waiting for the first time
    Column("site", Text, nullable=False, default="ANY"),  # current or last site; at first the requested one
    Column("epoch", Integer, nullable=False, default=0),  # number of its latest attempt
    Column("reschedules", Integer, nullable=False, default=0),
    Column("submitted_at", UtcTime, nullable=False),
    Column("updated_at", UtcTime, nullable=False),  # last change of status
    Column("started_at", UtcTime),
    Column("ended_at", UtcTime),
    _index_where("due_at IS NOT NULL", "ix_jobs_due_at", "due_at"),
    # job_id as the last column, here and below, gives the newest rows without a sort.
    Index("ix_jobs_vo_owner_status_job_id", "vo", "owner", "status", "job_id"),
    # Two partial indexes, not one: a statement with a job id and a status must never scan that whole status.
    _index_where(ENDED, "ix_jobs_ended", "status", "updated_at"),
    _index_where(ENDED, "ix_jobs_ended_job_id", "status", "job_id"),
    _index_where(LIVING, "ix_jobs_living", "status", "job_id"),
    # Pools in use, and the jobs of each.
    _index_where(
        "submit_pool IS NOT NULL", "ix_jobs_submit_pool_status_job_id", "submit_pool", "status", "job_id"
    ),
    Index("ix_jobs_description_id", "description_id"),
    sqlite_autoincrement=True,  # an id is never given out twice
    postgresql_with=_LARGE,
)

#: Every change of a job's status, in order; written in the transaction of the change.
job_log = _table(
    "job_log",
    Column("log_id", BigId, primary_key=True),
    Column("job_id", BigId, ForeignKey("jobs.job_id", ondelete="CASCADE"), nullable=False),
    Column("at", UtcTime, nullable=False),
    Column("from_status", String(16)),  # None: the job was stored
    Column("to_status", String(16), nullable=False),
    Column("minor_status", Text, nullable=False, default=""),
    Column("application_status", Text, nullable=False, default=""),
    Column("source", Text, nullable=False),  # component: JobManager, an optimizer, Matcher, Pilot, an agent
    Column("epoch", Integer, nullable=False, default=0),
    Index("ix_job_log_job_id_log_id", "job_id", "log_id"),
    sqlite_autoincrement=True,
    postgresql_with=_LARGE,
)

#: Named texts that a job's pilot or another component reported; the latest value of each name.
job_parameters = _table(
    "job_parameters",
    Column("job_id", BigId, ForeignKey("jobs.job_id", ondelete="CASCADE"), nullable=False),
    Column("name", String(128), nullable=False),
    Column("value", Text, nullable=False),
    Column("at", UtcTime, nullable=False),
    PrimaryKeyConstraint("job_id", "name"),
    postgresql_with=_LARGE,
)

#: What jobs wait for: a row for each job before them. One that has ended may be deleted.
job_dependencies = _table(
    "job_dependencies",
    Column("job_id", BigId, ForeignKey("jobs.job_id", ondelete="CASCADE"), nullable=False),
    Column("parent_id", BigId, nullable=False),
    Column("policy", String(8), nullable=False),  # dependencies.AfterPolicy, the same in all rows of a job
    Column("ended_as", String(32)),  # status in which the parent ended, as it counted; None: not yet
    PrimaryKeyConstraint("job_id", "parent_id"),
    _index_where("ended_as IS NULL", "ix_job_dependencies_open", "parent_id", "job_id"),
    postgresql_with=_LARGE,
)

#: Jobs that ended or were submitted, not yet counted for those that wait: each VO has its turn. They are not
#: deleted until then.
dependency_changes = _table(
    "dependency_changes",
    Column("vo", Text, nullable=False),
    Column("job_id", BigId, nullable=False),
    PrimaryKeyConstraint("vo", "job_id"),
)

#: Seconds that each ended job had waited, by cause; kept after its log is deleted.
job_waits = _table(
    "job_waits",
    Column("job_id", BigId, ForeignKey("jobs.job_id", ondelete="CASCADE"), nullable=False),
    Column("cause", Text, nullable=False),
    Column("seconds", Float, nullable=False),
    Column("ended_at", UtcTime, nullable=False),  # jobs.updated_at of the end that these sums belong to
    PrimaryKeyConstraint("job_id", "cause"),
    postgresql_with=_LARGE,
)

#: Read position of each consumer of the job log; updated in the transaction of its sums.
log_readers = _table(
    "log_readers",
    Column("name", Text, primary_key=True),
    Column("counted", BigInteger, nullable=False),  # every log row up to this one is counted
    Column("noted", BigInteger, nullable=False),  # end of the log at the last read
    Column("under_way", Text, nullable=False),  # JSON list: of log_feed.LogEnd, the history, then `before`
)

#: Addresses that are notified of events of a VO, with what is sent next.
web_hooks = _table(
    "web_hooks",
    Column("hook_id", BigId, primary_key=True),
    Column("vo", Text, nullable=False),
    Column("name", Text, nullable=False),
    Column("url", Text, nullable=False),
    Column("secret", Text, nullable=False),  # signs the deliveries, so it cannot be a digest
    Column("events", Text, nullable=False),  # JSON list of web_hooks.Event
    Column("owner", Text, nullable=False, server_default=""),  # only this owner's jobs; empty: all of the VO
    Column("job_group", Text, nullable=False, server_default=""),  # only jobs of this group; empty: all
    Column("created_by", Text, nullable=False),  # token subject
    Column("created_at", UtcTime, nullable=False),
    Column("failures", Integer, nullable=False, server_default="0"),  # tries since the last that succeeded
    Column("next_try_at", UtcTime),  # not before then; None: at once
    Column("dropped", Integer, nullable=False, server_default="0"),  # events for which there was no place
    UniqueConstraint("vo", "name"),
    sqlite_autoincrement=True,
)

#: Deliveries of web hooks: those to be sent, and for some days those that were.
hook_deliveries = _table(
    "hook_deliveries",
    Column("delivery_id", BigId, primary_key=True),
    Column("hook_id", BigId, ForeignKey("web_hooks.hook_id", ondelete="CASCADE"), nullable=False),
    Column("event", String(40), nullable=False),  # web_hooks.Event
    Column("body", Text, nullable=False),  # JSON; empty once it has ended
    Column("created_at", UtcTime, nullable=False),
    Column("tries", Integer, nullable=False, server_default="0"),
    Column("answer", Text, nullable=False, server_default=""),  # HTTP status of the last try, or its error
    Column("is_delivered", Boolean, nullable=False, server_default=false()),
    Column("ended_at", UtcTime),  # delivered or given up; None: to be sent
    Index("ix_hook_deliveries_hook_id", "hook_id", "delivery_id"),
    _index_where("ended_at IS NULL", "ix_hook_deliveries_open", "hook_id", "delivery_id"),
    Index("ix_hook_deliveries_ended_at", "ended_at"),
    sqlite_autoincrement=True,
    postgresql_with=_QUEUE,
)

#: States that web hooks report if they last: pools without a queue, sites closed by a throttle.
hook_conditions = _table(
    "hook_conditions",
    Column("vo", Text, nullable=False),
    Column("event", String(40), nullable=False),  # web_hooks.Event
    Column("subject", Text, nullable=False),  # id of the pool, or scope of the throttle
    Column("since", UtcTime, nullable=False),  # when it was seen first
    Column("reported_at", UtcTime),  # None: it has not lasted long enough yet
    PrimaryKeyConstraint("vo", "event", "subject"),
)

#: Numbers of jobs that entered and left a status, by minute; older ones by hour.
job_flows = _table(
    "job_flows",
    Column("minute", UtcTime, nullable=False),  # its start, by the times in the log
    Column("vo", Text, nullable=False),
    Column("status", String(16), nullable=False),
    Column("came", BigInteger, nullable=False),
    Column("went", BigInteger, nullable=False),  # not counted for a final status
    PrimaryKeyConstraint("minute", "vo", "status"),
)

#: Numbers of jobs in each status according to the log; for a final status, all that ever entered it.
job_stocks = _table(
    "job_stocks",
    Column("vo", Text, nullable=False),
    Column("status", String(16), nullable=False),
    Column("jobs", BigInteger, nullable=False),
    PrimaryKeyConstraint("vo", "status"),
    postgresql_with=_BUSY,
)

#: Samples of the waiting jobs that each site and queue could run; a row without a site marks each sample.
queue_depths = _table(
    "queue_depths",
    Column("at", UtcTime, nullable=False),
    Column("site", Text, nullable=False),
    Column("queue", Text, nullable=False),  # CE/Queue; empty: the site, where each job counts once
    Column("vo", Text, nullable=False),
    Column("jobs", BigInteger, nullable=False),
    PrimaryKeyConstraint("at", "site", "queue", "vo"),
)

#: What was seen minute by minute: an hour of one subject in a row, so that a day has few rows. The rest of
#: what a day was is in jobs, attempts, pilots, downtimes and versions of the configuration.
day_records = _table(
    "day_records",
    Column("series", String(16), nullable=False),  # day_record.Series
    Column("subject", Text, nullable=False),  # JSON list: the place, class or scope, and what tells apart
    Column("hour", UtcTime, nullable=False),
    Column("minutes", Text, nullable=False),  # JSON object: number or other value, by minute of the hour
    PrimaryKeyConstraint("series", "subject", "hour"),
    Index("ix_day_records_hour", "hour"),
)

#: Jobs that are kept from pilots, and were put off before, as by a rule of retry: when they are due at first.
put_off_jobs = _table(
    "put_off_jobs",
    Column("job_id", BigId, ForeignKey("jobs.job_id", ondelete="CASCADE"), primary_key=True),
    Column("due_at", UtcTime, nullable=False),
)

#: When samples of waiting jobs were expected to start, and when they did: the latest of each VO.
start_forecasts = _table(
    "start_forecasts",
    Column("job_id", BigId, ForeignKey("jobs.job_id", ondelete="CASCADE"), nullable=False),
    Column("at", UtcTime, nullable=False),
    Column("vo", Text, nullable=False),
    Column("estimate", Float, nullable=False),  # seconds
    Column("least", Float),  # seconds: begin of the interval; None: none was given
    Column("most", Float),  # seconds: its end; None: it had none
    Column("waited", Float),  # seconds until the start, or until it was given up; None: it still waits
    Column("given_up", Boolean),  # true: it still waited when another one took its place in the sample
    PrimaryKeyConstraint("job_id", "at"),
    Index("ix_start_forecasts_vo_at", "vo", "at"),
)

#: Numbers of jobs that ever failed because nothing matched them within their time, by the main reason.
unmatched_jobs = _table(
    "unmatched_jobs",
    Column("vo", Text, nullable=False),
    Column("reason", String(40), nullable=False),  # a word of waiting_reason.WORDS
    Column("jobs", BigInteger, nullable=False),
    PrimaryKeyConstraint("vo", "reason"),
)

#: Resource usage of ended attempts and numbers of ended jobs, by hour; older ones by day.
accounted_use = _table(
    "accounted_use",
    # Status that the attempt ended with: final, or Rescheduled.
    *_hourly_sum_columns(Column("status", String(16), nullable=False)),
    Column("jobs", BigInteger, nullable=False),  # ended jobs
    Column("attempts", BigInteger, nullable=False),  # attempts that had started
    Column("wall_seconds", Float, nullable=False),
    Column("core_seconds", Float, nullable=False),  # wall time times the cores allotted to the job
    Column("cpu_seconds", Float, nullable=False),  # as reported by pilots
    Column("told_core_seconds", Float, nullable=False),  # core time of the attempts with reported CPU time
    Column("normalised_seconds", Float, nullable=False),  # CPU time of those with reported CPU power too
)

#: Waiting times of ended jobs by cause and by the hour of their end; older ones by day.
accounted_waits = _table(
    "accounted_waits",
    *_hourly_sum_columns(Column("status", String(16), nullable=False), Column("cause", Text, nullable=False)),
    Column("seconds", Float, nullable=False),
)

#: Distinct sets of requirements used by matching; immutable, so a cached copy never goes stale.
requirement_classes = _table(
    "requirement_classes",
    Column("class_id", BigId, primary_key=True),
    Column("digest", String(64), nullable=False, unique=True),  # of VO and definition
    Column("vo", Text, nullable=False),
    Column("definition", Text, nullable=False),  # JSON object: requirement_class.RequirementClass
    # Digest of the options of the VO that it was last derived with; empty: unknown.
    Column("derived_with", Text, nullable=False, server_default=""),
    sqlite_autoincrement=True,
)

#: Waiting jobs of one owner and group with one requirement class: where shares act.
task_queues = _table(
    "task_queues",
    Column("task_queue_id", BigId, primary_key=True),
    Column("class_id", BigId, ForeignKey("requirement_classes.class_id"), nullable=False),
    Column("vo", Text, nullable=False),
    Column("owner", Text, nullable=False),
    Column("owner_group", Text, nullable=False),
    Column("priority", Float, nullable=False, default=1.0),  # weight in the lottery
    # True whenever the task queue has a waiting job; may stay true briefly after the last one was taken.
    Column("occupied", Boolean, nullable=False, server_default=true()),
    Column("changed_at", UtcTime, nullable=False),  # when `occupied` changed last
    Column("supply", BigInteger),  # slots that came lately where its jobs may run; null: not counted
    UniqueConstraint("class_id", "owner_group", "owner"),
    Index("ix_task_queues_owner_group_owner", "owner_group", "owner"),
    sqlite_autoincrement=True,
)

#: Times at which a cause kept the jobs of a task queue from pilots, as the answers to pilots show, or because
#: all queues that fit were closed. No foreign key: a process may write about a task queue that has just been
#: removed.
wait_causes = _table(
    "wait_causes",
    Column("task_queue_id", BigId, nullable=False),
    Column("cause", String(16), nullable=False),  # one of wait_causes.CAUSE_ORDER
    Column("since", UtcTime, nullable=False),
    Column("until", UtcTime, nullable=False),
    PrimaryKeyConstraint("task_queue_id", "cause", "since"),
    Index("ix_wait_causes_until", "until"),
)

#: Task queues that jobs were in before: an edit, or other defaults of their VO, moved them to another one.
#: What kept such a job from pilots until then are the causes of its former task queue.
former_task_queues = _table(
    "former_task_queues",
    Column("job_id", BigId, ForeignKey("jobs.job_id", ondelete="CASCADE"), nullable=False),
    Column("task_queue_id", BigId, nullable=False),  # no foreign key: it may have been removed
    Column("until", UtcTime, nullable=False),
    PrimaryKeyConstraint("job_id", "until"),
)

#: Times in which an agent looked at all task queues of a VO, again and again, whether a queue that fits is
#: open. In other times nobody knows whether jobs could be matched: they do not count as waiting for a match.
watched_times = _table(
    "watched_times",
    Column("vo", Text, nullable=False),
    Column("since", UtcTime, nullable=False),
    Column("until", UtcTime, nullable=False),  # extended with each pass through the task queues, for a day
    PrimaryKeyConstraint("vo", "since"),
)

#: Jobs that a pilot may take, one narrow row each. Deleting the row is the claim.
waiting_jobs = _table(
    "waiting_jobs",
    Column("job_id", BigId, ForeignKey("jobs.job_id"), primary_key=True, autoincrement=False),
    Column("task_queue_id", BigId, ForeignKey("task_queues.task_queue_id"), nullable=False),
    Column("priority", Float, nullable=False),
    # The order of a claim: the user's priority, then first in, first out.
    Index("ix_waiting_jobs_task_queue_id", "task_queue_id", text("priority DESC"), "job_id"),
    postgresql_with=_QUEUE,
)

#: Requirements of a VO under their hash (RFC #7), with the state of their mapping to queues.
submit_pools = _table(
    "submit_pools",
    Column("pool_id", String(64), primary_key=True),  # SHA-256 of the canonical form
    Column("vo", Text, nullable=False),
    Column("requirements", Text, nullable=False),  # the canonical form, JSON
    Column("original", Text, nullable=False),  # as first written, JSON; shown to users
    Column("created_at", UtcTime, nullable=False),
    Column(
        "last_used_at", UtcTime, nullable=False
    ),  # updated by new jobs, at most once a minute by small submissions
    Column("refreshed_at", UtcTime),  # None: not resolved yet
    # Configuration version of the mapping that a job triggered; a refresh of all pools records it per VO.
    Column("config_version", Integer, nullable=False, default=0),
    Column("expiries", Integer, nullable=False, server_default="0"),  # configuration expiries passed by then
    Index("ix_submit_pools_config_version", "config_version"),
)

#: Queues with equal effective parameters for a VO, identified by the digest of these parameters.
queue_classes = _table(
    "queue_classes",
    Column("queue_class_id", BigId, primary_key=True),
    Column("vo", Text, nullable=False),
    Column("digest", String(64), nullable=False),
    Column("slot", Integer, nullable=False),  # its bit in the VO's mappings, small numbers first
    UniqueConstraint("vo", "digest"),
    Index("uq_queue_classes_vo_slot", "vo", "slot", unique=True),
    sqlite_autoincrement=True,
)

#: The queues of each queue class. A queue that the VO may not use now has no row.
queue_class_members = _table(
    "queue_class_members",
    Column("vo", Text, nullable=False),
    Column("site", Text, nullable=False),
    Column("ce", Text, nullable=False),
    Column("queue", Text, nullable=False),
    Column("queue_class_id", BigId, ForeignKey("queue_classes.queue_class_id"), nullable=False),
    PrimaryKeyConstraint("vo", "site", "ce", "queue"),
    Index("ix_queue_class_members_queue_class_id", "queue_class_id"),
)

#: For each VO: the configuration version and algorithm of its queue classes and members, and a version that
#: all mappings of its pools have at least.
queue_class_versions = _table(
    "queue_class_versions",
    Column("vo", Text, primary_key=True),
    Column("config_version", Integer, nullable=False),
    Column("expiries", Integer, nullable=False, server_default="0"),  # configuration expiries passed by then
    Column("refreshed_version", Integer, nullable=False, server_default="0"),
    Column("refreshed_expiries", Integer, nullable=False, server_default="0"),
    Column("refreshed_at", UtcTime),  # when all mappings were computed
    Column("algorithm", Integer, nullable=False, server_default="1"),  # of the class digests
)

#: The mapping: the queue classes that are eligible for a pool. No row: not computed yet.
pool_mappings = _table(
    "pool_mappings",
    Column("pool_id", String(64), ForeignKey("submit_pools.pool_id", ondelete="CASCADE"), primary_key=True),
    Column("vo", Text, nullable=False),
    Column("eligible", BitsetType, nullable=False),
    # Eligible classes where only some nodes qualify: facts measured on the node decide.
    Column("undecided", BitsetType, nullable=False),
    Index("ix_pool_mappings_vo", "vo"),
)

#: One row for each assignment of a job to a pilot. Valid only while `closed_at` is null.
attempts = _table(
    "attempts",
    Column("job_id", BigId, ForeignKey("jobs.job_id", ondelete="CASCADE"), nullable=False),
    Column("epoch", Integer, nullable=False),
    Column("lease", String(64), nullable=False, unique=True),  # token by which the pilot identifies it
    Column("holder", Text, nullable=False),  # token subject of the pilot
    Column("stamp", Text),  # pilots.stamp
    Column("vo", Text, nullable=False),
    Column("site", Text, nullable=False, default=""),
    Column("ce", Text, nullable=False, default=""),
    Column("queue", Text, nullable=False, default=""),
    Column("opened_at", UtcTime, nullable=False),
    Column("lease_expires_at", UtcTime, nullable=False),
    Column("started_at", UtcTime),
    Column("heartbeat_at", UtcTime),
    Column("ending", Boolean, nullable=False, server_default=false()),  # killed; pilot gets a kill command
    Column("closed_at", UtcTime),
    # finished, released, expired, lost, retried (lost, by a rule), rescheduled, killed; a lost one whose job
    # was kept from pilots or edited since: held, dependencies, edited
    Column("closed_as", Text),
    # JSON of the finish or release that closed it; a repeated report gets the same answer.
    Column("request", Text),
    Column("answer", Text),  # JSON of that answer
    Column("exit_code", Integer),
    Column("progress", Text, nullable=False, default=""),
    Column("output_tail", Text, nullable=False, default=""),  # last lines of the payload's output
    Column("output", String(64)),  # blob of the output archive
    # Resources allotted to the job; null: not recorded.
    Column("processors", Integer),
    Column("ram_mb", BigInteger),
    *(Column(each.name, Integer) for each in QUANTITIES),
    # Reported by job managers only; null: not reported.
    Column("phases", Text),  # JSON list of objects: reports.GridJobPhase
    Column("local_jobs", Text),  # JSON object: numbers of local jobs by their state
    # Open when commits were lost: reports of its pilot may be among them.
    Column("quarantined", Boolean, nullable=False, server_default=false()),
    # When it was closed as lost, if it was reopened afterwards.
    Column("lost_at", UtcTime),
    # JSON list of [rule_id, scope]: the scope rules that its claim counted; rule 0: it has a reservation at
    # the scope. Null: it was claimed where nothing is counted.
    Column("counted_by", Text),
    # Of the pilot's claims, from 1; null: not claimed with a pilot's token. Unique: of two processes that
    # claim for one pilot at once, and do not see what the other gives it, one claims nothing.
    Column("claim_number", Integer),
    # JSON list of its own lease, stalled and grace times in seconds; null: those of its VO.
    Column("times", Text),
    # The largest use of the payload that its pilot reported; null: not reported.
    Column("peak_ram_mb", BigInteger),
    Column("peak_scratch_mb", BigInteger),
    Column("cpu_seconds", Float),
    PrimaryKeyConstraint("job_id", "epoch"),
    CheckConstraint("(closed_at IS NULL) = (closed_as IS NULL)", name="closed_for_a_reason"),
    # At most one open attempt for each job, whatever the code above does.
    _index_where("closed_at IS NULL", "uq_attempts_open", "job_id", unique=True),
    # No column that a heartbeat changes is in any index: heartbeats are the most frequent writes.
    _index_where("closed_at IS NULL AND started_at IS NULL", "ix_attempts_not_started", "job_id"),
    _index_where("closed_at IS NULL AND ending IS true", "ix_attempts_ending", "job_id"),
    Index("uq_attempts_claim_number", "stamp", "claim_number", unique=True),
    _index_where("closed_at IS NULL", "ix_attempts_open_of_stamp", "stamp"),
    _index_where("closed_at IS NULL AND times IS NOT NULL", "ix_attempts_times", "vo", "times"),
    _index_where("output IS NOT NULL", "ix_attempts_output", "output"),
    postgresql_with=_ROOMY,
)
#: What the clients of DIRAC showed that report on an attempt, and that name only the job: a mark is the hash
#: of a key with an address.
attempt_marks = _table(
    "attempt_marks",
    Column("job_id", BigId, ForeignKey("jobs.job_id", ondelete="CASCADE"), nullable=False),
    Column("epoch", Integer, nullable=False),
    Column("mark", Text, nullable=False),
    PrimaryKeyConstraint("job_id", "epoch", "mark"),
)
#: Folded names of an attempt's location.
ATTEMPT_AT = folded_name(attempts.c.site), folded_name(attempts.c.ce), folded_name(attempts.c.queue)
# Attempts at a location, counted for limits.
_index_where("closed_at IS NULL", "ix_attempts_open_at", *ATTEMPT_AT)
# Attempts that may be reopened: a new limit has to count them then.
_index_where("closed_as = 'lost'", "ix_attempts_lost_at", *ATTEMPT_AT[:2])
# Attempts that were taken away before their start, and may be on their way to a throttled place.
_index_where("closed_as = 'rescheduled' AND started_at IS NULL", "ix_attempts_taken_at", *ATTEMPT_AT[:2])

#: One row for each local job of a grid job, as its job manager last reported it.
local_jobs = _table(
    "local_jobs",
    Column("job_id", BigId, ForeignKey("jobs.job_id", ondelete="CASCADE"), primary_key=True),
    Column("epoch", Integer, primary_key=True),  # of the attempt
    Column("number", Integer, primary_key=True),  # from 1
    Column("state", Text, nullable=False),
    Column("tries", Integer, nullable=False),
    Column("reference", Text),  # of its latest try, in the batch system
    Column("started_at", UtcTime),
    Column("ended_at", UtcTime),
    Column("exit_code", Integer),
    Column("message", Text, nullable=False),  # why its last try failed
    Column("details", Text, nullable=False),  # JSON object: texts and numbers of its handler, by name
)

#: One row for each site, CE or queue with a limit. Matching there is serialised by the row's lock. Holds the
#: last advertisement: the site's statement of its state.
scopes = _table(
    "scopes",
    Column("scope", Text, primary_key=True),  # Site, Site/CE or Site/CE/Queue; folded wherever it is a key
    Column("site", Text, nullable=False),
    Column("watermark", BigInteger, nullable=False, server_default=text("0")),  # of a site: last one issued
    # The watermark up to which the advertisement counts; one with an older watermark is rejected.
    Column("as_of", BigInteger, nullable=False, server_default=text("0")),
    Column("advertisement", Text),  # JSON object: attributes as advertised
    Column("advertised_at", UtcTime),  # when it was accepted
    Column("taken_at", Text),  # the site's own time of the count; for display
    Index("ix_scopes_site", "site"),
    postgresql_with=_BUSY,
)

#: Limits, delays and throttles in force, compiled from the configuration. Claims read them here, so that they
#: hold for processes with an older configuration as well. Written under the lock of the scope.
scope_rules = _table(
    "scope_rules",
    Column("rule_id", BigId, primary_key=True),
    Column("scope", Text, ForeignKey("scopes.scope"), nullable=False),
    Column("kind", String(16), nullable=False),  # running, delay, throttle
    Column("attribute", Text, nullable=False),  # of jobs; empty for a throttle, as the next two
    Column("value", Text, nullable=False),  # folded
    Column("vo", Text, nullable=False),  # empty: all VOs
    Column("definition", Text, nullable=False),  # JSON object: the other values, such as the limit
    Column("format", Integer, nullable=False),  # of the definition; unknown: the scope gets no jobs
    # Number of open attempts that it counts, or of reservations, once the `scope_returns` are added.
    Column("n", Integer, nullable=False, server_default=text("0")),
    # False: stored by a process of 1.0, which has not counted it yet.
    Column("opened", Boolean, nullable=False),
    # False: it admits no job yet, because claims that cannot see it may be running, or must be counted.
    Column("counted", Boolean, nullable=False, server_default=true()),
    # Processors of the attempts that `n` counts, kept by triggers; null: they were not counted yet.
    Column("cores", BigInteger),
    UniqueConstraint("scope", "kind", "attribute", "value", "vo"),
    sqlite_autoincrement=True,  # an id is never given out twice: attempts keep it
    postgresql_with=_BUSY,
)

#: Ends and reopenings of attempts that `scope_rules.n` does not contain yet; applied and deleted under the
#: lock of the scope. Written by triggers of `attempts`, which stand in the migrations alone: many statements
#: close an attempt, none of them waits for a scope, and one that forgot the counters would lower a limit for
#: good. An attempt is returned to every rule with its place, VO and value, also to those that are newer than
#: its claim. A value beyond ASCII is compared in Python, so there the rules count that the attempt is marked
#: with (`counted_by`), as for a rule that a process of 1.0 has not opened. A reservation stays when we take
#: away an attempt: it may still be there until its pilot notices. Another trigger adds the cores of deleted
#: returns to those of their rules, since a process of 1.0 applies only numbers.
scope_returns = _table(
    "scope_returns",
    Column("scope", Text, nullable=False),
    Column("rule_id", BigInteger, nullable=False),  # 0: the throttle of the scope
    Column("job_id", BigInteger, nullable=False),
    Column("epoch", Integer, nullable=False),
    Column("number", Integer, nullable=False),  # -1: ended; 1: reopened
    Column("cores", Integer, nullable=False, server_default=text("0")),  # its processors, with that sign
    Index("ix_scope_returns_scope", "scope"),
    postgresql_with=_QUEUE,
)

#: Matches that are not in the site's own counts yet, one row for each scope that counts them. No foreign key
#: to `attempts`: rows are deleted under the lock of their scope only, where they are counted.
reservations = _table(
    "reservations",
    Column("scope", Text, ForeignKey("scopes.scope"), nullable=False),
    Column("job_id", BigId, nullable=False),
    Column("epoch", Integer, nullable=False),
    Column("begun_by", BigInteger),  # the first watermark by which its start was recorded
    Column("seen", Boolean, nullable=False, server_default=false()),  # listed in the last advertisement
    PrimaryKeyConstraint("scope", "job_id", "epoch"),
    postgresql_with=_QUEUE,
)

#: Sites that get test jobs only, until the ban is lifted.
site_bans = _table(
    "site_bans",
    Column("site", Text, primary_key=True),  # folded
    Column("reason", Text, nullable=False),
    Column("author", Text, nullable=False),
    Column("at", UtcTime, nullable=False),
    Column("until", UtcTime),  # None: until the ban is lifted
)

#: Times for which a site or a CE is closed, or of which one is warned.
downtimes = _table(
    "downtimes",
    Column("downtime_id", BigId, primary_key=True),
    Column("scope", Text, nullable=False),  # folded
    Column("site", Text, nullable=False),  # of the scope
    Column("place", Text, nullable=False),  # the scope as it is spelled
    Column("begins", UtcTime, nullable=False),
    Column("ends", UtcTime, nullable=False),
    Column("severity", String(16), nullable=False),  # closures.Severity
    Column("reason", Text, nullable=False),
    Column("author", Text, nullable=False),
    Column("at", UtcTime, nullable=False),
    Column("source", Text, nullable=False),  # the feed that states it; empty: by hand
    Column("source_id", Text),  # its id there
    Index("ix_downtimes_scope", "scope"),
    Index("ix_downtimes_ends", "ends"),
    sqlite_autoincrement=True,  # an id is never given out twice: people note them
)

#: Directors and gateways by VO: their last report, and the lease of the process that works under the name.
site_processes = _table(
    "site_processes",
    Column("kind", String(16), nullable=False),  # director, gateway
    Column("name", String(255), nullable=False),
    Column("vo", Text, nullable=False),
    Column("holder", Text, nullable=False),  # the process
    Column("reported_by", Text, nullable=False),  # token subject
    Column("expires_at", UtcTime, nullable=False),  # until then no other process may report
    Column("seen_at", UtcTime, nullable=False),
    Column("every", Float, nullable=False),  # seconds between two reports
    Column("sites", Text, nullable=False),  # JSON list
    Column("problems", Text, nullable=False),  # JSON list: texts of the last cycle
    Column("too_small", Text, nullable=False),  # JSON list of processes.TooSmallSlot
    Column("queues", Text),  # JSON list of processes.QueueState; null: not reported
    PrimaryKeyConstraint("kind", "name", "vo"),
    postgresql_with=_BUSY,
)

#: Token buckets of the matching delays: the fill level at the last withdrawal.
matching_delays = _table(
    "matching_delays",
    Column("scope", Text, nullable=False),
    Column("kind", Text, nullable=False),  # of the rule
    Column("attribute", Text, nullable=False),
    Column("value", Text, nullable=False),
    Column("vo", Text, nullable=False),  # empty: the delay of all VOs
    Column("tokens", Float, nullable=False),
    Column("at", UtcTime, nullable=False),
    PrimaryKeyConstraint("scope", "kind", "attribute", "value", "vo"),
    postgresql_with=_BUSY,
)

#: Answers to match requests by `request_id`: a repeated request gets its first answer again.
match_requests = _table(
    "match_requests",
    Column("subject", Text, nullable=False),
    Column("request_id", Text, nullable=False),
    Column("at", UtcTime, nullable=False),
    Column("matches", Text, nullable=False),  # JSON list of [job_id, epoch]
    PrimaryKeyConstraint("subject", "request_id"),
    Index("ix_match_requests_at", "at"),
    postgresql_with=_QUEUE,
)

#: Job ids returned for a submission with an idempotency key.
idempotency_keys = _table(
    "idempotency_keys",
    Column("subject", Text, nullable=False),
    Column("key", Text, nullable=False),
    Column("body_digest", String(64), nullable=False),
    Column("job_ids", Text, nullable=False),  # JSON list
    Column("at", UtcTime, nullable=False),
    PrimaryKeyConstraint("subject", "key"),
    Index("ix_idempotency_keys_at", "at"),
)

#: Pilots by our own stamp: batch systems may reuse their ids.
pilots = _table(
    "pilots",
    Column("stamp", Text, primary_key=True),
    Column("vo", Text, nullable=False),
    Column("status", String(16), nullable=False),  # states.PilotStatus
    Column("status_reason", Text, nullable=False, default=""),
    Column("site", Text, nullable=False, default=""),
    Column("ce", Text, nullable=False, default=""),
    Column("queue", Text, nullable=False, default=""),
    Column("reference", Text),  # the CE's id
    # Token subject of the director; empty: the pilot was not submitted by one.
    Column("submitted_by", Text, nullable=False, default=""),
    Column("jobs", Integer, nullable=False, default=0),  # how many it got, at its last report of a status
    Column("created_at", UtcTime, nullable=False),
    Column("updated_at", UtcTime, nullable=False),
    Column("last_seen_at", UtcTime),  # last request of the pilot itself
    Column("possible_queues", Text),  # JSON list of Site/CE/Queue: possible queues if a broker picks
    Column("empty_reason", String(40), nullable=False, server_default=""),  # why it got no job, in a word
    Column("processors", Integer),  # of its slot, as its first request for jobs stated them
    Column("ended_jobs", Integer, nullable=False, server_default="0"),  # as `jobs`, whose payload ended
    Column("node", String(255), nullable=False, server_default=""),  # name of its host, as it reported
    Column("host_trouble", Boolean, nullable=False, server_default=false()),  # it ended because of its node
    Column("process", String(64), nullable=False, server_default=""),  # its latest one, as it reported
    Column("restarted_at", UtcTime),  # start of that process, if it was not the first one
    Column("asked_at", UtcTime),  # its first request for jobs, from which its slot was there; to the minute
    Column("shape", String(64)),  # of its slot then: seen_hardware.digest
    Index("ix_pilots_status_updated_at", "status", "updated_at"),
    Index("ix_pilots_vo_site", "vo", "site"),
    _index_where("node <> ''", "ix_pilots_node", "site", "node"),
    Index("ix_pilots_site_asked_at", "site", "asked_at"),  # what pilots of a site's queues had lately
    # `status` is constant there: without it SQLite takes the index over status and time, for all that run.
    _index_where(NOT_ASKED, "ix_pilots_not_asked", "status", "site", "ce", "queue", "vo"),
)

#: The hardware that pilots had when they asked for jobs, by site: some hundred different shapes of each.
seen_hardware = _table(
    "seen_hardware",
    Column("site", Text, nullable=False),  # as in the configuration
    Column("digest", String(64), nullable=False),  # of the shape
    Column("shape", Text, nullable=False),  # JSON object of hardware.HardwareShape
    Column("first_seen_at", UtcTime, nullable=False),
    Column("last_seen_at", UtcTime, nullable=False),  # to the day
    PrimaryKeyConstraint("site", "digest"),
    Index("ix_seen_hardware_last_seen_at", "last_seen_at"),
)

#: Last part of stdout and stderr of failed pilots, and of the logs of all.
pilot_outputs = _table(
    "pilot_outputs",
    Column("stamp", Text, ForeignKey("pilots.stamp", ondelete="CASCADE"), primary_key=True),
    Column("stdout", Text, nullable=False, server_default=""),
    Column("stderr", Text, nullable=False, server_default=""),
    Column("stored_at", UtcTime),  # by its director; null: not yet
    Column("log", Text, nullable=False, server_default=""),  # last part of the log that the pilot sent itself
    Column("logged_at", UtcTime),
)

#: One-time secrets of registered pilots, each exchanged for a token at the pilot's first contact.
pilot_secrets = _table(
    "pilot_secrets",
    Column("stamp", Text, ForeignKey("pilots.stamp", ondelete="CASCADE"), primary_key=True),
    Column("digest", String(64), nullable=False),  # SHA-256; the secret itself is not stored
    Column("expires_at", UtcTime, nullable=False),  # it can be redeemed until then
    Column("redeemed_at", UtcTime),
    Column("request_id", Text),  # of the exchange that redeemed it; only its repetition is answered
)

#: Archives by content digest; the bytes are in the blob store.
blobs = _table(
    "blobs",
    Column("digest", String(64), nullable=False),
    Column("vo", Text, nullable=False),
    Column("size", BigInteger, nullable=False),  # bytes
    Column("created_at", UtcTime, nullable=False),
    Column("last_used_at", UtcTime, nullable=False),
    Column("is_output", Boolean, nullable=False),  # of jobs only, never sent as a sandbox: has its own quota
    PrimaryKeyConstraint("digest", "vo"),  # a VO reads only what it uploaded
    Index("ix_blobs_vo", "vo"),
)

#: The process that runs an agent now; the fence increases with every change of holder.
agent_leases = _table(
    "agent_leases",
    Column("name", Text, primary_key=True),
    Column("holder", Text, nullable=False),
    Column("fence", BigInteger, nullable=False),
    Column("expires_at", UtcTime, nullable=False),
    Column("last_cycle_at", UtcTime),
    Column("broken", Text, nullable=False, server_default="[]"),  # JSON list: VOs whose work failed in it
    postgresql_with=_BUSY,
)

#: Uptime intervals of each service process; a pilot counts as silent only while a process could receive it.
service_uptime = _table(
    "service_uptime",
    Column("process", Text, nullable=False),
    Column("since", UtcTime, nullable=False),
    Column("until", UtcTime, nullable=False),  # extended every few seconds
    PrimaryKeyConstraint("process", "since"),
    postgresql_with=_BUSY,
)

#: One row with the state of the whole installation. A process that sees a new incarnation discards all its
#: caches.
installation = _table(
    "installation",
    Column("row_number", Integer, primary_key=True, autoincrement=False, server_default=text("1")),
    # Changed after every loss of commits; a time in seconds, since a counter might be lost as well.
    Column("incarnation", BigInteger, nullable=False, server_default=text("1")),
    Column("opened_at", UtcTime),  # when this incarnation began; None: no commit was ever lost
    # New attempts get higher numbers than this: a lost commit may have used it or a lower one.
    Column("epoch_floor", Integer, nullable=False, server_default=text("0")),
    Column("trimmed_to", BigInteger, nullable=False, server_default=text("0")),  # last of `changes` removed
    # Configuration version, and expiries passed by then, that `scope_rules` come from.
    Column("rules_version", Integer, nullable=False, server_default=text("0")),
    Column("rules_expiries", Integer, nullable=False, server_default=text("0")),
    Column("mended_counters", Integer, nullable=False, server_default=text("0")),  # of scope rules, ever
    # Incarnation in which lost commits were noticed. Nothing is stored until the next; 0: none were.
    Column("lost_in", BigInteger, nullable=False, server_default=text("0")),
    CheckConstraint("row_number = 1", name="one_row"),
)

#: The last commit of the processes of each home directory, which nobody else raises; see `db.history`.
seen_commits = _table(
    "seen_commits",
    Column("home", Text, primary_key=True),  # host and a random word, also in the home's last-seen.json
    Column("number", BigInteger, nullable=False),
    Column("at", UtcTime, nullable=False),
)

#: Changes that matchers must reload: a task queue that appeared, emptied or changed, or a mapping.
#: Read by `change_feed`, which explains why `change_id` alone is no safe cursor.
changes = _table(
    "changes",
    Column("change_id", BigId, primary_key=True),
    Column("xid", BigInteger, nullable=False),  # PostgreSQL: transaction that wrote it; SQLite: 0
    Column("kind", String(16), nullable=False),  # task_queue, mapping, priority
    # Id of the task queue; VO of the mapping; owner group of the weights.
    Column("key", Text, nullable=False),
    Column("at", UtcTime, nullable=False),
    Index("ix_changes_xid", "xid"),
    Index("ix_changes_at", "at"),
    sqlite_autoincrement=True,
    postgresql_with=_QUEUE,
)

#: Tokens rejected before their expiry.
revoked_tokens = _table(
    "revoked_tokens",
    Column("jti", Text, primary_key=True),
    Column("expires_at", UtcTime, nullable=False),
)

#: One-time links that sign a browser in; only the bearer has the secret.
login_links = _table(
    "login_links",
    Column("digest", String(64), primary_key=True),  # SHA-256 of the purpose and the secret
    Column("session", Text, nullable=False),  # JSON object: the session's permissions and expiry
    Column("expires_at", UtcTime, nullable=False),  # of the link
)

#: Command lines that wait until a person confirms their code in a browser.
device_logins = _table(
    "device_logins",
    Column("digest", String(64), primary_key=True),  # as in login_links, of the secret of the command line
    Column("user_code", String(16), nullable=False, unique=True),  # typed or shown in the browser
    Column("address", Text, nullable=False),  # host of the command line
    Column("expires_at", UtcTime, nullable=False),
    Index("ix_device_logins_expires_at", "expires_at"),
)

#: Jobs that an optimizer process is working on. A row whose holder is gone means that the process crashed
#: with the job.
trials = _table(
    "trials",
    Column(
        "job_id", BigId, ForeignKey("jobs.job_id", ondelete="CASCADE"), primary_key=True, autoincrement=False
    ),
    Column("holder", Text, nullable=False),  # unique name of the process
    Column("crashes", Integer, nullable=False),  # of earlier holders
)
