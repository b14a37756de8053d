"""An attempt that is rescheduled before its start may be on its way to the site.

Its reservation stays, and an index finds it: a new throttle counts it as well.
"""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

_IS_TAKEN = sa.text("closed_as = 'rescheduled' AND started_at IS NULL")

_STATEMENTS = {
    "postgresql": (
        """
CREATE OR REPLACE FUNCTION return_to_scopes() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    gone boolean := TG_OP = 'DELETE';
    reopened boolean := NOT gone AND NEW.closed_at IS NULL;
    leaves boolean := gone OR NOT reopened
        AND (NEW.closed_as IN ('finished', 'released')
            OR NEW.started_at IS NULL AND NEW.closed_as <> 'rescheduled');
BEGIN
    INSERT INTO scope_returns (scope, rule_id, job_id, epoch, number)
    SELECT counting ->> 1, (counting ->> 0)::bigint, OLD.job_id, OLD.epoch,
        CASE WHEN reopened THEN 1 ELSE -1 END
    FROM json_array_elements(OLD.counted_by::json) AS counting
    WHERE (counting ->> 0)::bigint <> 0 OR leaves;
    RETURN NULL;
END
$$""",
    ),
    "sqlite": (
        "DROP TRIGGER attempts_return_to_scopes",
        """
CREATE TRIGGER attempts_return_to_scopes AFTER UPDATE OF closed_at ON attempts
WHEN OLD.counted_by IS NOT NULL AND (OLD.closed_at IS NULL) <> (NEW.closed_at IS NULL)
BEGIN
    INSERT INTO scope_returns (scope, rule_id, job_id, epoch, number)
    SELECT json_extract(value, '$[1]'), json_extract(value, '$[0]'), OLD.job_id, OLD.epoch,
        CASE WHEN NEW.closed_at IS NULL THEN 1 ELSE -1 END
    FROM json_each(OLD.counted_by)
    WHERE json_extract(value, '$[0]') <> 0 OR NEW.closed_at IS NOT NULL
        AND (NEW.closed_as IN ('finished', 'released')
            OR NEW.started_at IS NULL AND NEW.closed_as <> 'rescheduled');
END""",
    ),
}


def upgrade() -> None:
    dialect = op.get_bind().dialect.name
    for statement in _STATEMENTS[dialect]:
        op.get_bind().exec_driver_sql(statement)
    collation = ' COLLATE "C"' if dialect == "postgresql" else ""
    at: list[sa.ColumnClause[str]] = [
        sa.literal_column(f"lower({name}{collation})") for name in ("site", "ce")
    ]
    op.create_index(
        "ix_attempts_taken_at", "attempts", at, postgresql_where=_IS_TAKEN, sqlite_where=_IS_TAKEN
    )
