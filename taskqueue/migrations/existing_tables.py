"""What a migration adds to a table that may have many rows already, without keeping writers away."""

import sqlalchemy as sa
from alembic import op


def add_index(name: str, table: str, *columns: str, where: str | None = None) -> None:
    """Create an index, unless PostgreSQL would keep writers away while it reads many rows.

    Then `taskqueue.db.missing_indexes` builds it, after the transaction of the migrations.
    """
    conn = op.get_bind()
    has_rows = (
        conn.execute(sa.select(sa.literal(1)).select_from(sa.table(table)).limit(1)).first() is not None
    )
    if has_rows and conn.dialect.name == "postgresql":
        return
    condition = None if where is None else sa.text(where)
    op.create_index(name, table, [*columns], sqlite_where=condition, postgresql_where=condition)
