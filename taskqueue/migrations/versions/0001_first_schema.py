"""The whole schema of the first release, by the script of the database beside this file."""

import re
from pathlib import Path

from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

#: Where a statement ends: other lines of functions and triggers are indented, or begin with END.
_END = re.compile(r";\n+(?=--|CREATE|INSERT|$)")


def upgrade() -> None:
    conn = op.get_bind()
    script = Path(__file__).with_suffix(f".{conn.dialect.name}.sql").read_text(encoding="utf-8")
    for statement in filter(None, _END.split(script)):
        conn.exec_driver_sql(statement)
