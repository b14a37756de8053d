"""Mappings as sets of queue classes, one row a pool."""

from collections.abc import Iterator
from itertools import groupby
from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None

_AT_ONCE = 1000

_NUMBER_CLASSES = """
UPDATE queue_classes SET slot = (
    SELECT count(*) FROM queue_classes AS before
    WHERE before.vo = queue_classes.vo AND before.queue_class_id < queue_classes.queue_class_id
)
"""
_PAIRS = """
SELECT p.pool_id, p.vo, c.slot, m.undecided
FROM submit_pools AS p
LEFT JOIN pool_queue_classes AS m ON m.pool_id = p.pool_id
LEFT JOIN queue_classes AS c ON c.queue_class_id = m.queue_class_id
WHERE p.refreshed_at IS NOT NULL
ORDER BY p.pool_id
"""
_VIEWS = {
    "postgresql": """
CREATE VIEW pool_queues AS
SELECT pool_mappings.pool_id, queue_class_members.site, queue_class_members.ce, queue_class_members.queue,
    submit_pools.refreshed_at, submit_pools.config_version
FROM pool_mappings JOIN submit_pools ON submit_pools.pool_id = pool_mappings.pool_id
    JOIN queue_classes ON queue_classes.vo = pool_mappings.vo
    JOIN queue_class_members ON queue_class_members.queue_class_id = queue_classes.queue_class_id
WHERE (CASE WHEN queue_classes.slot < 8 * octet_length(pool_mappings.eligible)
    THEN get_bit(pool_mappings.eligible, queue_classes.slot) = 1 ELSE FALSE END)
""",
    "sqlite": """
CREATE VIEW pool_queues AS
SELECT pool_mappings.pool_id, queue_class_members.site, queue_class_members.ce, queue_class_members.queue,
    submit_pools.refreshed_at, submit_pools.config_version
FROM pool_mappings JOIN submit_pools ON submit_pools.pool_id = pool_mappings.pool_id
    JOIN queue_classes ON queue_classes.vo = pool_mappings.vo
    JOIN queue_class_members ON queue_class_members.queue_class_id = queue_classes.queue_class_id
WHERE (instr('123456789ABCDEF', substr(hex(substr(pool_mappings.eligible, queue_classes.slot / 8 + 1, 1))
    || '00', 2 - queue_classes.slot % 8 / 4, 1)) >> queue_classes.slot % 4 & 1) = 1
""",
}


def upgrade() -> None:
    op.add_column("queue_classes", sa.Column("slot", sa.Integer(), nullable=True))
    op.execute(_NUMBER_CLASSES)
    op.create_index("uq_queue_classes_vo_slot", "queue_classes", ["vo", "slot"], unique=True)
    mappings = op.create_table(
        "pool_mappings",
        sa.Column("pool_id", sa.String(length=64), nullable=False),
        sa.Column("vo", sa.Text(), nullable=False),
        sa.Column("eligible", sa.LargeBinary(), nullable=False),
        sa.Column("undecided", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(
            ["pool_id"],
            ["submit_pools.pool_id"],
            name=op.f("fk_pool_mappings_pool_id"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("pool_id", name=op.f("pk_pool_mappings")),
    )
    op.create_index("ix_pool_mappings_vo", "pool_mappings", ["vo"], unique=False)
    rows = list(_mappings())
    for start in range(0, len(rows), _AT_ONCE):
        op.bulk_insert(mappings, rows[start : start + _AT_ONCE])
    op.execute("DROP VIEW pool_queues")
    op.execute(_VIEWS[op.get_bind().dialect.name])


def _mappings() -> Iterator[dict[str, Any]]:
    """What the pairs say, a row for each pool; they themselves stay for the release before."""
    for (pool_id, vo), pairs in groupby(op.get_bind().execute(sa.text(_PAIRS)), lambda row: (row[0], row[1])):
        known = [row for row in pairs if row.slot is not None]
        yield {
            "pool_id": pool_id,
            "vo": vo,
            "eligible": _set(row.slot for row in known),
            "undecided": _set(row.slot for row in known if row.undecided),
        }


def _set(slots: Iterator[int]) -> bytes:
    found = 0
    for slot in slots:
        found |= 1 << slot
    return found.to_bytes((found.bit_length() + 7) // 8, "little")
