"""Every table of the task queue, with a sentence for each.

A job that is Waiting has exactly one row in `waiting_jobs`, and no other job has one: whoever
deletes that row has the job. A job that is handed to a pilot has exactly one open attempt.
"""

from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    Float,
    ForeignKey,
    ForeignKeyConstraint,
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

from cs_config.versions.tables import UtcTime, metadata
from taskqueue.schema.bitset_type import BitsetType
from taskqueue.states import FINAL

#: SQLite numbers rows by itself only in a column of type INTEGER.
BigId = BigInteger().with_variant(Integer, "sqlite")

#: PostgreSQL: large tables. A fifth of a hundred million rows may not lie dead before somebody cleans up, nor
#: may the planner believe numbers that are a fifth off.
_LARGE = {
    "autovacuum_vacuum_scale_factor": 0.02,
    "autovacuum_vacuum_insert_scale_factor": 0.05,
    "autovacuum_analyze_scale_factor": 0.02,
}
#: PostgreSQL: room for the next version of a row beside it, so that no index has to learn of it.
_ROOMY = {**_LARGE, "fillfactor": 85}
#: PostgreSQL: rows come and go all the time, and who looks for the first one steps over those that went.
_QUEUE = {"autovacuum_vacuum_scale_factor": 0.01, "autovacuum_analyze_scale_factor": 0.02}
#: PostgreSQL: few rows that change many times a second.
_BUSY = {"fillfactor": 50, "autovacuum_vacuum_scale_factor": 0.0, "autovacuum_vacuum_threshold": 500}


def _accounted(*more: Column[str]) -> list[Column[Any] | PrimaryKeyConstraint]:
    """What sums are kept by: the hour, whose and where it was, and more."""
    names = ("vo", "site", "ce", "queue", "owner", "owner_group")  # the place: empty, if there was no attempt
    by: list[Column[Any]] = [Column("hour", UtcTime, nullable=False)]
    by += [Column(name, Text, nullable=False) for name in names]
    by += more
    return [*by, PrimaryKeyConstraint(*(each.name for each in by))]


_FINAL = ", ".join(f"'{status}'" for status in sorted(FINAL))
#: What the indexes of jobs by status hold. SQLite uses one only if the statement says this as well.
ENDED, LIVING = text(f"status IN ({_FINAL})"), text(f"status NOT IN ({_FINAL})")

#: What a user wrote, once for all jobs of one submission that share it (parametric jobs).
descriptions = Table(
    "descriptions",
    metadata,
    Column("description_id", BigId, primary_key=True),
    Column("source", Text, nullable=False),  # the text as it came: JDL, YAML or JSON
    Column("body", Text, nullable=False),  # JSON object: the checked description, keys in our spelling
    Column("sandbox", String(64)),  # blob of the input sandbox
    sqlite_autoincrement=True,
)

#: One grid job a row: where it is and who it belongs to. Wide and cold; the hot row is in `waiting_jobs`.
jobs = Table(
    "jobs",
    metadata,
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
    Column("parameters", Text),  # JSON object: what this member of a parametric job puts for %s, %n, %(name)s
    Column("step", Text),  # the optimizer that looks at it next; None: from the start
    Column("due_at", UtcTime),  # when the optimizers may look at it; None: not theirs
    Column("submit_pool", String(64)),  # submit_pools.pool_id; no foreign key: final jobs outlive their pool
    Column("task_queue_id", BigId),  # task_queues.task_queue_id, set when Waiting for the first time
    Column("site", Text, nullable=False, default="ANY"),  # where it is or was; before that what it asks
    Column("epoch", Integer, nullable=False, default=0),  # number of its latest attempt
    Column("reschedules", Integer, nullable=False, default=0),
    Column("submitted_at", UtcTime, nullable=False),
    Column("updated_at", UtcTime, nullable=False),  # last change of status
    Column("started_at", UtcTime),
    Column("ended_at", UtcTime),
    Index(
        "ix_jobs_due_at",
        "due_at",
        sqlite_where=text("due_at IS NOT NULL"),
        postgresql_where=text("due_at IS NOT NULL"),
    ),
    # With the id at the end, here and below: the newest of them are found without sorting all.
    Index("ix_jobs_vo_owner_status_job_id", "vo", "owner", "status", "job_id"),
    # Not one, so that a statement which names a job and its status never looks at all jobs of that status.
    Index("ix_jobs_ended", "status", "updated_at", sqlite_where=ENDED, postgresql_where=ENDED),
    Index("ix_jobs_ended_job_id", "status", "job_id", sqlite_where=ENDED, postgresql_where=ENDED),
    Index("ix_jobs_living", "status", "job_id", sqlite_where=LIVING, postgresql_where=LIVING),
    # Which pools are in use, and the jobs of each.
    Index(
        "ix_jobs_submit_pool_status_job_id",
        "submit_pool",
        "status",
        "job_id",
        sqlite_where=text("submit_pool IS NOT NULL"),
        postgresql_where=text("submit_pool IS NOT NULL"),
    ),
    Index("ix_jobs_description_id", "description_id"),
    sqlite_autoincrement=True,  # an id is never given out twice
    postgresql_with=_LARGE,
)

