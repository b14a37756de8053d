"""Attempts have the largest use of memory and scratch space, and the CPU time, that their pilots reported."""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    for name, kind in (
        ("peak_ram_mb", sa.BigInteger),
        ("peak_scratch_mb", sa.BigInteger),
        ("cpu_seconds", sa.Float),
    ):
        op.add_column("attempts", sa.Column(name, kind(), nullable=True))
