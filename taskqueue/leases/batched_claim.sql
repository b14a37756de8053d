-- The batched claim: one job for each of many requests, in one statement, which runs as it stands here.
--
-- $1  the requests: JSON list of objects with the columns of `request`
-- $2  the scopes with rules that the caller has read: JSON list of {"scope": …, "digest": …}
-- $3  now
--
-- A row for each request that gets a job, and one with the `refusal` of each that does not get one, whatever waits:
-- `undecided` (its place is banned or has rules that cannot be applied here, it was answered before, a smaller job may
-- fit, or the job of its task queue has another type) or the SlotRefusal of its pilot. No row: its task queue has no
-- free job for it.
--
-- In psql: "PREPARE claim (text, text, timestamptz) AS" before this text and ";" after it, then
--     BEGIN;
--     EXPLAIN (ANALYZE) EXECUTE claim('[{"number": 0, "task_queue_id": 1, "site": "LCG.A.ch", "ce": "ce",
--         "queue": "long", "holder": "pilot", "lease": "x", "lease_expires_at": "2030-01-01"}]', '[]', now());
--     ROLLBACK;
--
-- All parts see one snapshot, of the beginning (READ COMMITTED), but for rows that they lock: these are read in their
-- newest version, and conditions on them are checked again. Rows that are locked by others are passed over, so that
-- two claims never wait for each other. Lists are written = ANY (ARRAY (…)), since the planner does not know how few
-- there are and might scan a table for a join; lookups (SELECT 1 … LIMIT 1) IS NOT NULL, since for EXISTS it may read
-- a whole table into a hash. The plan is made once, maybe while tables are empty.
WITH
request AS (
    SELECT given.*, ARRAY['allsites', folded.site, concat(folded.site, '/', folded.ce),
        concat(folded.site, '/', folded.ce, '/', folded.queue)] AS scopes
    FROM json_to_recordset($1::text::json) AS given (
        number integer,
        task_queue_id bigint,
        site text, ce text, queue text,  -- where the job would run
        checked integer,  -- version of the configuration with which the node was checked; null: it was not
        holder text,  -- subject of the token
        stamp text,  -- of the pilot
        slot integer,  -- processors of the queue's slots; null: the holder is no pilot
        claims bigint,  -- of a pilot in an hour, for each processor
        lease text, lease_expires_at timestamptz,
        processors integer, ram_mb bigint, gpus integer,  -- the allotment of the job
        request_id text,  -- chosen by the holder; null: its answer is not repeated
        counted_by text,  -- the rules that count the job, as it is stored with its attempt
        job_type text,  -- with which its rules were found; null: nothing counts jobs of its task queue
        times text,  -- of the attempt, in place of those of the VO
        rules json  -- the same rules: [[rule_id, limit], …], without a limit (null) if the job's VO is exempt
    )
    -- In the collation of the tables' columns: with another one no index could be used.
    CROSS JOIN LATERAL (
        SELECT lower(given.site COLLATE "C") COLLATE "default" AS site,
            lower(given.ce COLLATE "C") COLLATE "default" AS ce,
            lower(given.queue COLLATE "C") COLLATE "default" AS queue
    ) AS folded
),

