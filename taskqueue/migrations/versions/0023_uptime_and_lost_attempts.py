"""When the service was up, and since when attempts were lost whose pilots came back."""

import sqlalchemy as sa
from alembic import op

revision = "0023"
down_revision = "0022"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "service_uptime",
        sa.Column("process", sa.Text(), nullable=False),
        sa.Column("since", sa.DateTime(timezone=True), nullable=False),
        sa.Column("until", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("process", "since", name=op.f("pk_service_uptime")),
        postgresql_with={
            "fillfactor": 50,
            "autovacuum_vacuum_scale_factor": 0.0,
            "autovacuum_vacuum_threshold": 500,
        },
    )
    op.add_column("attempts", sa.Column("lost_at", sa.DateTime(timezone=True), nullable=True))