#: Every change of a job's status, in order; written in the transaction of the change.
job_log = Table(
    "job_log",
    metadata,
    Column("log_id", BigId, primary_key=True),
    Column("job_id", BigId, ForeignKey("jobs.job_id", ondelete="CASCADE"), nullable=False),
    Column("at", UtcTime, nullable=False),
    Column("from_status", String(16)),  # None: the job was stored
    Column("to_status", String(16), nullable=False),
    Column("minor_status", Text, nullable=False, default=""),
    Column("application_status", Text, nullable=False, default=""),
    Column("source", Text, nullable=False),  # who did it: JobManager, an optimizer, Matcher, Pilot, an agent
    Column("epoch", Integer, nullable=False, default=0),
    Index("ix_job_log_job_id_log_id", "job_id", "log_id"),
    sqlite_autoincrement=True,
    postgresql_with=_LARGE,
)

#: For what each job that has ended had waited, in seconds by cause; outlives its log.
job_waits = Table(
    "job_waits",
    metadata,
    Column("job_id", BigId, ForeignKey("jobs.job_id", ondelete="CASCADE"), nullable=False),
    Column("cause", Text, nullable=False),
    Column("seconds", Float, nullable=False),
    Column("ended_at", UtcTime, nullable=False),  # jobs.updated_at of the end that was counted
    PrimaryKeyConstraint("job_id", "cause"),
    postgresql_with=_LARGE,
)

#: How far each account has read the log of jobs; in one transaction with what it counted there.
log_readers = Table(
    "log_readers",
    metadata,
    Column("name", Text, primary_key=True),
    Column("counted", BigInteger, nullable=False),  # every row of the log up to this one is counted
    Column("noted", BigInteger, nullable=False),  # where the log ended at some moment
    Column("under_way", Text, nullable=False),  # JSON list: of what server, and what began before that moment
)

#: How many jobs came into a status in a minute, and how many left it; of old ones, in an hour.
job_flows = Table(
    "job_flows",
    metadata,
    Column("minute", UtcTime, nullable=False),  # its beginning, by the times in the log
    Column("vo", Text, nullable=False),
    Column("status", String(16), nullable=False),
    Column("came", BigInteger, nullable=False),
    Column("went", BigInteger, nullable=False),  # of a status that is final: not counted
    PrimaryKeyConstraint("minute", "vo", "status"),
)

#: How many jobs there are in each status, by what the log says; of a final one, how many ever came into it.
job_stocks = Table(
    "job_stocks",
    metadata,
    Column("vo", Text, nullable=False),
    Column("status", String(16), nullable=False),
    Column("jobs", BigInteger, nullable=False),
    PrimaryKeyConstraint("vo", "status"),
    postgresql_with=_BUSY,
)

