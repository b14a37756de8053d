"""The first schema: jobs, task queues, pools and their mapping, attempts, pilots, blobs, configuration."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

_ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")

_POOL_QUEUES = """
CREATE VIEW pool_queues AS
SELECT pool_queue_classes.pool_id, queue_class_members.site, queue_class_members.ce,
    queue_class_members.queue, submit_pools.refreshed_at, submit_pools.config_version
FROM pool_queue_classes
JOIN queue_class_members ON queue_class_members.queue_class_id = pool_queue_classes.queue_class_id
JOIN submit_pools ON submit_pools.pool_id = pool_queue_classes.pool_id
"""


def upgrade() -> None:
    op.create_table(
        "agent_leases",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("holder", sa.Text(), nullable=False),
        sa.Column("fence", sa.BigInteger(), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("last_cycle_at", sa.DateTime(timezone=True), nullable=True),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_agent_leases")),
    )
    op.create_table(
        "blobs",
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("vo", sa.Text(), nullable=False),
        sa.Column("size", sa.BigInteger(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("last_used_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("digest", "vo", name=op.f("pk_blobs")),
    )
    op.create_index("ix_blobs_vo", "blobs", ["vo"], unique=False)
    op.create_table(
        "changes",
        sa.Column("change_id", _ID, nullable=False),
        sa.Column("xid", sa.BigInteger(), nullable=False),
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("change_id", name=op.f("pk_changes")),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_changes_at", "changes", ["at"], unique=False)
    op.create_index("ix_changes_xid", "changes", ["xid"], unique=False)
    op.create_table(
        "config_imports",
        sa.Column("file", sa.Text(), nullable=False),
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("file", name=op.f("pk_config_imports")),
    )
    op.create_table(
        "config_versions",
        sa.Column("version", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("source", sa.Text(), nullable=False),
        sa.Column("author", sa.Text(), nullable=False),
        sa.Column("message", sa.Text(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("version", name=op.f("pk_config_versions")),
    )
    op.create_table(
        "descriptions",
        sa.Column("description_id", _ID, nullable=False),
        sa.Column("source", sa.Text(), nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        sa.Column("sandbox", sa.String(length=64), nullable=True),
        sa.PrimaryKeyConstraint("description_id", name=op.f("pk_descriptions")),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "idempotency_keys",
        sa.Column("subject", sa.Text(), nullable=False),
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("body_digest", sa.String(length=64), nullable=False),
        sa.Column("job_ids", sa.Text(), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("subject", "key", name=op.f("pk_idempotency_keys")),
    )
    op.create_index("ix_idempotency_keys_at", "idempotency_keys", ["at"], unique=False)
    op.create_table(
        "match_requests",
        sa.Column("subject", sa.Text(), nullable=False),
        sa.Column("request_id", sa.Text(), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("matches", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("subject", "request_id", name=op.f("pk_match_requests")),
    )
    op.create_index("ix_match_requests_at", "match_requests", ["at"], unique=False)
    op.create_table(
        "pilots",
        sa.Column("stamp", sa.Text(), nullable=False),
        sa.Column("vo", sa.Text(), nullable=False),
        sa.Column("status", sa.String(length=16), nullable=False),
        sa.Column("status_reason", sa.Text(), nullable=False),
        sa.Column("site", sa.Text(), nullable=False),
        sa.Column("ce", sa.Text(), nullable=False),
        sa.Column("queue", sa.Text(), nullable=False),
        sa.Column("reference", sa.Text(), nullable=True),
        sa.Column("submitted_by", sa.Text(), nullable=False),
        sa.Column("jobs", sa.Integer(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("updated_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("last_seen_at", sa.DateTime(timezone=True), nullable=True),
        sa.PrimaryKeyConstraint("stamp", name=op.f("pk_pilots")),
    )
    op.create_index("ix_pilots_status_updated_at", "pilots", ["status", "updated_at"], unique=False)
    op.create_index("ix_pilots_vo_site", "pilots", ["vo", "site"], unique=False)
    op.create_table(
        "queue_class_versions",
        sa.Column("vo", sa.Text(), nullable=False),
        sa.Column("config_version", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("vo", name=op.f("pk_queue_class_versions")),
    )
    op.create_table(
        "queue_classes",
        sa.Column("queue_class_id", _ID, nullable=False),
        sa.Column("vo", sa.Text(), nullable=False),
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.PrimaryKeyConstraint("queue_class_id", name=op.f("pk_queue_classes")),
        sa.UniqueConstraint("vo", "digest", name=op.f("uq_queue_classes_vo_digest")),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "requirement_classes",
        sa.Column("class_id", _ID, nullable=False),
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("vo", sa.Text(), nullable=False),
        sa.Column("definition", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("class_id", name=op.f("pk_requirement_classes")),
        sa.UniqueConstraint("digest", name=op.f("uq_requirement_classes_digest")),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "revoked_tokens",
        sa.Column("jti", sa.Text(), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("jti", name=op.f("pk_revoked_tokens")),
    )
    op.create_table(
        "submit_pools",
        sa.Column("pool_id", sa.String(length=64), nullable=False),
        sa.Column("vo", sa.Text(), nullable=False),
        sa.Column("requirements", sa.Text(), nullable=False),
        sa.Column("original", sa.Text(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("last_used_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("refreshed_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("config_version", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("pool_id", name=op.f("pk_submit_pools")),
    )
    op.create_index("ix_submit_pools_config_version", "submit_pools", ["config_version"], unique=False)
    op.create_table(
        "jobs",
        sa.Column("job_id", _ID, nullable=False),
        sa.Column("vo", sa.Text(), nullable=False),
        sa.Column("owner", sa.Text(), nullable=False),
        sa.Column("owner_group", sa.Text(), nullable=False),
        sa.Column("status", sa.String(length=16), nullable=False),
        sa.Column("minor_status", sa.Text(), nullable=False),
        sa.Column("application_status", sa.Text(), nullable=False),
        sa.Column("job_name", sa.Text(), nullable=False),
        sa.Column("job_type", sa.Text(), nullable=False),
        sa.Column("job_group", sa.Text(), nullable=False),
        sa.Column("priority", sa.Float(), nullable=False),
        sa.Column("description_id", _ID, nullable=False),
        sa.Column("parameters", sa.Text(), nullable=True),
        sa.Column("step", sa.Text(), nullable=True),
        sa.Column("due_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("submit_pool", sa.String(length=64), nullable=True),
        sa.Column("task_queue_id", _ID, nullable=True),
        sa.Column("site", sa.Text(), nullable=False),
        sa.Column("epoch", sa.Integer(), nullable=False),
        sa.Column("reschedules", sa.Integer(), nullable=False),
        sa.Column("submitted_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("updated_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("ended_at", sa.DateTime(timezone=True), nullable=True),
        sa.ForeignKeyConstraint(
            ["description_id"], ["descriptions.description_id"], name=op.f("fk_jobs_description_id")
        ),
        sa.PrimaryKeyConstraint("job_id", name=op.f("pk_jobs")),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_jobs_description_id", "jobs", ["description_id"], unique=False)
    op.create_index(
        "ix_jobs_due_at",
        "jobs",
        ["due_at"],
        unique=False,
        sqlite_where=sa.text("due_at IS NOT NULL"),
        postgresql_where=sa.text("due_at IS NOT NULL"),
    )
    op.create_index("ix_jobs_status_updated_at", "jobs", ["status", "updated_at"], unique=False)
    op.create_index(
        "ix_jobs_submit_pool",
        "jobs",
        ["submit_pool", "status"],
        unique=False,
        sqlite_where=sa.text("submit_pool IS NOT NULL"),
        postgresql_where=sa.text("submit_pool IS NOT NULL"),
    )
    op.create_index("ix_jobs_vo_owner_status", "jobs", ["vo", "owner", "status"], unique=False)
    op.create_table(
        "pool_queue_classes",
        sa.Column("pool_id", sa.String(length=64), nullable=False),
        sa.Column("queue_class_id", _ID, nullable=False),
        sa.ForeignKeyConstraint(
            ["pool_id"],
            ["submit_pools.pool_id"],
            name=op.f("fk_pool_queue_classes_pool_id"),
            ondelete="CASCADE",
        ),
        sa.ForeignKeyConstraint(
            ["queue_class_id"],
            ["queue_classes.queue_class_id"],
            name=op.f("fk_pool_queue_classes_queue_class_id"),
        ),
        sa.PrimaryKeyConstraint("pool_id", "queue_class_id", name=op.f("pk_pool_queue_classes")),
    )
    op.create_index(
        "ix_pool_queue_classes_queue_class_id", "pool_queue_classes", ["queue_class_id"], unique=False
    )
    op.create_table(
        "queue_class_members",
        sa.Column("vo", sa.Text(), nullable=False),
        sa.Column("site", sa.Text(), nullable=False),
        sa.Column("ce", sa.Text(), nullable=False),
        sa.Column("queue", sa.Text(), nullable=False),
        sa.Column("queue_class_id", _ID, nullable=False),
        sa.ForeignKeyConstraint(
            ["queue_class_id"],
            ["queue_classes.queue_class_id"],
            name=op.f("fk_queue_class_members_queue_class_id"),
        ),
        sa.PrimaryKeyConstraint("vo", "site", "ce", "queue", name=op.f("pk_queue_class_members")),
    )
    op.create_index(
        "ix_queue_class_members_queue_class_id", "queue_class_members", ["queue_class_id"], unique=False
    )
    op.create_table(
        "task_queues",
        sa.Column("task_queue_id", _ID, nullable=False),
        sa.Column("class_id", _ID, nullable=False),
        sa.Column("vo", sa.Text(), nullable=False),
        sa.Column("owner", sa.Text(), nullable=False),
        sa.Column("owner_group", sa.Text(), nullable=False),
        sa.Column("priority", sa.Float(), nullable=False),
        sa.Column("occupied", sa.Boolean(), server_default=sa.true(), nullable=False),
        sa.Column("changed_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["class_id"], ["requirement_classes.class_id"], name=op.f("fk_task_queues_class_id")
        ),
        sa.PrimaryKeyConstraint("task_queue_id", name=op.f("pk_task_queues")),
        sa.UniqueConstraint(
            "class_id", "owner_group", "owner", name=op.f("uq_task_queues_class_id_owner_group_owner")
        ),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_task_queues_owner_group_owner", "task_queues", ["owner_group", "owner"], unique=False)
    op.create_table(
        "attempts",
        sa.Column("job_id", _ID, nullable=False),
        sa.Column("epoch", sa.Integer(), nullable=False),
        sa.Column("lease", sa.String(length=64), nullable=False),
        sa.Column("holder", sa.Text(), nullable=False),
        sa.Column("stamp", sa.Text(), nullable=True),
        sa.Column("vo", sa.Text(), nullable=False),
        sa.Column("site", sa.Text(), nullable=False),
        sa.Column("ce", sa.Text(), nullable=False),
        sa.Column("queue", sa.Text(), nullable=False),
        sa.Column("opened_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("lease_expires_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("heartbeat_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("ending", sa.Boolean(), server_default=sa.false(), nullable=False),
        sa.Column("closed_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("closed_as", sa.Text(), nullable=True),
        sa.Column("request", sa.Text(), nullable=True),
        sa.Column("answer", sa.Text(), nullable=True),
        sa.Column("exit_code", sa.Integer(), nullable=True),
        sa.Column("progress", sa.Text(), nullable=False),
        sa.Column("output_tail", sa.Text(), nullable=False),
        sa.Column("output", sa.String(length=64), nullable=True),
        sa.CheckConstraint(
            "(closed_at IS NULL) = (closed_as IS NULL)", name=op.f("ck_attempts_closed_for_a_reason")
        ),
        sa.ForeignKeyConstraint(
            ["job_id"], ["jobs.job_id"], name=op.f("fk_attempts_job_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("job_id", "epoch", name=op.f("pk_attempts")),
        sa.UniqueConstraint("lease", name=op.f("uq_attempts_lease")),
    )
    op.create_index(
        "ix_attempts_lease_expires_at",
        "attempts",
        ["lease_expires_at"],
        unique=False,
        sqlite_where=sa.text("closed_at IS NULL"),
        postgresql_where=sa.text("closed_at IS NULL"),
    )
    op.create_index("ix_attempts_stamp", "attempts", ["stamp"], unique=False)
    op.create_index(
        "uq_attempts_open",
        "attempts",
        ["job_id"],
        unique=True,
        sqlite_where=sa.text("closed_at IS NULL"),
        postgresql_where=sa.text("closed_at IS NULL"),
    )
    op.create_table(
        "job_log",
        sa.Column("log_id", _ID, nullable=False),
        sa.Column("job_id", _ID, nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("from_status", sa.String(length=16), nullable=True),
        sa.Column("to_status", sa.String(length=16), nullable=False),
        sa.Column("minor_status", sa.Text(), nullable=False),
        sa.Column("application_status", sa.Text(), nullable=False),
        sa.Column("source", sa.Text(), nullable=False),
        sa.Column("epoch", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(
            ["job_id"], ["jobs.job_id"], name=op.f("fk_job_log_job_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("log_id", name=op.f("pk_job_log")),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_job_log_job_id_log_id", "job_log", ["job_id", "log_id"], unique=False)
    op.create_table(
        "waiting_jobs",
        sa.Column("job_id", _ID, autoincrement=False, nullable=False),
        sa.Column("task_queue_id", _ID, nullable=False),
        sa.Column("priority", sa.Float(), nullable=False),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.job_id"], name=op.f("fk_waiting_jobs_job_id")),
        sa.ForeignKeyConstraint(
            ["task_queue_id"], ["task_queues.task_queue_id"], name=op.f("fk_waiting_jobs_task_queue_id")
        ),
        sa.PrimaryKeyConstraint("job_id", name=op.f("pk_waiting_jobs")),
    )
    op.create_index(
        "ix_waiting_jobs_task_queue_id",
        "waiting_jobs",
        ["task_queue_id", sa.literal_column("priority DESC"), "job_id"],
        unique=False,
    )
    op.execute(_POOL_QUEUES)
