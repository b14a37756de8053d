"""Jobs that wait may give up some of what they ask for, after a time that their descriptions state."""

import sqlalchemy as sa
from alembic import op

from taskqueue.migrations.existing_tables import add_index

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("descriptions", sa.Column("relax_after", sa.BigInteger(), nullable=True))
    add_index("ix_descriptions_relax_after", "descriptions", "description_id", where="relax_after > 0")