#: What the attempts used that are over, and how many jobs ended, by the hour; of long ago by the day.
accounted_use = Table(
    "accounted_use",
    metadata,
    # What the job came into: its end, or Rescheduled.
    *_accounted(Column("status", String(16), nullable=False)),
    Column("jobs", BigInteger, nullable=False),  # that ended
    Column("attempts", BigInteger, nullable=False),  # that had begun
    Column("wall_seconds", Float, nullable=False),
    Column("core_seconds", Float, nullable=False),  # wall time, times the cores that the job might use
    Column("cpu_seconds", Float, nullable=False),  # as far as pilots told
    Column("told_core_seconds", Float, nullable=False),  # core time of those attempts
    Column("normalised_seconds", Float, nullable=False),  # CPU time of those that told their power too
)

#: For what the jobs that ended had waited, by the hour of their end; of long ago by the day.
accounted_waits = Table(
    "accounted_waits",
    metadata,
    *_accounted(Column("status", String(16), nullable=False), Column("cause", Text, nullable=False)),
    Column("seconds", Float, nullable=False),
)

#: The distinct sets of requirements that matching looks at; immutable, so a copy never goes stale.
requirement_classes = Table(
    "requirement_classes",
    metadata,
    Column("class_id", BigId, primary_key=True),
    Column("digest", String(64), nullable=False, unique=True),  # of VO and definition
    Column("vo", Text, nullable=False),
    Column("definition", Text, nullable=False),  # JSON object: classes.RequirementClass
    sqlite_autoincrement=True,
)

#: Waiting jobs of one owner and group with one requirement class: where shares act.
task_queues = Table(
    "task_queues",
    metadata,
    Column("task_queue_id", BigId, primary_key=True),
    Column("class_id", BigId, ForeignKey("requirement_classes.class_id"), nullable=False),
    Column("vo", Text, nullable=False),
    Column("owner", Text, nullable=False),
    Column("owner_group", Text, nullable=False),
    Column("priority", Float, nullable=False, default=1.0),  # weight in the lottery
    # True whenever the task queue has a waiting job; may stay true for a moment after the last one went.
    Column("occupied", Boolean, nullable=False, server_default=true()),
    Column("changed_at", UtcTime, nullable=False),  # when `occupied` changed last
    UniqueConstraint("class_id", "owner_group", "owner"),
    Index("ix_task_queues_owner_group_owner", "owner_group", "owner"),
    sqlite_autoincrement=True,
)

#: When what kept the jobs of a task queue from pilots, as the matchers saw it. No foreign key: a matcher
#: writes of a task queue that may just have been removed.
hindrances = Table(
    "hindrances",
    metadata,
    Column("task_queue_id", BigId, nullable=False),
    Column("cause", String(16), nullable=False),  # one of hindrances.ORDER
    Column("since", UtcTime, nullable=False),
    Column("until", UtcTime, nullable=False),
    PrimaryKeyConstraint("task_queue_id", "cause", "since"),
    Index("ix_hindrances_until", "until"),
)

#: The jobs that a pilot may take, one slim row each. Deleting the row is the claim.
waiting_jobs = Table(
    "waiting_jobs",
    metadata,
    Column("job_id", BigId, ForeignKey("jobs.job_id"), primary_key=True, autoincrement=False),
    Column("task_queue_id", BigId, ForeignKey("task_queues.task_queue_id"), nullable=False),
    Column("priority", Float, nullable=False),
    # The order of a claim: the user's priority, then first in, first out.
    Index("ix_waiting_jobs_task_queue_id", "task_queue_id", text("priority DESC"), "job_id"),
    postgresql_with=_QUEUE,
)

#: Requirements of a VO under their hash (RFC #7), with the state of their mapping to queues.
submit_pools = Table(
    "submit_pools",
    metadata,
    Column("pool_id", String(64), primary_key=True),  # SHA-256 of the canonical form
    Column("vo", Text, nullable=False),
    Column("requirements", Text, nullable=False),  # the canonical form, JSON
    Column("original", Text, nullable=False),  # as first written, JSON: what people are shown
    Column("created_at", UtcTime, nullable=False),
    Column("last_used_at", UtcTime, nullable=False),  # touched by every job that passes the optimizers
    Column("refreshed_at", UtcTime),  # None: not resolved yet
    # What it was computed from when a job brought it; the refresh of all pools of a VO stands with the VO.
    Column("config_version", Integer, nullable=False, default=0),
    Column("expiries", Integer, nullable=False, server_default="0"),  # how much of that had expired
    Index("ix_submit_pools_config_version", "config_version"),
)