-- Limits. The rules are applied only while they are those that the caller has read.
known AS (
    SELECT * FROM json_to_recordset($2::text::json) AS known (scope text, digest text)
),
locked AS (
    SELECT scope FROM scopes
    WHERE scope = ANY (ARRAY (SELECT scope FROM known))
    ORDER BY scope
    FOR UPDATE SKIP LOCKED
),
-- Locked themselves, which gives their newest version.
rule AS (
    SELECT * FROM scope_rules WHERE scope = ANY (ARRAY (SELECT scope FROM locked)) FOR UPDATE
),
verified AS (
    SELECT rule.scope
    FROM rule JOIN known ON known.scope = rule.scope
    GROUP BY rule.scope, known.digest
    HAVING bool_and(rule.opened AND rule.counted) AND known.digest = md5(
        string_agg(concat_ws(' ', rule.rule_id, rule.format, rule.definition), E'\n' ORDER BY rule.rule_id))
),
-- Scopes with rules that the caller does not know, or that are locked elsewhere.
unverified AS MATERIALIZED (  -- it would be evaluated for each request
    SELECT scope FROM known WHERE scope NOT IN (SELECT scope FROM verified)
    UNION ALL
    SELECT scope FROM scope_rules
    WHERE scope = ANY (ARRAY (SELECT unnest(scopes) FROM request)) AND scope NOT IN (SELECT scope FROM verified)
),
-- What ended runs no more. Returned reservations (rule 0) are left to claims that know throttles.
returned AS (
    DELETE FROM scope_returns
    WHERE scope = ANY (ARRAY (SELECT scope FROM locked)) AND rule_id <> 0
    RETURNING rule_id, number
),
count AS (
    SELECT rule.rule_id, rule.n AS stored, (rule.n + coalesce(more.number, 0))::integer AS n
    FROM rule LEFT JOIN (
        SELECT rule_id, sum(number) AS number FROM returned GROUP BY rule_id
    ) AS more ON more.rule_id = rule.rule_id
),

-- Who may get a job.
judged AS (
    SELECT request.*, CASE
        WHEN (SELECT 1 FROM site_bans AS ban
                WHERE ban.site = request.scopes[2] AND (ban.until IS NULL OR ban.until > $3::timestamptz)
                LIMIT 1) IS NOT NULL
            OR (request.rules IS NOT NULL OR request.counted_by IS NULL)  -- else they were counted before
                AND EXISTS (SELECT FROM unverified WHERE unverified.scope = ANY (request.scopes))
            OR (SELECT 1 FROM match_requests AS earlier
                WHERE earlier.subject = request.holder AND earlier.request_id = request.request_id
                LIMIT 1) IS NOT NULL
            THEN 'undecided'
        WHEN request.slot IS NULL THEN NULL
        -- A pilot that no director submitted may be started again with its token after it has ended by itself.
        WHEN pilot.status IN ('Aborted', 'Deleted') OR pilot.submitted_by <> '' AND pilot.status IN ('Done', 'Failed')
            THEN 'pilot_ended'
        ELSE coalesce(
            (SELECT CASE
                WHEN held.processors >= pilot.size THEN 'slot_full'
                -- An empty slot takes any one job.
                WHEN held.processors > 0 AND held.processors + coalesce(request.processors, 1) > pilot.size
                    THEN 'undecided' END
            FROM (
                SELECT coalesce(sum(processors), 0) AS processors
                FROM (
                    SELECT coalesce(own.processors, 1) AS processors FROM attempts AS own
                    WHERE own.stamp = request.stamp AND own.closed_at IS NULL
                    LIMIT request.slot  -- so the time does not depend on what it holds beyond its slot
                ) AS opened
            ) AS held),
            -- The earliest of as many claims as it may make in an hour.
            (SELECT 'too_many_claims' FROM attempts AS own
            WHERE own.stamp = request.stamp AND own.opened_at > $3::timestamptz - INTERVAL '1 hour'
                AND own.claim_number = 1 - pilot.size * request.claims + coalesce(
                    (SELECT max(latest.claim_number) FROM attempts AS latest WHERE latest.stamp = request.stamp), 0)))
        END AS refusal
    FROM request CROSS JOIN LATERAL (
        -- One row, also for a request without a stamp. What a pilot has stated bounds its slot.
        SELECT min(status) AS status, min(submitted_by) AS submitted_by,
            least(coalesce(min(processors), 1), request.slot) AS size
        FROM pilots WHERE pilots.stamp = request.stamp
    ) AS pilot
),
-- The rules that count a request. Requests rank within a rule by their number, whether they get a job or not: what is
-- left of the room is for the next statement.
use AS (
    SELECT judged.number, (counting.value ->> 0)::bigint AS rule_id, (counting.value ->> 1)::bigint AS most,
        row_number() OVER (PARTITION BY (counting.value ->> 0)::bigint ORDER BY judged.number) AS rank
    FROM judged CROSS JOIN LATERAL json_array_elements(judged.rules) AS counting (value)
    WHERE judged.refusal IS NULL
),
admitted AS (
    SELECT judged.number, judged.task_queue_id, CASE
        WHEN judged.number IN (
            SELECT use.number FROM use JOIN count ON count.rule_id = use.rule_id WHERE count.n + use.rank > use.most)
            THEN 'undecided'
        ELSE judged.refusal END AS refusal
    FROM judged
),

