"""What jobs used and for what they waited, by the hour."""

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0019"
down_revision = "0018"
branch_labels = None
depends_on = None


def upgrade() -> None:
    _create(
        "accounted_use",
        _by(),
        sa.Column("jobs", sa.BigInteger(), nullable=False),
        sa.Column("attempts", sa.BigInteger(), nullable=False),
        sa.Column("wall_seconds", sa.Float(), nullable=False),
        sa.Column("core_seconds", sa.Float(), nullable=False),
        sa.Column("cpu_seconds", sa.Float(), nullable=False),
        sa.Column("told_core_seconds", sa.Float(), nullable=False),
        sa.Column("normalised_seconds", sa.Float(), nullable=False),
    )
    _create(
        "accounted_waits",
        [*_by(), sa.Column("cause", sa.Text(), nullable=False)],
        sa.Column("seconds", sa.Float(), nullable=False),
    )


def _by() -> list[sa.Column[Any]]:
    names = ("vo", "site", "ce", "queue", "owner", "owner_group")
    return [
        sa.Column("hour", sa.DateTime(timezone=True), nullable=False),
        *(sa.Column(name, sa.Text(), nullable=False) for name in names),
        sa.Column("status", sa.String(length=16), nullable=False),
    ]


def _create(name: str, by: list[sa.Column[Any]], *sums: sa.Column[Any]) -> None:
    key = sa.PrimaryKeyConstraint(*(each.name for each in by), name=op.f(f"pk_{name}"))
    op.create_table(name, *by, *sums, key)
