"""What limits matches at sites: scopes with their advertisements, and reservations."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

_ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "scopes",
        sa.Column("scope", sa.Text(), nullable=False),
        sa.Column("site", sa.Text(), nullable=False),
        sa.Column("watermark", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("as_of", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("advertisement", sa.Text(), nullable=True),
        sa.Column("advertised_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("taken_at", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("scope", name=op.f("pk_scopes")),
    )
    op.create_index("ix_scopes_site", "scopes", ["site"], unique=False)
    op.create_table(
        "reservations",
        sa.Column("scope", sa.Text(), nullable=False),
        sa.Column("job_id", _ID, nullable=False),
        sa.Column("epoch", sa.Integer(), nullable=False),
        sa.Column("begun_by", sa.BigInteger(), nullable=True),
        sa.Column("seen", sa.Boolean(), server_default=sa.false(), nullable=False),
        sa.ForeignKeyConstraint(["scope"], ["scopes.scope"], name=op.f("fk_reservations_scope")),
        sa.ForeignKeyConstraint(
            ["job_id", "epoch"],
            ["attempts.job_id", "attempts.epoch"],
            name=op.f("fk_reservations_job_id_epoch"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("scope", "job_id", "epoch", name=op.f("pk_reservations")),
    )
    op.create_index("ix_reservations_job_id_epoch", "reservations", ["job_id", "epoch"], unique=False)
    op.create_index(
        "ix_attempts_open_at",
        "attempts",
        ["site", "ce", "queue"],
        unique=False,
        sqlite_where=sa.text("closed_at IS NULL"),
        postgresql_where=sa.text("closed_at IS NULL"),
    )