#: Queues with equal effective parameters for a VO, under the digest of those.
queue_classes = Table(
    "queue_classes",
    metadata,
    Column("queue_class_id", BigId, primary_key=True),
    Column("vo", Text, nullable=False),
    Column("digest", String(64), nullable=False),
    # Its bit in the VO's mappings, small numbers first; null: a process of the release before made it.
    Column("slot", Integer),
    UniqueConstraint("vo", "digest"),
    Index("uq_queue_classes_vo_slot", "vo", "slot", unique=True),
    sqlite_autoincrement=True,
)

#: The queues of a queue class. A queue that the VO may not use now has no row.
queue_class_members = Table(
    "queue_class_members",
    metadata,
    Column("vo", Text, nullable=False),
    Column("site", Text, nullable=False),
    Column("ce", Text, nullable=False),
    Column("queue", Text, nullable=False),
    Column("queue_class_id", BigId, ForeignKey("queue_classes.queue_class_id"), nullable=False),
    PrimaryKeyConstraint("vo", "site", "ce", "queue"),
    Index("ix_queue_class_members_queue_class_id", "queue_class_id"),
)

#: For each VO the configuration version that its queue classes and members were computed from, and by which
#: rule, and the version that all mappings of its pools are of at least.
queue_class_versions = Table(
    "queue_class_versions",
    metadata,
    Column("vo", Text, primary_key=True),
    Column("config_version", Integer, nullable=False),
    Column("expiries", Integer, nullable=False, server_default="0"),  # how much of that had expired
    Column("refreshed_version", Integer, nullable=False, server_default="0"),
    Column("refreshed_expiries", Integer, nullable=False, server_default="0"),
    Column("refreshed_at", UtcTime),  # when they all were computed anew
    Column("algorithm", Integer, nullable=False, server_default="1"),  # of the digests of the classes
)

#: The mapping: the queue classes that are eligible for a pool. No row: it is not resolved yet.
pool_mappings = Table(
    "pool_mappings",
    metadata,
    Column("pool_id", String(64), ForeignKey("submit_pools.pool_id", ondelete="CASCADE"), primary_key=True),
    Column("vo", Text, nullable=False),
    Column("eligible", BitsetType, nullable=False),
    Column(
        "undecided", BitsetType, nullable=False
    ),  # those where only some nodes may do; measured facts decide
    Index("ix_pool_mappings_vo", "vo"),
)

#: The mapping as the release before reads and writes it. Rows of a pool go when its mapping is written, so
#: that none of them is ever out of date.
pool_queue_classes = Table(
    "pool_queue_classes",
    metadata,
    Column("pool_id", String(64), ForeignKey("submit_pools.pool_id", ondelete="CASCADE"), nullable=False),
    Column("queue_class_id", BigId, ForeignKey("queue_classes.queue_class_id"), nullable=False),
    # True: only some nodes may do; what they measured decides.
    Column("undecided", Boolean, nullable=False, server_default=false()),
    PrimaryKeyConstraint("pool_id", "queue_class_id"),
    Index("ix_pool_queue_classes_queue_class_id", "queue_class_id"),
)

