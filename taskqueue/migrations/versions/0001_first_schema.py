"""The whole schema of the first release."""

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

_ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
_TIME = sa.DateTime(timezone=True)

_LARGE = {
    "autovacuum_vacuum_scale_factor": 0.02,
    "autovacuum_vacuum_insert_scale_factor": 0.05,
    "autovacuum_analyze_scale_factor": 0.02,
}
_ROOMY = {**_LARGE, "fillfactor": 85}
_QUEUE = {"autovacuum_vacuum_scale_factor": 0.01, "autovacuum_analyze_scale_factor": 0.02}
_BUSY = {"fillfactor": 50, "autovacuum_vacuum_scale_factor": 0.0, "autovacuum_vacuum_threshold": 500}

_ENDED = "status IN ('Completed', 'Deleted', 'Done', 'Failed', 'Killed')"
_LIVING = "status NOT IN ('Completed', 'Deleted', 'Done', 'Failed', 'Killed')"
_OPEN = "closed_at IS NULL"

_VO_IS_AHEAD = """(submit_pools.refreshed_at IS NOT NULL
    AND (queue_class_versions.refreshed_version, queue_class_versions.refreshed_expiries,
        queue_class_versions.refreshed_at)
    > (submit_pools.config_version, submit_pools.expiries, submit_pools.refreshed_at))"""
_HAS_CLASS = {
    "postgresql": """(CASE WHEN queue_classes.slot < 8 * octet_length(pool_mappings.eligible)
    THEN get_bit(pool_mappings.eligible, queue_classes.slot) = 1 ELSE FALSE END)""",
    "sqlite": """(instr('123456789ABCDEF',
    substr(hex(substr(pool_mappings.eligible, queue_classes.slot / 8 + 1, 1)) || '00',
    2 - queue_classes.slot % 8 / 4, 1)) >> queue_classes.slot % 4 & 1) = 1""",
}

_TRIGGERS = {
    "postgresql": (
        """
CREATE FUNCTION return_to_scopes() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    gone boolean := TG_OP = 'DELETE';
    reopened boolean := NOT gone AND NEW.closed_at IS NULL;
    leaves boolean := gone OR NOT reopened
        AND (NEW.started_at IS NULL OR NEW.closed_as IN ('finished', 'released'));
BEGIN
    INSERT INTO scope_returns (scope, rule_id, job_id, epoch, number)
    SELECT counting ->> 1, (counting ->> 0)::bigint, OLD.job_id, OLD.epoch,
        CASE WHEN reopened THEN 1 ELSE -1 END
    FROM json_array_elements(OLD.counted_by::json) AS counting
    WHERE (counting ->> 0)::bigint <> 0 OR leaves;
    RETURN NULL;
END
$$""",
        """
CREATE TRIGGER attempts_return_to_scopes AFTER UPDATE OF closed_at ON attempts FOR EACH ROW
WHEN (OLD.counted_by IS NOT NULL AND (OLD.closed_at IS NULL) <> (NEW.closed_at IS NULL))
EXECUTE FUNCTION return_to_scopes()""",
        """
CREATE TRIGGER attempts_deleted_return_to_scopes AFTER DELETE ON attempts FOR EACH ROW
WHEN (OLD.counted_by IS NOT NULL AND OLD.closed_at IS NULL)
EXECUTE FUNCTION return_to_scopes()""",
    ),
    "sqlite": (
        """
CREATE TRIGGER attempts_return_to_scopes AFTER UPDATE OF closed_at ON attempts
WHEN OLD.counted_by IS NOT NULL AND (OLD.closed_at IS NULL) <> (NEW.closed_at IS NULL)
BEGIN
    INSERT INTO scope_returns (scope, rule_id, job_id, epoch, number)
    SELECT json_extract(value, '$[1]'), json_extract(value, '$[0]'), OLD.job_id, OLD.epoch,
        CASE WHEN NEW.closed_at IS NULL THEN 1 ELSE -1 END
    FROM json_each(OLD.counted_by)
    WHERE json_extract(value, '$[0]') <> 0 OR NEW.closed_at IS NOT NULL
        AND (NEW.started_at IS NULL OR NEW.closed_as IN ('finished', 'released'));
END""",
        """
CREATE TRIGGER attempts_deleted_return_to_scopes AFTER DELETE ON attempts
WHEN OLD.counted_by IS NOT NULL AND OLD.closed_at IS NULL
BEGIN
    INSERT INTO scope_returns (scope, rule_id, job_id, epoch, number)
    SELECT json_extract(value, '$[1]'), json_extract(value, '$[0]'), OLD.job_id, OLD.epoch, -1
    FROM json_each(OLD.counted_by);
END""",
    ),
}


