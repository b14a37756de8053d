"""The incarnation of the installation, and attempts that were open when commits were lost."""

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None


def upgrade() -> None:
    installation = op.create_table(
        "installation",
        sa.Column(
            "row_number", sa.Integer(), autoincrement=False, server_default=sa.text("1"), nullable=False
        ),
        sa.Column("incarnation", sa.BigInteger(), server_default=sa.text("1"), nullable=False),
        sa.Column("opened_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("epoch_floor", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("trimmed_to", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.CheckConstraint("row_number = 1", name=op.f("ck_installation_one_row")),
        sa.PrimaryKeyConstraint("row_number", name=op.f("pk_installation")),
    )
    op.execute(sa.insert(installation).values(row_number=1))
    op.add_column(
        "attempts", sa.Column("quarantined", sa.Boolean(), server_default=sa.false(), nullable=False)
    )