-- Which job: the n-th of a task queue, in claim order, for the n-th request for it.
free AS (
    SELECT number, task_queue_id, row_number() OVER (PARTITION BY task_queue_id ORDER BY number) AS rank
    FROM admitted WHERE refusal IS NULL
),
wanted AS (
    SELECT task_queue_id, count(*) AS jobs FROM free GROUP BY task_queue_id
),
picked AS (
    SELECT wanted.task_queue_id, first.job_id, first.vo, first.submit_pool, first.job_type,
        -- After a loss of commits the lost ones may have used lower numbers.
        greatest(first.epoch, (SELECT epoch_floor FROM installation)) + 1 AS epoch,
        row_number() OVER (PARTITION BY wanted.task_queue_id ORDER BY first.priority DESC, first.job_id) AS rank
    FROM wanted CROSS JOIN LATERAL (
        SELECT waiting.job_id, waiting.priority, job.vo, job.submit_pool, job.job_type, job.epoch
        FROM waiting_jobs AS waiting JOIN jobs AS job ON job.job_id = waiting.job_id
        WHERE waiting.task_queue_id = wanted.task_queue_id AND job.status = 'Waiting'
        ORDER BY waiting.priority DESC, waiting.job_id
        LIMIT wanted.jobs
        -- NO KEY: an insert of a log row, which only references the job, must not make us skip it.
        FOR NO KEY UPDATE OF waiting, job SKIP LOCKED
    ) AS first
),
offered AS (
    SELECT picked.job_id, picked.epoch, picked.vo, picked.submit_pool, request.*,
        -- Where the configuration has just changed, the task queue may have another type than its jobs; each counts
        -- for the rules of its own.
        coalesce(lower(picked.job_type COLLATE "C") <> lower(request.job_type COLLATE "C"), false) AS is_of_other_type
    FROM picked
    JOIN free ON free.task_queue_id = picked.task_queue_id AND free.rank = picked.rank
    JOIN request ON request.number = free.number
),
-- A job that is not eligible at its request's place stays in its task queue.
assigned AS (
    SELECT * FROM offered
    WHERE NOT is_of_other_type AND (submit_pool IS NULL OR EXISTS (
        SELECT FROM pool_mappings AS mapping
        JOIN queue_class_members AS member ON member.vo = mapping.vo
        JOIN queue_classes AS class ON class.queue_class_id = member.queue_class_id
        WHERE mapping.pool_id = offered.submit_pool AND member.vo = offered.vo
            AND member.site = offered.site AND member.ce = offered.ce AND member.queue = offered.queue
            AND CASE WHEN class.slot < 8 * octet_length(mapping.eligible)
                THEN get_bit(mapping.eligible, class.slot) = 1 ELSE false END
            -- Where the node decides, its facts must have been checked with the mapping's version.
            AND (NOT CASE WHEN class.slot < 8 * octet_length(mapping.undecided)
                    THEN get_bit(mapping.undecided, class.slot) = 1 ELSE false END
                OR offered.checked = (
                    SELECT version.config_version FROM queue_class_versions AS version WHERE version.vo = offered.vo))))
),