#: One hand-over of a job to a pilot a row. It is good while `closed_at` is null, and only then.
attempts = Table(
    "attempts",
    metadata,
    Column("job_id", BigId, ForeignKey("jobs.job_id", ondelete="CASCADE"), nullable=False),
    Column("epoch", Integer, nullable=False),
    Column("lease", String(64), nullable=False, unique=True),  # the token that the pilot names it by
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
    Column("ending", Boolean, nullable=False, server_default=false()),  # killed; its pilot is being told
    Column("closed_at", UtcTime),
    Column("closed_as", Text),  # finished, released, expired, lost, rescheduled, killed
    Column(
        "request", Text
    ),  # JSON of the finish or release that closed it: the same again gets the same answer
    Column("answer", Text),  # JSON of the answer that was given to it
    Column("exit_code", Integer),
    Column("progress", Text, nullable=False, default=""),
    Column("output_tail", Text, nullable=False, default=""),  # last lines of the payload's output
    Column("output", String(64)),  # blob of the output archive
    # What the job may use of the resource; null: nothing was said of it.
    Column("processors", Integer),
    Column("ram_mb", BigInteger),
    Column("gpus", Integer),
    # What a job manager says beside; null: it said nothing of it.
    Column("phases", Text),  # JSON list of objects: progress.Phase
    Column("local_jobs", Text),  # JSON object: numbers of local jobs by their state
    # It was open when commits had been lost: what its pilot said last may be among them.
    Column("quarantined", Boolean, nullable=False, server_default=false()),
    # When it was closed as lost before its holder came back and it was opened again; null: it never was.
    Column("lost_at", UtcTime),
    PrimaryKeyConstraint("job_id", "epoch"),
    CheckConstraint("(closed_at IS NULL) = (closed_as IS NULL)", name="closed_for_a_reason"),
    # A job is in one pair of hands at a time, whatever the code above does.
    Index(
        "uq_attempts_open",
        "job_id",
        unique=True,
        sqlite_where=text("closed_at IS NULL"),
        postgresql_where=text("closed_at IS NULL"),
    ),
    # Nothing that a heartbeat changes is in any index: it is the commonest write of all.
    Index(
        "ix_attempts_not_started",
        "job_id",
        sqlite_where=text("closed_at IS NULL AND started_at IS NULL"),
        postgresql_where=text("closed_at IS NULL AND started_at IS NULL"),
    ),
    Index(
        "ix_attempts_ending",
        "job_id",
        sqlite_where=text("closed_at IS NULL AND ending IS true"),
        postgresql_where=text("closed_at IS NULL AND ending IS true"),
    ),
    Index("ix_attempts_stamp", "stamp"),
    # What is at a site now: counted where limits are set.
    Index(
        "ix_attempts_open_at",
        "site",
        "ce",
        "queue",
        sqlite_where=text("closed_at IS NULL"),
        postgresql_where=text("closed_at IS NULL"),
    ),
    postgresql_with=_ROOMY,
)

#: One row a site, CE or queue that something limits: who holds its lock decides alone what is matched
#: there. With its last advertisement: what the site says of its state.
scopes = Table(
    "scopes",
    metadata,
    Column("scope", Text, primary_key=True),  # Site, Site/CE or Site/CE/Queue
    Column("site", Text, nullable=False),
    Column("watermark", BigInteger, nullable=False, server_default=text("0")),  # of a site: last given out
    # The watermark that the advertisement was counted after; an older one comes too late.
    Column("as_of", BigInteger, nullable=False, server_default=text("0")),
    Column("advertisement", Text),  # JSON object: attributes as advertised
    Column("advertised_at", UtcTime),  # when it was accepted
    Column("taken_at", Text),  # what the site says of when it counted; for people
    Index("ix_scopes_site", "site"),
    postgresql_with=_BUSY,
)

#: Matches that are not in the site's own counts yet, one row for each scope that counts them. What became
#: of the attempt is asked of the attempt, so nobody who ends one has to know of this table.
reservations = Table(
    "reservations",
    metadata,
    Column("scope", Text, ForeignKey("scopes.scope"), nullable=False),
    Column("job_id", BigId, nullable=False),
    Column("epoch", Integer, nullable=False),
    Column("begun_by", BigInteger),  # the first watermark by which its start was recorded
    Column("seen", Boolean, nullable=False, server_default=false()),  # the last advertisement lists it
    PrimaryKeyConstraint("scope", "job_id", "epoch"),
    ForeignKeyConstraint(["job_id", "epoch"], ["attempts.job_id", "attempts.epoch"], ondelete="CASCADE"),
    Index("ix_reservations_job_id_epoch", "job_id", "epoch"),
    postgresql_with=_QUEUE,
)

