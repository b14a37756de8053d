"""Triggers of `attempts`: its ends and reopenings are noted for the counters of scopes.

A trigger, because an attempt is closed by many statements, and one that forgot the counters would lower a
limit for good. Attempts without `counted_by` cost nothing but the test of that. A reservation stays when we
take away an attempt: it may still be there until its pilot notices.
"""

from collections.abc import Mapping, Sequence

#: By dialect; the same text stands in the migration, which must not change with the program.
TRIGGERS: Mapping[str, Sequence[str]] = {
    "postgresql": (
        """
CREATE FUNCTION return_to_scopes() RETURNS trigger LANGUAGE plpgsql AS $$
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
        """
CREATE TRIGGER attempts_return_to_scopes AFTER UPDATE OF closed_at ON attempts FOR EACH ROW
WHEN (OLD.counted_by IS NOT NULL AND (OLD.closed_at IS NULL) <> (NEW.closed_at IS NULL))
EXECUTE FUNCTION return_to_scopes()""",
        """
CREATE TRIGGER attempts_deleted_return_to_scopes AFTER DELETE ON attempts FOR EACH ROW
WHEN (OLD.counted_by IS NOT NULL AND OLD.closed_at IS NULL)
EXECUTE FUNCTION return_to_scopes()""",
    ),
    "sqlite": (
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
        """
CREATE TRIGGER attempts_deleted_return_to_scopes AFTER DELETE ON attempts
WHEN OLD.counted_by IS NOT NULL AND OLD.closed_at IS NULL
BEGIN
    INSERT INTO scope_returns (scope, rule_id, job_id, epoch, number)
    SELECT json_extract(value, '$[1]'), json_extract(value, '$[0]'), OLD.job_id, OLD.epoch, -1
    FROM json_each(OLD.counted_by);
END""",
    ),
}
