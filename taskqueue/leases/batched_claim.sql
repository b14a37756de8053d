-- The batched claim: one job for each of many requests, in one statement, which runs as it stands here.
--
-- $1  the requests: JSON list of objects with the columns of `request`
-- $2  now
--
-- A row for each request that gets a job, and one with the `refusal` of each that does not get one, whatever waits:
-- `undecided` (its place is closed, locked or throttled, a limit of the place has no room for the job or cannot be
-- applied here, it was answered before, or a smaller job may fit) or the SlotRefusal of its pilot. No row: its task
-- queue has no free job for it. `full`: the attributes by whose limits on jobs the place has no room for the job.
--
-- In psql: "PREPARE claim (text, timestamptz) AS" before this text and ";" after it, then
--     BEGIN;
--     EXPLAIN (ANALYZE) EXECUTE claim('[{"number": 0, "task_queue_id": 1, "site": "LCG.A.ch", "ce": "ce",
--         "queue": "long", "holder": "pilot", "lease": "x", "lease_expires_at": "2030-01-01"}]', now());
--     ROLLBACK;
--
-- All parts see one snapshot, of the beginning (READ COMMITTED), but for rows that they lock: these are read in their
-- newest version, and conditions on them are checked again. Rows of jobs and scopes that are locked by others are passed
-- over, so that claims of different pilots do not wait for each other. Lists are written = ANY (ARRAY (…)), since the planner does not know how few
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
        only_vo text,  -- whose jobs alone will do; null: those of several
        times text  -- of the attempt, in place of those of the VO
    )
    -- In the collation of the tables' columns: with another one no index could be used.
    CROSS JOIN LATERAL (
        SELECT lower(given.site COLLATE "C") COLLATE "default" AS site,
            lower(given.ce COLLATE "C") COLLATE "default" AS ce,
            lower(given.queue COLLATE "C") COLLATE "default" AS queue
    ) AS folded
),

-- The rules of the places, under the locks of their scopes. Rules are locked themselves, which gives their newest
-- version; one that is new since the snapshot is counted when this transaction has ended.
limited AS MATERIALIZED (  -- as `closed`: it would be evaluated for each request
    SELECT DISTINCT scope FROM scope_rules WHERE scope = ANY (ARRAY (SELECT unnest(scopes) FROM request))
),
locked AS (
    SELECT scope FROM scopes
    WHERE scope = ANY (ARRAY (SELECT scope FROM limited))
    ORDER BY scope
    FOR UPDATE SKIP LOCKED
),
rule AS (
    SELECT * FROM scope_rules WHERE scope = ANY (ARRAY (SELECT scope FROM locked)) FOR UPDATE
),
-- Scopes that are locked elsewhere, or with a throttle, or a rule of a later release.
closed AS MATERIALIZED (
    SELECT scope FROM limited WHERE scope NOT IN (SELECT scope FROM locked)
    UNION ALL
    SELECT scope FROM rule WHERE kind NOT IN ('running', 'delay') OR format NOT IN (1, 2, 3)
),
-- Floors, by the folded VO: before a job of another VO it is looked for work of this one, not here.
floored AS MATERIALIZED (
    SELECT scope, value AS vo FROM rule WHERE format = 3 AND definition::json -> 'floor' IS NOT NULL
),
-- What ended runs no more. Returned reservations (rule 0) are left to claims that know throttles.
returned AS (
    DELETE FROM scope_returns
    WHERE scope = ANY (ARRAY (SELECT scope FROM locked)) AND rule_id <> 0
    RETURNING rule_id, number, cores
),
counter AS (
    SELECT rule.*, rule.n + coalesce(more.number, 0) AS there, rule.cores + coalesce(more.cores, 0) AS cores_there
    FROM rule LEFT JOIN (
        SELECT rule_id, sum(number) AS number, sum(cores) AS cores FROM returned GROUP BY rule_id
    ) AS more ON more.rule_id = rule.rule_id
),