-- The claim. Attempts are opened sorted, since each one waits until another claim of its pilot has committed; a pilot
-- that gets another job at the same moment gets none here.
opened AS (
    INSERT INTO attempts (job_id, epoch, vo, lease, holder, stamp, site, ce, queue, opened_at, lease_expires_at,
        processors, ram_mb, gpus, counted_by, times, claim_number, progress, output_tail)
    SELECT job_id, epoch, vo, lease, holder, stamp, site, ce, queue, $3::timestamptz, lease_expires_at,
        processors, ram_mb, gpus, counted_by, times,
        CASE WHEN slot IS NOT NULL THEN 1 + coalesce(
            (SELECT max(own.claim_number) FROM attempts AS own WHERE own.stamp = assigned.stamp), 0) END,
        '', ''
    FROM assigned
    ORDER BY stamp
    ON CONFLICT (stamp, claim_number) DO NOTHING
    RETURNING job_id
),
taken AS (
    DELETE FROM waiting_jobs WHERE job_id = ANY (ARRAY (SELECT job_id FROM opened))
),
given AS (
    UPDATE jobs
    SET status = 'Matched', minor_status = 'Assigned', application_status = '', epoch = assigned.epoch,
        site = coalesce(nullif(assigned.site, ''), 'ANY'), updated_at = $3::timestamptz
    FROM assigned
    WHERE jobs.job_id = assigned.job_id AND jobs.status = 'Waiting'
        AND assigned.job_id IN (SELECT job_id FROM opened)
    RETURNING jobs.job_id, jobs.epoch, jobs.vo, jobs.description_id, jobs.parameters,
        assigned.number, assigned.holder, assigned.request_id
),
logged AS (
    INSERT INTO job_log (job_id, at, from_status, to_status, minor_status, application_status, source, epoch)
    SELECT job_id, $3::timestamptz, 'Waiting', 'Matched', 'Assigned', '', 'Matcher', epoch FROM given
),
-- In the order of their keys, without ON CONFLICT: the second of two claims with one key fails and claims nothing.
answers AS (
    INSERT INTO match_requests (subject, request_id, at, matches)
    SELECT holder, request_id, $3::timestamptz, concat('[', job_id, ']') FROM given
    WHERE request_id IS NOT NULL
    ORDER BY holder, request_id
),
counted AS (
    UPDATE scope_rules
    SET n = new.n
    FROM (
        SELECT count.rule_id, count.stored, count.n + coalesce(gained.number, 0) AS n
        FROM count LEFT JOIN (
            SELECT use.rule_id, count(*) AS number
            FROM use JOIN given ON given.number = use.number
            GROUP BY use.rule_id
        ) AS gained ON gained.rule_id = count.rule_id
    ) AS new
    WHERE scope_rules.rule_id = ANY (ARRAY (SELECT rule_id FROM count))
        AND scope_rules.rule_id = new.rule_id AND new.n <> new.stored
)
-- LATERAL … LIMIT: descriptions are looked up one by one, whatever number the planner estimates.
SELECT given.number, given.job_id, given.epoch, given.vo, given.parameters, described.body, described.sandbox,
    NULL AS refusal
FROM given CROSS JOIN LATERAL (
    SELECT body, sandbox FROM descriptions WHERE descriptions.description_id = given.description_id LIMIT 1
) AS described
UNION ALL
SELECT number, NULL, NULL, NULL, NULL, NULL, NULL, refusal FROM admitted WHERE refusal IS NOT NULL
UNION ALL
SELECT number, NULL, NULL, NULL, NULL, NULL, NULL, 'undecided' FROM assigned
WHERE job_id NOT IN (SELECT job_id FROM opened)
UNION ALL
SELECT number, NULL, NULL, NULL, NULL, NULL, NULL, 'undecided' FROM offered WHERE is_of_other_type
