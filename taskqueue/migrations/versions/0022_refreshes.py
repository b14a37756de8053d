"""The refresh of a VO's pools is noted once, in the row of the VO: the rows of its pools stay as they are."""

import sqlalchemy as sa
from alembic import op

revision = "0022"
down_revision = "0021"
branch_labels = None
depends_on = None


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


def upgrade() -> None:
    for name in ("refreshed_version", "refreshed_expiries"):
        op.add_column(
            "queue_class_versions", sa.Column(name, sa.Integer(), nullable=False, server_default="0")
        )
    op.add_column(
        "queue_class_versions", sa.Column("refreshed_at", sa.DateTime(timezone=True), nullable=True)
    )
    op.execute("DROP VIEW pool_queues")
    op.execute(_view(_HAS_CLASS[op.get_bind().dialect.name]))


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