-- Who may get a job.
judged AS (
    SELECT request.*, CASE
        WHEN (SELECT 1 FROM site_bans AS ban
                WHERE ban.site = request.scopes[2] AND (ban.until IS NULL OR ban.until > $2::timestamptz)
                LIMIT 1) IS NOT NULL
            OR (SELECT 1 FROM downtimes AS downtime
                WHERE downtime.scope = ANY (request.scopes) AND downtime.severity = 'OUTAGE'
                    AND downtime.begins <= $2::timestamptz AND downtime.ends > $2::timestamptz
                LIMIT 1) IS NOT NULL
            OR EXISTS (SELECT FROM closed WHERE closed.scope = ANY (request.scopes))
            OR EXISTS (SELECT FROM floored
                WHERE floored.scope = ANY (request.scopes) AND floored.vo IS DISTINCT FROM request.only_vo)
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
                ) AS own_open_attempts
            ) AS held),
            -- The earliest of as many claims as it may make in an hour.
            (SELECT 'too_many_claims' FROM attempts AS own
            WHERE own.stamp = request.stamp AND own.opened_at > $2::timestamptz - INTERVAL '1 hour'
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

-- Which job: the n-th of a task queue, in claim order, for the n-th request for it.
free AS (
    SELECT number, task_queue_id, row_number() OVER (PARTITION BY task_queue_id ORDER BY number) AS rank
    FROM judged WHERE refusal IS NULL
),
wanted AS (
    SELECT task_queue_id, count(*) AS jobs FROM free GROUP BY task_queue_id
),
picked AS (
    SELECT wanted.task_queue_id, first.*,
        -- After a loss of commits the lost ones may have used lower numbers.
        greatest(first.last_epoch, (SELECT epoch_floor FROM installation)) + 1 AS epoch,
        row_number() OVER (PARTITION BY wanted.task_queue_id ORDER BY first.priority DESC, first.job_id) AS rank
    FROM wanted CROSS JOIN LATERAL (
        SELECT waiting.job_id, waiting.priority, job.epoch AS last_epoch, job.vo, job.submit_pool, job.job_type,
            job.job_group, job.job_name, job.owner, job.owner_group
        FROM waiting_jobs AS waiting JOIN jobs AS job ON job.job_id = waiting.job_id
        WHERE waiting.task_queue_id = wanted.task_queue_id AND job.status = 'Waiting'
        ORDER BY waiting.priority DESC, waiting.job_id
        LIMIT wanted.jobs
        -- NO KEY: an insert of a log row, which only references the job, must not make us skip it.
        FOR NO KEY UPDATE OF waiting, job SKIP LOCKED
    ) AS first
),
offered AS (
    SELECT * FROM picked JOIN free USING (task_queue_id, rank) JOIN request USING (task_queue_id, number)
),
-- A job that is not eligible at its request's place stays in its task queue.
eligible AS (
    SELECT * FROM offered
    WHERE submit_pool IS NULL OR EXISTS (
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
                    SELECT version.config_version FROM queue_class_versions AS version WHERE version.vo = offered.vo)))
),

-- The rules that count a job, by its own values. Jobs rank within a rule by their request, whether they are given in
-- the end or not: what is left of the room is for the next statement. Values beyond ASCII are compared in Python.
use AS (
    SELECT eligible.number, rule.rule_id, rule.scope, rule.attribute,
        rule.kind = 'running' AND rule.opened AND rule.counted AND defined.curb IS NULL
            AND octet_length(job.value) = length(job.value) AS is_decided,
        -- A job of a VO with a limit of its own is counted, and not limited. Cores that are not counted yet are null.
        defined.exempt ? eligible.vo
            OR (defined.most IS NULL OR rule.there + row_number() OVER earlier <= defined.most)
            AND (defined.cores IS NULL
                OR rule.cores_there + sum(coalesce(eligible.processors, 1)) OVER earlier <= defined.cores) AS has_room,
        rule.there + row_number() OVER earlier > defined.most AS has_enough_jobs
    FROM eligible
    JOIN counter AS rule ON rule.scope = ANY (eligible.scopes) AND rule.vo IN ('', '*', eligible.vo)
    CROSS JOIN LATERAL
        json_to_record(rule.definition::json) AS defined (most integer, cores bigint, curb integer, exempt jsonb)
    CROSS JOIN LATERAL (
        SELECT CASE rule.attribute
            WHEN 'JobType' THEN eligible.job_type WHEN 'JobGroup' THEN eligible.job_group
            WHEN 'JobName' THEN eligible.job_name WHEN 'Owner' THEN eligible.owner
            WHEN 'OwnerGroup' THEN eligible.owner_group WHEN 'VO' THEN eligible.vo
            WHEN 'SubmitPool' THEN coalesce(eligible.submit_pool, '') END AS value
    ) AS job
    WHERE rule.value = lower(job.value COLLATE "C") OR octet_length(job.value) <> length(job.value)
    WINDOW earlier AS (PARTITION BY rule.rule_id ORDER BY eligible.number)
),
assigned AS (
    SELECT * FROM eligible
    WHERE number NOT IN (SELECT number FROM use WHERE NOT is_decided OR has_room IS NOT TRUE)
),
full_places AS (
    SELECT number, array_agg(attribute) AS attributes FROM use
    WHERE is_decided AND has_room IS NOT TRUE AND has_enough_jobs
    GROUP BY number
),