def upgrade() -> None:
    op.create_table(
        "accounted_use",
        sa.Column("hour", _TIME, nullable=False),
        sa.Column("vo", sa.Text(), nullable=False),
        sa.Column("site", sa.Text(), nullable=False),
        sa.Column("ce", sa.Text(), nullable=False),
        sa.Column("queue", sa.Text(), nullable=False),
        sa.Column("owner", sa.Text(), nullable=False),
        sa.Column("owner_group", sa.Text(), nullable=False),
        sa.Column("status", sa.String(length=16), nullable=False),
        sa.Column("jobs", sa.BigInteger(), nullable=False),
        sa.Column("attempts", sa.BigInteger(), nullable=False),
        sa.Column("wall_seconds", sa.Float(), nullable=False),
        sa.Column("core_seconds", sa.Float(), nullable=False),
        sa.Column("cpu_seconds", sa.Float(), nullable=False),
        sa.Column("told_core_seconds", sa.Float(), nullable=False),
        sa.Column("normalised_seconds", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint(
            "hour",
            "vo",
            "site",
            "ce",
            "queue",
            "owner",
            "owner_group",
            "status",
            name=op.f("pk_accounted_use"),
        ),
    )
    op.create_table(
        "accounted_waits",
        sa.Column("hour", _TIME, nullable=False),
        sa.Column("vo", sa.Text(), nullable=False),
        sa.Column("site", sa.Text(), nullable=False),
        sa.Column("ce", sa.Text(), nullable=False),
        sa.Column("queue", sa.Text(), nullable=False),
        sa.Column("owner", sa.Text(), nullable=False),
        sa.Column("owner_group", sa.Text(), nullable=False),
        sa.Column("status", sa.String(length=16), nullable=False),
        sa.Column("cause", sa.Text(), nullable=False),
        sa.Column("seconds", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint(
            "hour",
            "vo",
            "site",
            "ce",
            "queue",
            "owner",
            "owner_group",
            "status",
            "cause",
            name=op.f("pk_accounted_waits"),
        ),
    )
    op.create_table(
        "agent_leases",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("holder", sa.Text(), nullable=False),
        sa.Column("fence", sa.BigInteger(), nullable=False),
        sa.Column("expires_at", _TIME, nullable=False),
        sa.Column("last_cycle_at", _TIME),
        sa.Column("broken", sa.Text(), nullable=False, server_default="[]"),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_agent_leases")),
        postgresql_with=_BUSY,
    )
    op.create_table(
        "blobs",
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("vo", sa.Text(), nullable=False),
        sa.Column("size", sa.BigInteger(), nullable=False),
        sa.Column("created_at", _TIME, nullable=False),
        sa.Column("last_used_at", _TIME, nullable=False),
        sa.Column("is_output", sa.Boolean(), nullable=False),
        sa.PrimaryKeyConstraint("digest", "vo", name=op.f("pk_blobs")),
    )
    op.create_index("ix_blobs_vo", "blobs", ["vo"])
    op.create_table(
        "changes",
        sa.Column("change_id", _ID, nullable=False),
        sa.Column("xid", sa.BigInteger(), nullable=False),
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("at", _TIME, nullable=False),
        sa.PrimaryKeyConstraint("change_id", name=op.f("pk_changes")),
        postgresql_with=_QUEUE,
        sqlite_autoincrement=True,
    )
    op.create_index("ix_changes_at", "changes", ["at"])
    op.create_index("ix_changes_xid", "changes", ["xid"])
    op.create_table(
        "config_imports",
        sa.Column("file", sa.Text(), nullable=False),
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("file", name=op.f("pk_config_imports")),
    )
    op.create_table(
        "config_reverts",
        sa.Column("path", sa.Text(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("due", _TIME, nullable=False),
        sa.Column("author", sa.Text(), nullable=False),
        sa.Column("rights", sa.Text(), nullable=False),
        sa.Column("depth", sa.Integer(), nullable=False),
        sa.Column("before", sa.Text()),
        sa.Column("after", sa.Text()),
        sa.Column("tried", sa.Integer(), nullable=False),
        sa.Column("problem", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("path", name=op.f("pk_config_reverts")),
    )
    op.create_table(
        "config_versions",
        sa.Column("version", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("text", sa.LargeBinary()),
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("source", sa.Text(), nullable=False),
        sa.Column("author", sa.Text(), nullable=False),
        sa.Column("message", sa.Text(), nullable=False),
        sa.Column("created_at", _TIME, nullable=False),
        sa.Column("origins", sa.LargeBinary()),
        sa.Column("changed", sa.Text()),
        sa.PrimaryKeyConstraint("version", name=op.f("pk_config_versions")),
    )
    op.create_table(
        "descriptions",
        sa.Column("description_id", _ID, nullable=False),
        sa.Column("source", sa.Text(), nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        sa.Column("sandbox", sa.String(length=64)),
        sa.Column("rank", sa.Text()),
        sa.PrimaryKeyConstraint("description_id", name=op.f("pk_descriptions")),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "wait_causes",
        sa.Column("task_queue_id", _ID, nullable=False),
        sa.Column("cause", sa.String(length=16), nullable=False),
        sa.Column("since", _TIME, nullable=False),
        sa.Column("until", _TIME, nullable=False),
        sa.PrimaryKeyConstraint("task_queue_id", "cause", "since", name=op.f("pk_wait_causes")),
    )
    op.create_index("ix_wait_causes_until", "wait_causes", ["until"])
    op.create_table(
        "idempotency_keys",
        sa.Column("subject", sa.Text(), nullable=False),
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("body_digest", sa.String(length=64), nullable=False),
        sa.Column("job_ids", sa.Text(), nullable=False),
        sa.Column("at", _TIME, nullable=False),
        sa.PrimaryKeyConstraint("subject", "key", name=op.f("pk_idempotency_keys")),
    )
    op.create_index("ix_idempotency_keys_at", "idempotency_keys", ["at"])
    op.create_table(
        "installation",
        sa.Column(
            "row_number", sa.Integer(), server_default=sa.text("1"), autoincrement=False, nullable=False
        ),
        sa.Column("incarnation", sa.BigInteger(), server_default=sa.text("1"), nullable=False),
        sa.Column("opened_at", _TIME),
        sa.Column("epoch_floor", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("trimmed_to", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("rules_version", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("rules_expiries", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("mended_counters", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.CheckConstraint("row_number = 1", name=op.f("ck_installation_one_row")),
        sa.PrimaryKeyConstraint("row_number", name=op.f("pk_installation")),
    )
    op.create_table(
        "job_flows",
        sa.Column("minute", _TIME, nullable=False),
        sa.Column("vo", sa.Text(), nullable=False),
        sa.Column("status", sa.String(length=16), nullable=False),
        sa.Column("came", sa.BigInteger(), nullable=False),
        sa.Column("went", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("minute", "vo", "status", name=op.f("pk_job_flows")),
    )
    op.create_table(
        "job_stocks",
        sa.Column("vo", sa.Text(), nullable=False),
        sa.Column("status", sa.String(length=16), nullable=False),
        sa.Column("jobs", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("vo", "status", name=op.f("pk_job_stocks")),
        postgresql_with=_BUSY,
    )
    op.create_table(
        "queue_depths",
        sa.Column("at", _TIME, nullable=False),
        sa.Column("site", sa.Text(), nullable=False),
        sa.Column("queue", sa.Text(), nullable=False),
        sa.Column("vo", sa.Text(), nullable=False),
        sa.Column("jobs", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("at", "site", "queue", "vo", name=op.f("pk_queue_depths")),
    )
    op.create_table(
        "log_readers",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("counted", sa.BigInteger(), nullable=False),
        sa.Column("noted", sa.BigInteger(), nullable=False),
        sa.Column("under_way", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_log_readers")),
    )
    op.create_table(
        "web_hooks",
        sa.Column("hook_id", _ID, nullable=False),
        sa.Column("vo", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("url", sa.Text(), nullable=False),
        sa.Column("secret", sa.Text(), nullable=False),
        sa.Column("events", sa.Text(), nullable=False),
        sa.Column("owner", sa.Text(), server_default="", nullable=False),
        sa.Column("job_group", sa.Text(), server_default="", nullable=False),
        sa.Column("created_by", sa.Text(), nullable=False),
        sa.Column("created_at", _TIME, nullable=False),
        sa.Column("failures", sa.Integer(), server_default="0", nullable=False),
        sa.Column("next_try_at", _TIME),
        sa.Column("dropped", sa.Integer(), server_default="0", nullable=False),
        sa.PrimaryKeyConstraint("hook_id", name=op.f("pk_web_hooks")),
        sa.UniqueConstraint("vo", "name", name=op.f("uq_web_hooks_vo_name")),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "hook_deliveries",
        sa.Column("delivery_id", _ID, nullable=False),
        sa.Column("hook_id", _ID, nullable=False),
        sa.Column("event", sa.String(length=40), nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        sa.Column("created_at", _TIME, nullable=False),
        sa.Column("tries", sa.Integer(), server_default="0", nullable=False),
        sa.Column("answer", sa.Text(), server_default="", nullable=False),
        sa.Column("is_delivered", sa.Boolean(), server_default=sa.false(), nullable=False),
        sa.Column("ended_at", _TIME),
        sa.ForeignKeyConstraint(
            ["hook_id"],
            ["web_hooks.hook_id"],
            name=op.f("fk_hook_deliveries_hook_id"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("delivery_id", name=op.f("pk_hook_deliveries")),
        sqlite_autoincrement=True,
        postgresql_with=_QUEUE,
    )
    op.create_index("ix_hook_deliveries_hook_id", "hook_deliveries", ["hook_id", "delivery_id"])
    op.create_index(
        "ix_hook_deliveries_open", "hook_deliveries", ["hook_id", "delivery_id"], **_where("ended_at IS NULL")
    )
    op.create_index("ix_hook_deliveries_ended_at", "hook_deliveries", ["ended_at"])
    op.create_table(
        "hook_conditions",
        sa.Column("vo", sa.Text(), nullable=False),
        sa.Column("event", sa.String(length=40), nullable=False),
        sa.Column("subject", sa.Text(), nullable=False),
        sa.Column("since", _TIME, nullable=False),
        sa.Column("reported_at", _TIME, nullable=True),
        sa.PrimaryKeyConstraint("vo", "event", "subject", name=op.f("pk_hook_conditions")),
    )
    op.create_table(
        "device_logins",
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("user_code", sa.String(length=16), nullable=False),
        sa.Column("address", sa.Text(), nullable=False),
        sa.Column("expires_at", _TIME, nullable=False),
        sa.PrimaryKeyConstraint("digest", name=op.f("pk_device_logins")),
        sa.UniqueConstraint("user_code", name=op.f("uq_device_logins_user_code")),
    )
    op.create_index("ix_device_logins_expires_at", "device_logins", ["expires_at"])
    op.create_table(
        "login_links",
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("session", sa.Text(), nullable=False),
        sa.Column("expires_at", _TIME, nullable=False),
        sa.PrimaryKeyConstraint("digest", name=op.f("pk_login_links")),
    )
    op.create_table(
        "match_requests",
        sa.Column("subject", sa.Text(), nullable=False),
        sa.Column("request_id", sa.Text(), nullable=False),
        sa.Column("at", _TIME, nullable=False),
        sa.Column("matches", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("subject", "request_id", name=op.f("pk_match_requests")),
        postgresql_with=_QUEUE,
    )
    op.create_index("ix_match_requests_at", "match_requests", ["at"])
    op.create_table(
        "matching_delays",
        sa.Column("scope", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("attribute", sa.Text(), nullable=False),
        sa.Column("value", sa.Text(), nullable=False),
        sa.Column("vo", sa.Text(), nullable=False),
        sa.Column("tokens", sa.Float(), nullable=False),
        sa.Column("at", _TIME, nullable=False),
        sa.PrimaryKeyConstraint("scope", "kind", "attribute", "value", "vo", name=op.f("pk_matching_delays")),
        postgresql_with=_BUSY,
    )
    op.create_table(
        "pilots",
        sa.Column("stamp", sa.Text(), nullable=False),
        sa.Column("vo", sa.Text(), nullable=False),
        sa.Column("status", sa.String(length=16), nullable=False),
        sa.Column("status_reason", sa.Text(), nullable=False),
        sa.Column("site", sa.Text(), nullable=False),
        sa.Column("ce", sa.Text(), nullable=False),
        sa.Column("queue", sa.Text(), nullable=False),
        sa.Column("reference", sa.Text()),
        sa.Column("submitted_by", sa.Text(), nullable=False),
        sa.Column("jobs", sa.Integer(), nullable=False),
        sa.Column("created_at", _TIME, nullable=False),
        sa.Column("updated_at", _TIME, nullable=False),
        sa.Column("last_seen_at", _TIME),
        sa.Column("possible_queues", sa.Text()),
        sa.Column("empty_reason", sa.String(length=40), server_default="", nullable=False),
        sa.Column("processors", sa.Integer()),
        sa.Column("ended_jobs", sa.Integer(), server_default="0", nullable=False),
        sa.Column("node", sa.String(length=255), server_default="", nullable=False),
        sa.Column("host_trouble", sa.Boolean(), server_default=sa.false(), nullable=False),
        sa.Column("process", sa.String(length=64), server_default="", nullable=False),
        sa.Column("restarted_at", _TIME),
        sa.PrimaryKeyConstraint("stamp", name=op.f("pk_pilots")),
    )
    op.create_index("ix_pilots_status_updated_at", "pilots", ["status", "updated_at"])
    op.create_index("ix_pilots_vo_site", "pilots", ["vo", "site"])
    op.create_index("ix_pilots_node", "pilots", ["site", "node"], **_where("node <> ''"))
    op.create_table(
        "queue_class_versions",
        sa.Column("vo", sa.Text(), nullable=False),
        sa.Column("config_version", sa.Integer(), nullable=False),
        sa.Column("expiries", sa.Integer(), server_default="0", nullable=False),
        sa.Column("refreshed_version", sa.Integer(), server_default="0", nullable=False),
        sa.Column("refreshed_expiries", sa.Integer(), server_default="0", nullable=False),
        sa.Column("refreshed_at", _TIME),
        sa.Column("algorithm", sa.Integer(), server_default="1", nullable=False),
        sa.PrimaryKeyConstraint("vo", name=op.f("pk_queue_class_versions")),
    )
    op.create_table(
        "queue_classes",
        sa.Column("queue_class_id", _ID, nullable=False),
        sa.Column("vo", sa.Text(), nullable=False),
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("slot", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("queue_class_id", name=op.f("pk_queue_classes")),
        sa.UniqueConstraint("vo", "digest", name=op.f("uq_queue_classes_vo_digest")),
        sqlite_autoincrement=True,
    )
    op.create_index("uq_queue_classes_vo_slot", "queue_classes", ["vo", "slot"], unique=True)
    op.create_table(
        "requirement_classes",
        sa.Column("class_id", _ID, nullable=False),
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("vo", sa.Text(), nullable=False),
        sa.Column("definition", sa.Text(), nullable=False),
        sa.Column("derived_with", sa.Text(), server_default="", nullable=False),
        sa.PrimaryKeyConstraint("class_id", name=op.f("pk_requirement_classes")),
        sa.UniqueConstraint("digest", name=op.f("uq_requirement_classes_digest")),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "revoked_tokens",
        sa.Column("jti", sa.Text(), nullable=False),
        sa.Column("expires_at", _TIME, nullable=False),
        sa.PrimaryKeyConstraint("jti", name=op.f("pk_revoked_tokens")),
    )
    op.create_table(
        "scopes",
        sa.Column("scope", sa.Text(), nullable=False),
        sa.Column("site", sa.Text(), nullable=False),
        sa.Column("watermark", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("as_of", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("advertisement", sa.Text()),
        sa.Column("advertised_at", _TIME),
        sa.Column("taken_at", sa.Text()),
        sa.PrimaryKeyConstraint("scope", name=op.f("pk_scopes")),
        postgresql_with=_BUSY,
    )
    op.create_index("ix_scopes_site", "scopes", ["site"])
    op.create_table(
        "scope_rules",
        sa.Column("rule_id", _ID, nullable=False),
        sa.Column("scope", sa.Text(), nullable=False),
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("attribute", sa.Text(), nullable=False),
        sa.Column("value", sa.Text(), nullable=False),
        sa.Column("vo", sa.Text(), nullable=False),
        sa.Column("definition", sa.Text(), nullable=False),
        sa.Column("format", sa.Integer(), nullable=False),
        sa.Column("n", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("opened", sa.Boolean(), nullable=False),
        sa.ForeignKeyConstraint(["scope"], ["scopes.scope"], name=op.f("fk_scope_rules_scope")),
        sa.PrimaryKeyConstraint("rule_id", name=op.f("pk_scope_rules")),
        sa.UniqueConstraint(
            "scope",
            "kind",
            "attribute",
            "value",
            "vo",
            name=op.f("uq_scope_rules_scope_kind_attribute_value_vo"),
        ),
        sqlite_autoincrement=True,
        postgresql_with=_BUSY,
    )
    op.create_table(
        "scope_returns",
        sa.Column("scope", sa.Text(), nullable=False),
        sa.Column("rule_id", sa.BigInteger(), nullable=False),
        sa.Column("job_id", sa.BigInteger(), nullable=False),
        sa.Column("epoch", sa.Integer(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        postgresql_with=_QUEUE,
    )
    op.create_index("ix_scope_returns_scope", "scope_returns", ["scope"])
    op.create_table(
        "service_uptime",
        sa.Column("process", sa.Text(), nullable=False),
        sa.Column("since", _TIME, nullable=False),
        sa.Column("until", _TIME, nullable=False),
        sa.PrimaryKeyConstraint("process", "since", name=op.f("pk_service_uptime")),
        postgresql_with=_BUSY,
    )
    op.create_table(
        "site_bans",
        sa.Column("site", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("author", sa.Text(), nullable=False),
        sa.Column("at", _TIME, nullable=False),
        sa.Column("until", _TIME),
        sa.PrimaryKeyConstraint("site", name=op.f("pk_site_bans")),
    )
    op.create_table(
        "site_processes",
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("name", sa.String(length=255), nullable=False),
        sa.Column("vo", sa.Text(), nullable=False),
        sa.Column("holder", sa.Text(), nullable=False),
        sa.Column("reported_by", sa.Text(), nullable=False),
        sa.Column("expires_at", _TIME, nullable=False),
        sa.Column("seen_at", _TIME, nullable=False),
        sa.Column("every", sa.Float(), nullable=False),
        sa.Column("sites", sa.Text(), nullable=False),
        sa.Column("problems", sa.Text(), nullable=False),
        sa.Column("too_small", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("kind", "name", "vo", name=op.f("pk_site_processes")),
        postgresql_with=_BUSY,
    )
    op.create_table(
        "submit_pools",
        sa.Column("pool_id", sa.String(length=64), nullable=False),
        sa.Column("vo", sa.Text(), nullable=False),
        sa.Column("requirements", sa.Text(), nullable=False),
        sa.Column("original", sa.Text(), nullable=False),
        sa.Column("created_at", _TIME, nullable=False),
        sa.Column("last_used_at", _TIME, nullable=False),
        sa.Column("refreshed_at", _TIME),
        sa.Column("config_version", sa.Integer(), nullable=False),
        sa.Column("expiries", sa.Integer(), server_default="0", nullable=False),
        sa.PrimaryKeyConstraint("pool_id", name=op.f("pk_submit_pools")),
    )
    op.create_index("ix_submit_pools_config_version", "submit_pools", ["config_version"])
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
        sa.Column("parameters", sa.Text()),
        sa.Column("step", sa.Text()),
        sa.Column("due_at", _TIME),
        sa.Column("submit_pool", sa.String(length=64)),
        sa.Column("task_queue_id", _ID),
        sa.Column("site", sa.Text(), nullable=False),
        sa.Column("epoch", sa.Integer(), nullable=False),
        sa.Column("reschedules", sa.Integer(), nullable=False),
        sa.Column("submitted_at", _TIME, nullable=False),
        sa.Column("updated_at", _TIME, nullable=False),
        sa.Column("started_at", _TIME),
        sa.Column("ended_at", _TIME),
        sa.ForeignKeyConstraint(
            ["description_id"], ["descriptions.description_id"], name=op.f("fk_jobs_description_id")
        ),
        sa.PrimaryKeyConstraint("job_id", name=op.f("pk_jobs")),
        postgresql_with=_LARGE,
        sqlite_autoincrement=True,
    )
    op.create_index("ix_jobs_description_id", "jobs", ["description_id"])
    op.create_index("ix_jobs_due_at", "jobs", ["due_at"], **_where("due_at IS NOT NULL"))
    op.create_index("ix_jobs_ended", "jobs", ["status", "updated_at"], **_where(_ENDED))
    op.create_index("ix_jobs_ended_job_id", "jobs", ["status", "job_id"], **_where(_ENDED))
    op.create_index("ix_jobs_living", "jobs", ["status", "job_id"], **_where(_LIVING))
    op.create_index(
        "ix_jobs_submit_pool_status_job_id",
        "jobs",
        ["submit_pool", "status", "job_id"],
        **_where("submit_pool IS NOT NULL"),
    )
    op.create_index("ix_jobs_vo_owner_status_job_id", "jobs", ["vo", "owner", "status", "job_id"])
    op.create_table(
        "pilot_outputs",
        sa.Column("stamp", sa.Text(), nullable=False),
        sa.Column("stdout", sa.Text(), server_default="", nullable=False),
        sa.Column("stderr", sa.Text(), server_default="", nullable=False),
        sa.Column("stored_at", _TIME),
        sa.Column("log", sa.Text(), server_default="", nullable=False),
        sa.Column("logged_at", _TIME),
        sa.ForeignKeyConstraint(
            ["stamp"], ["pilots.stamp"], name=op.f("fk_pilot_outputs_stamp"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("stamp", name=op.f("pk_pilot_outputs")),
    )
    op.create_table(
        "pilot_secrets",
        sa.Column("stamp", sa.Text(), nullable=False),
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("expires_at", _TIME, nullable=False),
        sa.Column("redeemed_at", _TIME),
        sa.Column("request_id", sa.Text()),
        sa.ForeignKeyConstraint(
            ["stamp"], ["pilots.stamp"], name=op.f("fk_pilot_secrets_stamp"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("stamp", name=op.f("pk_pilot_secrets")),
    )
    op.create_table(
        "pool_mappings",
        sa.Column("pool_id", sa.String(length=64), nullable=False),
        sa.Column("vo", sa.Text(), nullable=False),
        sa.Column("eligible", sa.LargeBinary(), nullable=False),
        sa.Column("undecided", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(
            ["pool_id"], ["submit_pools.pool_id"], name=op.f("fk_pool_mappings_pool_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("pool_id", name=op.f("pk_pool_mappings")),
    )
    op.create_index("ix_pool_mappings_vo", "pool_mappings", ["vo"])
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
    op.create_index("ix_queue_class_members_queue_class_id", "queue_class_members", ["queue_class_id"])
    op.create_table(
        "task_queues",
        sa.Column("task_queue_id", _ID, nullable=False),
        sa.Column("class_id", _ID, nullable=False),
        sa.Column("vo", sa.Text(), nullable=False),
        sa.Column("owner", sa.Text(), nullable=False),
        sa.Column("owner_group", sa.Text(), nullable=False),
        sa.Column("priority", sa.Float(), nullable=False),
        sa.Column("occupied", sa.Boolean(), server_default=sa.true(), nullable=False),
        sa.Column("changed_at", _TIME, nullable=False),
        sa.ForeignKeyConstraint(
            ["class_id"], ["requirement_classes.class_id"], name=op.f("fk_task_queues_class_id")
        ),
        sa.PrimaryKeyConstraint("task_queue_id", name=op.f("pk_task_queues")),
        sa.UniqueConstraint(
            "class_id", "owner_group", "owner", name=op.f("uq_task_queues_class_id_owner_group_owner")
        ),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_task_queues_owner_group_owner", "task_queues", ["owner_group", "owner"])
    op.create_table(
        "local_jobs",
        sa.Column("job_id", _ID, nullable=False),
        sa.Column("epoch", sa.Integer(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("tries", sa.Integer(), nullable=False),
        sa.Column("reference", sa.Text()),
        sa.Column("started_at", _TIME),
        sa.Column("ended_at", _TIME),
        sa.Column("exit_code", sa.Integer()),
        sa.Column("message", sa.Text(), nullable=False),
        sa.Column("details", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(
            ["job_id"], ["jobs.job_id"], name=op.f("fk_local_jobs_job_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("job_id", "epoch", "number", name=op.f("pk_local_jobs")),
    )
    op.create_table(
        "attempts",
        sa.Column("job_id", _ID, nullable=False),
        sa.Column("epoch", sa.Integer(), nullable=False),
        sa.Column("lease", sa.String(length=64), nullable=False),
        sa.Column("holder", sa.Text(), nullable=False),
        sa.Column("stamp", sa.Text()),
        sa.Column("vo", sa.Text(), nullable=False),
        sa.Column("site", sa.Text(), nullable=False),
        sa.Column("ce", sa.Text(), nullable=False),
        sa.Column("queue", sa.Text(), nullable=False),
        sa.Column("opened_at", _TIME, nullable=False),
        sa.Column("lease_expires_at", _TIME, nullable=False),
        sa.Column("started_at", _TIME),
        sa.Column("heartbeat_at", _TIME),
        sa.Column("ending", sa.Boolean(), server_default=sa.false(), nullable=False),
        sa.Column("closed_at", _TIME),
        sa.Column("closed_as", sa.Text()),
        sa.Column("request", sa.Text()),
        sa.Column("answer", sa.Text()),
        sa.Column("exit_code", sa.Integer()),
        sa.Column("progress", sa.Text(), nullable=False),
        sa.Column("output_tail", sa.Text(), nullable=False),
        sa.Column("output", sa.String(length=64)),
        sa.Column("processors", sa.Integer()),
        sa.Column("ram_mb", sa.BigInteger()),
        sa.Column("gpus", sa.Integer()),
        sa.Column("phases", sa.Text()),
        sa.Column("local_jobs", sa.Text()),
        sa.Column("quarantined", sa.Boolean(), server_default=sa.false(), nullable=False),
        sa.Column("lost_at", _TIME),
        sa.Column("counted_by", sa.Text()),
        sa.Column("claim_number", sa.Integer()),
        sa.Column("times", sa.Text()),
        sa.CheckConstraint(
            "(closed_at IS NULL) = (closed_as IS NULL)", name=op.f("ck_attempts_closed_for_a_reason")
        ),
        sa.ForeignKeyConstraint(
            ["job_id"], ["jobs.job_id"], name=op.f("fk_attempts_job_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("job_id", "epoch", name=op.f("pk_attempts")),
        sa.UniqueConstraint("lease", name=op.f("uq_attempts_lease")),
        postgresql_with=_ROOMY,
    )
    op.create_index(
        "ix_attempts_ending", "attempts", ["job_id"], **_where("closed_at IS NULL AND ending IS true")
    )
    op.create_index(
        "ix_attempts_not_started",
        "attempts",
        ["job_id"],
        **_where("closed_at IS NULL AND started_at IS NULL"),
    )
    names = ("site", "ce", "queue")
    collation = ' COLLATE "C"' if op.get_bind().dialect.name == "postgresql" else ""
    at: list[sa.ColumnClause[str]] = [sa.literal_column(f"lower({name}{collation})") for name in names]
    op.create_index("ix_attempts_open_at", "attempts", at, **_where(_OPEN))
    op.create_index("ix_attempts_lost_at", "attempts", at[:2], **_where("closed_as = 'lost'"))
    op.create_index("uq_attempts_claim_number", "attempts", ["stamp", "claim_number"], unique=True)
    op.create_index("ix_attempts_open_of_stamp", "attempts", ["stamp"], **_where(_OPEN))
    op.create_index(
        "ix_attempts_times", "attempts", ["vo", "times"], **_where(f"{_OPEN} AND times IS NOT NULL")
    )
    op.create_index("ix_attempts_output", "attempts", ["output"], **_where("output IS NOT NULL"))
    op.create_index("uq_attempts_open", "attempts", ["job_id"], unique=True, **_where(_OPEN))
    op.create_table(
        "attempt_marks",
        sa.Column("job_id", _ID, nullable=False),
        sa.Column("epoch", sa.Integer(), nullable=False),
        sa.Column("mark", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(
            ["job_id"], ["jobs.job_id"], name=op.f("fk_attempt_marks_job_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("job_id", "epoch", "mark", name=op.f("pk_attempt_marks")),
    )
    op.create_table(
        "job_log",
        sa.Column("log_id", _ID, nullable=False),
        sa.Column("job_id", _ID, nullable=False),
        sa.Column("at", _TIME, nullable=False),
        sa.Column("from_status", sa.String(length=16)),
        sa.Column("to_status", sa.String(length=16), nullable=False),
        sa.Column("minor_status", sa.Text(), nullable=False),
        sa.Column("application_status", sa.Text(), nullable=False),
        sa.Column("source", sa.Text(), nullable=False),
        sa.Column("epoch", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(
            ["job_id"], ["jobs.job_id"], name=op.f("fk_job_log_job_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("log_id", name=op.f("pk_job_log")),
        postgresql_with=_LARGE,
        sqlite_autoincrement=True,
    )
    op.create_index("ix_job_log_job_id_log_id", "job_log", ["job_id", "log_id"])
    op.create_table(
        "job_parameters",
        sa.Column("job_id", _ID, nullable=False),
        sa.Column("name", sa.String(length=128), nullable=False),
        sa.Column("value", sa.Text(), nullable=False),
        sa.Column("at", _TIME, nullable=False),
        sa.ForeignKeyConstraint(
            ["job_id"], ["jobs.job_id"], name=op.f("fk_job_parameters_job_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("job_id", "name", name=op.f("pk_job_parameters")),
        postgresql_with=_LARGE,
    )
    op.create_table(
        "job_waits",
        sa.Column("job_id", _ID, nullable=False),
        sa.Column("cause", sa.Text(), nullable=False),
        sa.Column("seconds", sa.Float(), nullable=False),
        sa.Column("ended_at", _TIME, nullable=False),
        sa.ForeignKeyConstraint(
            ["job_id"], ["jobs.job_id"], name=op.f("fk_job_waits_job_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("job_id", "cause", name=op.f("pk_job_waits")),
        postgresql_with=_LARGE,
    )
    op.create_table(
        "trials",
        sa.Column("job_id", _ID, autoincrement=False, nullable=False),
        sa.Column("holder", sa.Text(), nullable=False),
        sa.Column("crashes", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(
            ["job_id"], ["jobs.job_id"], name=op.f("fk_trials_job_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("job_id", name=op.f("pk_trials")),
    )
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
        postgresql_with=_QUEUE,
    )
    op.create_table(
        "reservations",
        sa.Column("scope", sa.Text(), nullable=False),
        sa.Column("job_id", _ID, nullable=False),
        sa.Column("epoch", sa.Integer(), nullable=False),
        sa.Column("begun_by", sa.BigInteger()),
        sa.Column("seen", sa.Boolean(), server_default=sa.false(), nullable=False),
        sa.ForeignKeyConstraint(["scope"], ["scopes.scope"], name=op.f("fk_reservations_scope")),
        sa.PrimaryKeyConstraint("scope", "job_id", "epoch", name=op.f("pk_reservations")),
        postgresql_with=_QUEUE,
    )
    op.create_index(
        "ix_waiting_jobs_task_queue_id",
        "waiting_jobs",
        ["task_queue_id", sa.literal_column("priority DESC"), "job_id"],
    )
    for trigger in _TRIGGERS[op.get_bind().dialect.name]:
        op.get_bind().exec_driver_sql(trigger)
    op.execute("INSERT INTO installation (row_number) VALUES (1)")
    op.execute(_view(_HAS_CLASS[op.get_bind().dialect.name]))


def _where(condition: str) -> dict[str, Any]:
    return {"sqlite_where": sa.text(condition), "postgresql_where": sa.text(condition)}


def _view(has_class: str) -> str:
    return f"""
CREATE VIEW pool_queues AS
SELECT pool_mappings.pool_id, queue_class_members.site, queue_class_members.ce, queue_class_members.queue,
    CASE WHEN {_VO_IS_AHEAD} THEN queue_class_versions.refreshed_at ELSE submit_pools.refreshed_at END
    AS refreshed_at,
    CASE WHEN {_VO_IS_AHEAD} THEN queue_class_versions.refreshed_version ELSE submit_pools.config_version END
    AS config_version
FROM pool_mappings
    JOIN (submit_pools LEFT OUTER JOIN queue_class_versions ON queue_class_versions.vo = submit_pools.vo)
    ON submit_pools.pool_id = pool_mappings.pool_id
    JOIN queue_classes ON queue_classes.vo = pool_mappings.vo
    JOIN queue_class_members ON queue_class_members.queue_class_id = queue_classes.queue_class_id
WHERE {has_class}
"""  # noqa: S608  (our own words)
