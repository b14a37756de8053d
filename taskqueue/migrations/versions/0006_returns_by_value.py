"""An attempt that ends is returned to every rule that counts it, with its cores.

It is returned also to a rule that is newer than its claim. So a new rule is counted by one statement, and
marks no attempts but those with a value beyond ASCII, which triggers cannot compare.

Triggers keep the cores, so that they are right whichever release claims, ends or applies returns. A rule that
stands already is counted by the next matcher or agent of this release: until then, as after its id has
changed, its cores are null, and a limit on them admits nothing.
"""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

_NAMES = ("attempts_return_to_scopes", "attempts_deleted_return_to_scopes")
#: In a trigger of `attempts`: the number that is returned to a rule, and whether one returns to a throttle.
_RETURN_ON_SQLITE = """\
    INSERT INTO scope_returns (scope, rule_id, job_id, epoch, number, cores)
    SELECT scope, CASE kind WHEN 'throttle' THEN 0 ELSE rule_id END, OLD.job_id, OLD.epoch,
        {number}, {number} * coalesce(OLD.processors, 1)
    FROM (SELECT rule.*, CASE WHEN job.job_id IS NOT NULL THEN CASE rule.attribute
            WHEN 'JobType' THEN job.job_type WHEN 'JobGroup' THEN job.job_group
            WHEN 'JobName' THEN job.job_name WHEN 'Owner' THEN job.owner
            WHEN 'OwnerGroup' THEN job.owner_group WHEN 'VO' THEN job.vo
            WHEN 'SubmitPool' THEN coalesce(job.submit_pool, '') END END AS job_value
        FROM scope_rules AS rule LEFT JOIN jobs AS job ON job.job_id = OLD.job_id
        WHERE rule.scope IN ('allsites', lower(OLD.site), lower(OLD.site || '/' || OLD.ce),
            lower(OLD.site || '/' || OLD.ce || '/' || OLD.queue))
    )
    WHERE kind = 'throttle' AND ({leaves}) OR kind = 'running' AND (
        opened AND vo IN ('', '*', OLD.vo) AND value = lower(job_value)
        OR (NOT opened OR job_value IS NULL OR length(CAST(job_value AS BLOB)) <> length(job_value))
            AND EXISTS (SELECT 1 FROM json_each(OLD.counted_by) AS mark
                WHERE json_extract(mark.value, '$[0]') = rule_id));"""
_LEAVES = """NEW.closed_at IS NOT NULL
        AND (NEW.closed_as IN ('finished', 'released')
            OR NEW.started_at IS NULL AND NEW.closed_as <> 'rescheduled')"""