-- The claim. Attempts are opened sorted, since each one waits until another claim of its pilot has committed; a pilot
-- that gets another job at the same moment gets none here.
new_attempts AS (
    INSERT INTO attempts (job_id, epoch, vo, lease, holder, stamp, site, ce, queue, opened_at, lease_expires_at,
        processors, ram_mb, gpus, counted_by, times, claim_number, progress, output_tail)
    SELECT job_id, epoch, vo, lease, holder, stamp, site, ce, queue, $2::timestamptz, lease_expires_at,
        processors, ram_mb, gpus,
        (SELECT json_agg(json_build_array(use.rule_id, use.scope)) FROM use WHERE use.number = assigned.number),
        times,
        CASE WHEN slot IS NOT NULL THEN 1 + coalesce(
            (SELECT max(own.claim_number) FROM attempts AS own WHERE own.stamp = assigned.stamp), 0) END,
        '', ''
    FROM assigned
    ORDER BY stamp
    ON CONFLICT (stamp, claim_number) DO NOTHING
    RETURNING job_id
),
taken AS (
    DELETE FROM waiting_jobs WHERE job_id = ANY (ARRAY (SELECT job_id FROM new_attempts))
),
given AS (
    UPDATE jobs
    SET status = 'Matched', minor_status = 'Assigned', application_status = '', epoch = assigned.epoch,
        site = coalesce(nullif(assigned.site, ''), 'ANY'), updated_at = $2::timestamptz
    FROM assigned
    WHERE jobs.job_id = assigned.job_id AND jobs.status = 'Waiting'
        AND assigned.job_id IN (SELECT job_id FROM new_attempts)
    RETURNING jobs.job_id, jobs.epoch, jobs.vo, jobs.description_id, jobs.parameters,
        assigned.number, assigned.holder, assigned.request_id
),
logged AS (
    INSERT INTO job_log (job_id, at, from_status, to_status, minor_status, application_status, source, epoch)
    SELECT job_id, $2::timestamptz, 'Waiting', 'Matched', 'Assigned', '', 'Matcher', epoch FROM given
),
-- In the order of their keys, without ON CONFLICT: the second of two claims with one key fails and claims nothing.
answers AS (
    INSERT INTO match_requests (subject, request_id, at, matches)
    SELECT holder, request_id, $2::timestamptz, concat('[', job_id, ']') FROM given
    WHERE request_id IS NOT NULL
    ORDER BY holder, request_id
),
-- Triggers add the cores.
stored_counters AS (
    UPDATE scope_rules
    SET n = new.n
    FROM (
        SELECT counter.rule_id, counter.n AS stored, counter.there + coalesce(gained.number, 0) AS n
        FROM counter LEFT JOIN (
            SELECT use.rule_id, count(*) AS number
            FROM use JOIN given ON given.number = use.number
            GROUP BY use.rule_id
        ) AS gained ON gained.rule_id = counter.rule_id
    ) AS new
    WHERE scope_rules.rule_id = ANY (ARRAY (SELECT rule_id FROM counter))
        AND scope_rules.rule_id = new.rule_id AND new.n <> new.stored
)
-- LATERAL … LIMIT: descriptions are looked up one by one, whatever number the planner estimates.
SELECT given.number, given.job_id, given.epoch, given.vo, given.parameters, described.body, described.sandbox,
    NULL AS refusal, NULL::text[] AS full
FROM given CROSS JOIN LATERAL (
    SELECT body, sandbox FROM descriptions WHERE descriptions.description_id = given.description_id LIMIT 1
) AS described
UNION ALL
SELECT number, NULL, NULL, NULL, NULL, NULL, NULL, refusal, NULL FROM judged WHERE refusal IS NOT NULL
UNION ALL
SELECT number, NULL, NULL, NULL, NULL, NULL, NULL, 'undecided', full_places.attributes
FROM eligible LEFT JOIN full_places USING (number)
WHERE job_id NOT IN (SELECT job_id FROM new_attempts)
