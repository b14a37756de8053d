"""What kept a job in its former task queue counts; time in which no agent looked at the queues does not."""

import sqlalchemy as sa
from alembic import op

revision = "0024"
down_revision = "0023"
branch_labels = None
depends_on = None

_ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
_TIME = sa.DateTime(timezone=True)


def upgrade() -> None:
    op.create_table(
        "former_task_queues",
        sa.Column("job_id", _ID, nullable=False),
        sa.Column("task_queue_id", _ID, nullable=False),
        sa.Column("until", _TIME, nullable=False),
        sa.ForeignKeyConstraint(
            ["job_id"], ["jobs.job_id"], name=op.f("fk_former_task_queues_job_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("job_id", "until", name=op.f("pk_former_task_queues")),
    )
    op.create_table(
        "watched_times",
        sa.Column("vo", sa.Text(), nullable=False),
        sa.Column("since", _TIME, nullable=False),
        sa.Column("until", _TIME, nullable=False),
        sa.PrimaryKeyConstraint("vo", "since", name=op.f("pk_watched_times")),
    )
