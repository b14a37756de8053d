"""Jobs that wait may give up some of what they ask for, after a time that their descriptions state."""

import sqlalchemy as sa
from alembic import op

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("descriptions", sa.Column("relax_after", sa.BigInteger(), nullable=True))
    op.create_index(
        "ix_descriptions_relax_after",
        "descriptions",
        ["description_id"],
        sqlite_where=sa.text("relax_after > 0"),
        postgresql_where=sa.text("relax_after > 0"),
    )