#: Sites that get no jobs but tests, until they are allowed again.
site_bans = Table(
    "site_bans",
    metadata,
    Column("site", Text, primary_key=True),
    Column("reason", Text, nullable=False),
    Column("author", Text, nullable=False),
    Column("at", UtcTime, nullable=False),
    Column("until", UtcTime),  # None: until it is allowed again
)

#: Token buckets of the matching delays: how full each was when something was taken from it last.
matching_delays = Table(
    "matching_delays",
    metadata,
    Column("scope", Text, nullable=False),
    Column("attribute", Text, nullable=False),
    Column("value", Text, nullable=False),
    Column("vo", Text, nullable=False),  # empty: the delay of all VOs
    Column("tokens", Float, nullable=False),
    Column("at", UtcTime, nullable=False),
    PrimaryKeyConstraint("scope", "attribute", "value", "vo"),
    postgresql_with=_BUSY,
)

#: Answers to requests for work by their `request_id`: a lost answer is given again, not made anew.
match_requests = Table(
    "match_requests",
    metadata,
    Column("subject", Text, nullable=False),
    Column("request_id", Text, nullable=False),
    Column("at", UtcTime, nullable=False),
    Column("matches", Text, nullable=False),  # JSON list of [job_id, epoch]
    PrimaryKeyConstraint("subject", "request_id"),
    Index("ix_match_requests_at", "at"),
    postgresql_with=_QUEUE,
)

#: Ids given to a submission under its idempotency key.
idempotency_keys = Table(
    "idempotency_keys",
    metadata,
    Column("subject", Text, nullable=False),
    Column("key", Text, nullable=False),
    Column("body_digest", String(64), nullable=False),
    Column("job_ids", Text, nullable=False),  # JSON list
    Column("at", UtcTime, nullable=False),
    PrimaryKeyConstraint("subject", "key"),
    Index("ix_idempotency_keys_at", "at"),
)

#: Pullers in batch slots, by our own id: the batch system's may be given out twice.
pilots = Table(
    "pilots",
    metadata,
    Column("stamp", Text, primary_key=True),
    Column("vo", Text, nullable=False),
    Column("status", String(16), nullable=False),  # states.PilotStatus
    Column("status_reason", Text, nullable=False, default=""),
    Column("site", Text, nullable=False, default=""),
    Column("ce", Text, nullable=False, default=""),
    Column("queue", Text, nullable=False, default=""),
    Column("reference", Text),  # the CE's id
    Column(
        "submitted_by", Text, nullable=False, default=""
    ),  # token subject of the director; empty: it came by itself
    Column("jobs", Integer, nullable=False, default=0),  # how many it was given
    Column("created_at", UtcTime, nullable=False),
    Column("updated_at", UtcTime, nullable=False),
    Column("last_seen_at", UtcTime),  # last request of the pilot itself
    Column("landings", Text),  # JSON list of Site/CE/Queue: where one may land whose queue a broker picks
    Column("empty_reason", String(40), nullable=False, server_default=""),  # why it got no job, in a word
    Index("ix_pilots_status_updated_at", "status", "updated_at"),
    Index("ix_pilots_vo_site", "vo", "site"),
)

#: The ends of what failed pilots wrote.
pilot_outputs = Table(
    "pilot_outputs",
    metadata,
    Column("stamp", Text, ForeignKey("pilots.stamp", ondelete="CASCADE"), primary_key=True),
    Column("stdout", Text, nullable=False),
    Column("stderr", Text, nullable=False),
    Column("stored_at", UtcTime, nullable=False),
)

#: One-use secrets of registered pilots, each exchanged for a token at the pilot's first contact.
pilot_secrets = Table(
    "pilot_secrets",
    metadata,
    Column("stamp", Text, ForeignKey("pilots.stamp", ondelete="CASCADE"), primary_key=True),
    Column("digest", String(64), nullable=False),  # SHA-256; the secret itself is nowhere
    Column("expires_at", UtcTime, nullable=False),  # it can be redeemed until then
    Column("redeemed_at", UtcTime),
    Column("request_id", Text),  # of the exchange that redeemed it: only that one is answered again
)

