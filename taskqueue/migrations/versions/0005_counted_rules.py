"""A new rule is not `counted` until one statement has counted what runs.

Until then it is full for processes of 1.0. These take what sites advertise for the count of any throttle, so
the counter of a rule does not change until it is counted.
"""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

_STATEMENTS = {
    "postgresql": (
        """
CREATE FUNCTION keep_counter() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    NEW.n := OLD.n;
    RETURN NEW;
END
$$""",
        """
CREATE TRIGGER scope_rules_keep_counter BEFORE UPDATE OF n ON scope_rules FOR EACH ROW
WHEN (NOT OLD.counted AND NOT NEW.counted)
EXECUTE FUNCTION keep_counter()""",
    ),
    "sqlite": (
        """
CREATE TRIGGER scope_rules_keep_counter AFTER UPDATE OF n ON scope_rules
WHEN NOT OLD.counted AND NOT NEW.counted
BEGIN
    UPDATE scope_rules SET n = OLD.n WHERE rule_id = OLD.rule_id;
END""",
    ),
}


def upgrade() -> None:
    op.add_column("scope_rules", sa.Column("counted", sa.Boolean(), server_default=sa.true(), nullable=False))
    for statement in _STATEMENTS[op.get_bind().dialect.name]:
        op.get_bind().exec_driver_sql(statement)