_STATEMENTS = {
    "postgresql": (
        *(f"DROP TRIGGER {name} ON attempts" for name in _NAMES),
        """
CREATE OR REPLACE FUNCTION return_to_scopes() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    gone boolean := TG_OP = 'DELETE';
    reopened boolean := NOT gone AND NEW.closed_at IS NULL;
    leaves boolean := gone OR NOT reopened
        AND (NEW.closed_as IN ('finished', 'released')
            OR NEW.started_at IS NULL AND NEW.closed_as <> 'rescheduled');
    returned integer := CASE WHEN reopened THEN 1 ELSE -1 END;
    at_site text := lower(OLD.site COLLATE "C");
    at_ce text := at_site || '/' || lower(OLD.ce COLLATE "C");
    at_queue text := at_ce || '/' || lower(OLD.queue COLLATE "C");
BEGIN
    INSERT INTO scope_returns (scope, rule_id, job_id, epoch, number, cores)
    SELECT scope, CASE kind WHEN 'throttle' THEN 0 ELSE rule_id END, OLD.job_id, OLD.epoch,
        returned, returned * coalesce(OLD.processors, 1)
    FROM (SELECT rule.*, CASE WHEN job.job_id IS NOT NULL THEN CASE rule.attribute
            WHEN 'JobType' THEN job.job_type WHEN 'JobGroup' THEN job.job_group
            WHEN 'JobName' THEN job.job_name WHEN 'Owner' THEN job.owner
            WHEN 'OwnerGroup' THEN job.owner_group WHEN 'VO' THEN job.vo
            WHEN 'SubmitPool' THEN coalesce(job.submit_pool, '') END END AS job_value
        FROM scope_rules AS rule LEFT JOIN jobs AS job ON job.job_id = OLD.job_id
        WHERE rule.scope IN ('allsites', at_site, at_ce, at_queue)
    ) AS rules
    WHERE kind = 'throttle' AND leaves OR kind = 'running' AND (
        opened AND vo IN ('', '*', OLD.vo) AND value = lower(job_value COLLATE "C")
        OR (NOT opened OR job_value IS NULL OR octet_length(job_value) <> length(job_value))
            AND OLD.counted_by::jsonb @> jsonb_build_array(jsonb_build_array(rule_id, scope)));
    RETURN NULL;
END
$$""",
        """
CREATE TRIGGER attempts_return_to_scopes AFTER UPDATE OF closed_at ON attempts FOR EACH ROW
WHEN ((OLD.closed_at IS NULL) <> (NEW.closed_at IS NULL))
EXECUTE FUNCTION return_to_scopes()""",
        """
CREATE TRIGGER attempts_deleted_return_to_scopes AFTER DELETE ON attempts FOR EACH ROW
WHEN (OLD.closed_at IS NULL)
EXECUTE FUNCTION return_to_scopes()""",
        # A claim has the locks of the scopes, and so has a transaction that deletes returns.
        """
CREATE FUNCTION add_claimed_cores() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    UPDATE scope_rules SET cores = scope_rules.cores + gained.cores
    FROM (
        SELECT (mark ->> 0)::bigint AS rule_id, sum(coalesce(opened.processors, 1)) AS cores
        FROM opened CROSS JOIN LATERAL json_array_elements(opened.counted_by::json) AS mark
        WHERE opened.closed_at IS NULL
        GROUP BY 1
    ) AS gained
    WHERE scope_rules.rule_id = gained.rule_id;
    RETURN NULL;
END
$$""",
        """
CREATE TRIGGER attempts_add_cores AFTER INSERT ON attempts
REFERENCING NEW TABLE AS opened FOR EACH STATEMENT
EXECUTE FUNCTION add_claimed_cores()""",
        """
CREATE FUNCTION add_returned_cores() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    UPDATE scope_rules SET cores = scope_rules.cores + applied.cores
    FROM (SELECT rule_id, sum(cores) AS cores FROM returned GROUP BY rule_id) AS applied
    WHERE scope_rules.rule_id = applied.rule_id;
    RETURN NULL;
END
$$""",
        """
CREATE TRIGGER scope_returns_add_cores AFTER DELETE ON scope_returns
REFERENCING OLD TABLE AS returned FOR EACH STATEMENT
EXECUTE FUNCTION add_returned_cores()""",
        """
CREATE FUNCTION forget_cores() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    NEW.cores := NULL;
    RETURN NEW;
END
$$""",
        """
CREATE TRIGGER scope_rules_forget_cores BEFORE UPDATE OF rule_id ON scope_rules FOR EACH ROW
WHEN (OLD.rule_id <> NEW.rule_id)
EXECUTE FUNCTION forget_cores()""",
    ),
    "sqlite": (
        *(f"DROP TRIGGER {name}" for name in _NAMES),
        f"""
CREATE TRIGGER attempts_return_to_scopes AFTER UPDATE OF closed_at ON attempts
WHEN (OLD.closed_at IS NULL) <> (NEW.closed_at IS NULL)
BEGIN
{_RETURN_ON_SQLITE.format(number="CASE WHEN NEW.closed_at IS NULL THEN 1 ELSE -1 END", leaves=_LEAVES)}
END""",
        f"""
CREATE TRIGGER attempts_deleted_return_to_scopes AFTER DELETE ON attempts
WHEN OLD.closed_at IS NULL
BEGIN
{_RETURN_ON_SQLITE.format(number=-1, leaves="true")}
END""",
        """
CREATE TRIGGER attempts_add_cores AFTER INSERT ON attempts
WHEN NEW.counted_by IS NOT NULL AND NEW.closed_at IS NULL
BEGIN
    UPDATE scope_rules SET cores = cores + coalesce(NEW.processors, 1)
    WHERE rule_id IN (SELECT json_extract(value, '$[0]') FROM json_each(NEW.counted_by));
END""",
        """
CREATE TRIGGER scope_returns_add_cores AFTER DELETE ON scope_returns
BEGIN
    UPDATE scope_rules SET cores = cores + OLD.cores WHERE rule_id = OLD.rule_id;
END""",
    ),
}


def upgrade() -> None:
    op.add_column("scope_rules", sa.Column("cores", sa.BigInteger(), nullable=True))
    op.add_column(
        "scope_returns", sa.Column("cores", sa.Integer(), server_default=sa.text("0"), nullable=False)
    )
    for statement in _STATEMENTS[op.get_bind().dialect.name]:
        op.get_bind().exec_driver_sql(statement)