#: Archives by the digest of their content; the bytes lie in the blob store, not here.
blobs = Table(
    "blobs",
    metadata,
    Column("digest", String(64), nullable=False),
    Column("vo", Text, nullable=False),
    Column("size", BigInteger, nullable=False),  # bytes
    Column("created_at", UtcTime, nullable=False),
    Column("last_used_at", UtcTime, nullable=False),
    PrimaryKeyConstraint("digest", "vo"),  # a VO reads only what it brought itself
    Index("ix_blobs_vo", "vo"),
)

#: Which process does an agent's work now; the fence grows with every change of hands.
agent_leases = Table(
    "agent_leases",
    metadata,
    Column("name", Text, primary_key=True),
    Column("holder", Text, nullable=False),
    Column("fence", BigInteger, nullable=False),
    Column("expires_at", UtcTime, nullable=False),
    Column("last_cycle_at", UtcTime),
    postgresql_with=_BUSY,
)

#: When each process of the service was up; a pilot is silent only while it could be heard.
service_uptime = Table(
    "service_uptime",
    metadata,
    Column("process", Text, nullable=False),
    Column("since", UtcTime, nullable=False),
    Column("until", UtcTime, nullable=False),  # extended every few seconds
    PrimaryKeyConstraint("process", "since"),
    postgresql_with=_BUSY,
)

#: One row: what concerns the installation as a whole. A process that sees another incarnation than before
#: trusts nothing that it remembers.
installation = Table(
    "installation",
    metadata,
    Column("row_number", Integer, primary_key=True, autoincrement=False, server_default=text("1")),
    # Another one after every loss of commits: the time in seconds, since a counter might be lost as well.
    Column("incarnation", BigInteger, nullable=False, server_default=text("1")),
    Column("opened_at", UtcTime),  # when it was opened; None: nothing was ever lost
    # No attempt gets this number or a lower one: they may have been given out by a commit that was lost.
    Column("epoch_floor", Integer, nullable=False, server_default=text("0")),
    Column("trimmed_to", BigInteger, nullable=False, server_default=text("0")),  # last of `changes` removed
    CheckConstraint("row_number = 1", name="one_row"),
)

#: What a matcher has to look at again: a task queue that appeared, emptied or changed, or a mapping.
#: Read by `changes`, which knows why a growing number alone is no safe cursor.
changes = Table(
    "changes",
    metadata,
    Column("change_id", BigId, primary_key=True),
    Column("xid", BigInteger, nullable=False),  # PostgreSQL: transaction that wrote it; SQLite: 0
    Column("kind", String(16), nullable=False),  # task_queue, mapping, priority
    Column(
        "key", Text, nullable=False
    ),  # id of the task queue; VO of the mapping; owner group of the weights
    Column("at", UtcTime, nullable=False),
    Index("ix_changes_xid", "xid"),
    Index("ix_changes_at", "at"),
    sqlite_autoincrement=True,
    postgresql_with=_QUEUE,
)

#: Tokens that are not accepted any more although they have not expired.
revoked_tokens = Table(
    "revoked_tokens",
    metadata,
    Column("jti", Text, primary_key=True),
    Column("expires_at", UtcTime, nullable=False),
)

#: One-use links that sign a browser in; the secret of each is in nobody's hands but its bearer's.
login_links = Table(
    "login_links",
    metadata,
    Column("digest", String(64), primary_key=True),  # SHA-256 of the secret
    Column("session", Text, nullable=False),  # JSON object: what the session may, and until when
    Column("expires_at", UtcTime, nullable=False),  # of the link
)

#: Jobs that a sweep has in hand. A row whose holder is gone says that the process ended with the job.
trials = Table(
    "trials",
    metadata,
    Column(
        "job_id", BigId, ForeignKey("jobs.job_id", ondelete="CASCADE"), primary_key=True, autoincrement=False
    ),
    Column("holder", Text, nullable=False),  # the sweep's process, by a name that no other ever has
    Column("crashes", Integer, nullable=False),  # of earlier holders
)
