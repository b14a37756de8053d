"""Ends of jobs that others wait for are counted in turns of VOs."""

import sqlalchemy as sa
from alembic import op

revision = "0019"
down_revision = "0018"
branch_labels = None
depends_on = None

_ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "dependency_changes",
        sa.Column("vo", sa.Text(), nullable=False),
        sa.Column("job_id", _ID, nullable=False),
        sa.PrimaryKeyConstraint("vo", "job_id", name=op.f("pk_dependency_changes")),
    )
