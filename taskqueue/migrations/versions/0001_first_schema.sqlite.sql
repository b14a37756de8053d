-- The whole schema of the first release, for SQLite. Frozen: later migrations change it. SQLite keeps each
-- statement as it is written, so its spacing is that of the first release too.


-- The configuration. Its versions are immutable; the highest is the current one.

CREATE TABLE config_versions (
	version INTEGER NOT NULL, 
	text BLOB, 
	digest VARCHAR(64) NOT NULL, 
	source TEXT NOT NULL, 
	author TEXT NOT NULL, 
	message TEXT NOT NULL, 
	created_at DATETIME NOT NULL, 
	origins BLOB, 
	changed TEXT, 
	CONSTRAINT pk_config_versions PRIMARY KEY (version)
);

-- The last digest imported from each file: importing an unchanged file again would undo later edits.
CREATE TABLE config_imports (
	file TEXT NOT NULL, 
	digest VARCHAR(64) NOT NULL, 
	version INTEGER NOT NULL, 
	CONSTRAINT pk_config_imports PRIMARY KEY (file)
);

-- Values that an agent restores when they are due.
CREATE TABLE config_reverts (
	path TEXT NOT NULL, 
	version INTEGER NOT NULL, 
	due DATETIME NOT NULL, 
	author TEXT NOT NULL, 
	rights TEXT NOT NULL, 
	depth INTEGER NOT NULL, 
	"before" TEXT, 
	"after" TEXT, 
	tried INTEGER NOT NULL, 
	problem TEXT NOT NULL, 
	CONSTRAINT pk_config_reverts PRIMARY KEY (path)
);


-- Jobs, as submitted, and what became of them.

-- One row for all jobs of a submission that share it.
CREATE TABLE descriptions (
	description_id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, 
	source TEXT NOT NULL, 
	body TEXT NOT NULL, 
	sandbox VARCHAR(64), 
	rank TEXT
);

-- Two partial indexes of status: a statement with a job id and a status must never scan that whole status.
CREATE TABLE jobs (
	job_id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, 
	vo TEXT NOT NULL, 
	owner TEXT NOT NULL, 
	owner_group TEXT NOT NULL, 
	status VARCHAR(16) NOT NULL, 
	minor_status TEXT NOT NULL, 
	application_status TEXT NOT NULL, 
	job_name TEXT NOT NULL, 
	job_type TEXT NOT NULL, 
	job_group TEXT NOT NULL, 
	priority FLOAT NOT NULL, 
	description_id INTEGER NOT NULL, 
	parameters TEXT, 
	step TEXT, 
	due_at DATETIME, 
	submit_pool VARCHAR(64), 
	task_queue_id INTEGER, 
	site TEXT NOT NULL, 
	epoch INTEGER NOT NULL, 
	reschedules INTEGER NOT NULL, 
	submitted_at DATETIME NOT NULL, 
	updated_at DATETIME NOT NULL, 
	started_at DATETIME, 
	ended_at DATETIME, 
	CONSTRAINT fk_jobs_description_id FOREIGN KEY(description_id) REFERENCES descriptions (description_id)
);
CREATE INDEX ix_jobs_description_id ON jobs (description_id);
CREATE INDEX ix_jobs_due_at ON jobs (due_at) WHERE due_at IS NOT NULL;
CREATE INDEX ix_jobs_ended ON jobs (status, updated_at) WHERE status IN ('Completed', 'Deleted', 'Done', 'Failed', 'Killed');
CREATE INDEX ix_jobs_ended_job_id ON jobs (status, job_id) WHERE status IN ('Completed', 'Deleted', 'Done', 'Failed', 'Killed');
CREATE INDEX ix_jobs_living ON jobs (status, job_id) WHERE status NOT IN ('Completed', 'Deleted', 'Done', 'Failed', 'Killed');
CREATE INDEX ix_jobs_submit_pool_status_job_id ON jobs (submit_pool, status, job_id) WHERE submit_pool IS NOT NULL;
CREATE INDEX ix_jobs_vo_owner_status_job_id ON jobs (vo, owner, status, job_id);

-- Every change of a job's status, in order.
CREATE TABLE job_log (
	log_id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, 
	job_id INTEGER NOT NULL, 
	at DATETIME NOT NULL, 
	from_status VARCHAR(16), 
	to_status VARCHAR(16) NOT NULL, 
	minor_status TEXT NOT NULL, 
	application_status TEXT NOT NULL, 
	source TEXT NOT NULL, 
	epoch INTEGER NOT NULL, 
	CONSTRAINT fk_job_log_job_id FOREIGN KEY(job_id) REFERENCES jobs (job_id) ON DELETE CASCADE
);
CREATE INDEX ix_job_log_job_id_log_id ON job_log (job_id, log_id);

CREATE TABLE job_parameters (
	job_id INTEGER NOT NULL, 
	name VARCHAR(128) NOT NULL, 
	value TEXT NOT NULL, 
	at DATETIME NOT NULL, 
	CONSTRAINT pk_job_parameters PRIMARY KEY (job_id, name), 
	CONSTRAINT fk_job_parameters_job_id FOREIGN KEY(job_id) REFERENCES jobs (job_id) ON DELETE CASCADE
);

-- Seconds that each ended job had waited, by cause.
CREATE TABLE job_waits (
	job_id INTEGER NOT NULL, 
	cause TEXT NOT NULL, 
	seconds FLOAT NOT NULL, 
	ended_at DATETIME NOT NULL, 
	CONSTRAINT pk_job_waits PRIMARY KEY (job_id, cause), 
	CONSTRAINT fk_job_waits_job_id FOREIGN KEY(job_id) REFERENCES jobs (job_id) ON DELETE CASCADE
);

-- Jobs that an optimizer process is working on; a row whose holder is gone means that it crashed with the job.
CREATE TABLE trials (
	job_id INTEGER NOT NULL, 
	holder TEXT NOT NULL, 
	crashes INTEGER NOT NULL, 
	CONSTRAINT pk_trials PRIMARY KEY (job_id), 
	CONSTRAINT fk_trials_job_id FOREIGN KEY(job_id) REFERENCES jobs (job_id) ON DELETE CASCADE
);

-- Answers to submissions that may be repeated.
CREATE TABLE idempotency_keys (
	subject TEXT NOT NULL, 
	"key" TEXT NOT NULL, 
	body_digest VARCHAR(64) NOT NULL, 
	job_ids TEXT NOT NULL, 
	at DATETIME NOT NULL, 
	CONSTRAINT pk_idempotency_keys PRIMARY KEY (subject, "key")
);
CREATE INDEX ix_idempotency_keys_at ON idempotency_keys (at);


-- Pools of requirements, and the queues that are eligible for each, as bitmaps of the slots of queue classes.

CREATE TABLE submit_pools (
	pool_id VARCHAR(64) NOT NULL, 
	vo TEXT NOT NULL, 
	requirements TEXT NOT NULL, 
	original TEXT NOT NULL, 
	created_at DATETIME NOT NULL, 
	last_used_at DATETIME NOT NULL, 
	refreshed_at DATETIME, 
	config_version INTEGER NOT NULL, 
	expiries INTEGER DEFAULT '0' NOT NULL, 
	CONSTRAINT pk_submit_pools PRIMARY KEY (pool_id)
);
CREATE INDEX ix_submit_pools_config_version ON submit_pools (config_version);

-- Queues with equal effective parameters for a VO.
CREATE TABLE queue_classes (
	queue_class_id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, 
	vo TEXT NOT NULL, 
	digest VARCHAR(64) NOT NULL, 
	slot INTEGER NOT NULL, 
	CONSTRAINT uq_queue_classes_vo_digest UNIQUE (vo, digest)
);
CREATE UNIQUE INDEX uq_queue_classes_vo_slot ON queue_classes (vo, slot);

CREATE TABLE queue_class_members (
	vo TEXT NOT NULL, 
	site TEXT NOT NULL, 
	ce TEXT NOT NULL, 
	queue TEXT NOT NULL, 
	queue_class_id INTEGER NOT NULL, 
	CONSTRAINT pk_queue_class_members PRIMARY KEY (vo, site, ce, queue), 
	CONSTRAINT fk_queue_class_members_queue_class_id FOREIGN KEY(queue_class_id) REFERENCES queue_classes (queue_class_id)
);
CREATE INDEX ix_queue_class_members_queue_class_id ON queue_class_members (queue_class_id);

-- The version that all mappings of a VO's pools have at least.
CREATE TABLE queue_class_versions (
	vo TEXT NOT NULL, 
	config_version INTEGER NOT NULL, 
	expiries INTEGER DEFAULT '0' NOT NULL, 
	refreshed_version INTEGER DEFAULT '0' NOT NULL, 
	refreshed_expiries INTEGER DEFAULT '0' NOT NULL, 
	refreshed_at DATETIME, 
	algorithm INTEGER DEFAULT '1' NOT NULL, 
	CONSTRAINT pk_queue_class_versions PRIMARY KEY (vo)
);

CREATE TABLE pool_mappings (
	pool_id VARCHAR(64) NOT NULL, 
	vo TEXT NOT NULL, 
	eligible BLOB NOT NULL, 
	undecided BLOB NOT NULL, 
	CONSTRAINT pk_pool_mappings PRIMARY KEY (pool_id), 
	CONSTRAINT fk_pool_mappings_pool_id FOREIGN KEY(pool_id) REFERENCES submit_pools (pool_id) ON DELETE CASCADE
);
CREATE INDEX ix_pool_mappings_vo ON pool_mappings (vo);

-- The mapping as rows, for people and their programs.
CREATE VIEW pool_queues AS
SELECT pool_mappings.pool_id, queue_class_members.site, queue_class_members.ce, queue_class_members.queue,
    CASE WHEN (submit_pools.refreshed_at IS NOT NULL
    AND (queue_class_versions.refreshed_version, queue_class_versions.refreshed_expiries,
        queue_class_versions.refreshed_at)
    > (submit_pools.config_version, submit_pools.expiries, submit_pools.refreshed_at)) THEN queue_class_versions.refreshed_at ELSE submit_pools.refreshed_at END
    AS refreshed_at,
    CASE WHEN (submit_pools.refreshed_at IS NOT NULL
    AND (queue_class_versions.refreshed_version, queue_class_versions.refreshed_expiries,
        queue_class_versions.refreshed_at)
    > (submit_pools.config_version, submit_pools.expiries, submit_pools.refreshed_at)) THEN queue_class_versions.refreshed_version ELSE submit_pools.config_version END
    AS config_version
FROM pool_mappings
    JOIN (submit_pools LEFT OUTER JOIN queue_class_versions ON queue_class_versions.vo = submit_pools.vo)
    ON submit_pools.pool_id = pool_mappings.pool_id
    JOIN queue_classes ON queue_classes.vo = pool_mappings.vo
    JOIN queue_class_members ON queue_class_members.queue_class_id = queue_classes.queue_class_id
WHERE (instr('123456789ABCDEF',
    substr(hex(substr(pool_mappings.eligible, queue_classes.slot / 8 + 1, 1)) || '00',
    2 - queue_classes.slot % 8 / 4, 1)) >> queue_classes.slot % 4 & 1) = 1;


-- Task queues. The transaction that deletes a row of waiting_jobs owns the job.

CREATE TABLE requirement_classes (
	class_id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, 
	digest VARCHAR(64) NOT NULL, 
	vo TEXT NOT NULL, 
	definition TEXT NOT NULL, 
	derived_with TEXT DEFAULT '' NOT NULL, 
	CONSTRAINT uq_requirement_classes_digest UNIQUE (digest)
);

-- Waiting jobs of one owner and group with one requirement class: where shares act.
CREATE TABLE task_queues (
	task_queue_id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, 
	class_id INTEGER NOT NULL, 
	vo TEXT NOT NULL, 
	owner TEXT NOT NULL, 
	owner_group TEXT NOT NULL, 
	priority FLOAT NOT NULL, 
	occupied BOOLEAN DEFAULT 1 NOT NULL, 
	changed_at DATETIME NOT NULL, 
	CONSTRAINT fk_task_queues_class_id FOREIGN KEY(class_id) REFERENCES requirement_classes (class_id), 
	CONSTRAINT uq_task_queues_class_id_owner_group_owner UNIQUE (class_id, owner_group, owner)
);
CREATE INDEX ix_task_queues_owner_group_owner ON task_queues (owner_group, owner);

CREATE TABLE waiting_jobs (
	job_id INTEGER NOT NULL, 
	task_queue_id INTEGER NOT NULL, 
	priority FLOAT NOT NULL, 
	CONSTRAINT pk_waiting_jobs PRIMARY KEY (job_id), 
	CONSTRAINT fk_waiting_jobs_job_id FOREIGN KEY(job_id) REFERENCES jobs (job_id), 
	CONSTRAINT fk_waiting_jobs_task_queue_id FOREIGN KEY(task_queue_id) REFERENCES task_queues (task_queue_id)
);
CREATE INDEX ix_waiting_jobs_task_queue_id ON waiting_jobs (task_queue_id, priority DESC, job_id);

-- Times at which a cause kept the jobs of a task queue from pilots.
CREATE TABLE wait_causes (
	task_queue_id INTEGER NOT NULL, 
	cause VARCHAR(16) NOT NULL, 
	since DATETIME NOT NULL, 
	until DATETIME NOT NULL, 
	CONSTRAINT pk_wait_causes PRIMARY KEY (task_queue_id, cause, since)
);
CREATE INDEX ix_wait_causes_until ON wait_causes (until);

-- What matchers must reload.
CREATE TABLE changes (
	change_id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, 
	xid BIGINT NOT NULL, 
	kind VARCHAR(16) NOT NULL, 
	"key" TEXT NOT NULL, 
	at DATETIME NOT NULL
);
CREATE INDEX ix_changes_at ON changes (at);
CREATE INDEX ix_changes_xid ON changes (xid);


-- Pilots, by a stamp of our own: batch systems may reuse their ids.

CREATE TABLE pilots (
	stamp TEXT NOT NULL, 
	vo TEXT NOT NULL, 
	status VARCHAR(16) NOT NULL, 
	status_reason TEXT NOT NULL, 
	site TEXT NOT NULL, 
	ce TEXT NOT NULL, 
	queue TEXT NOT NULL, 
	reference TEXT, 
	submitted_by TEXT NOT NULL, 
	jobs INTEGER NOT NULL, 
	created_at DATETIME NOT NULL, 
	updated_at DATETIME NOT NULL, 
	last_seen_at DATETIME, 
	possible_queues TEXT, 
	empty_reason VARCHAR(40) DEFAULT '' NOT NULL, 
	processors INTEGER, 
	ended_jobs INTEGER DEFAULT '0' NOT NULL, 
	node VARCHAR(255) DEFAULT '' NOT NULL, 
	host_trouble BOOLEAN DEFAULT 0 NOT NULL, 
	process VARCHAR(64) DEFAULT '' NOT NULL, 
	restarted_at DATETIME, 
	CONSTRAINT pk_pilots PRIMARY KEY (stamp)
);
CREATE INDEX ix_pilots_status_updated_at ON pilots (status, updated_at);
CREATE INDEX ix_pilots_vo_site ON pilots (vo, site);
CREATE INDEX ix_pilots_node ON pilots (site, node) WHERE node <> '';

CREATE TABLE pilot_outputs (
	stamp TEXT NOT NULL, 
	stdout TEXT DEFAULT '' NOT NULL, 
	stderr TEXT DEFAULT '' NOT NULL, 
	stored_at DATETIME, 
	log TEXT DEFAULT '' NOT NULL, 
	logged_at DATETIME, 
	CONSTRAINT pk_pilot_outputs PRIMARY KEY (stamp), 
	CONSTRAINT fk_pilot_outputs_stamp FOREIGN KEY(stamp) REFERENCES pilots (stamp) ON DELETE CASCADE
);

-- Each is exchanged once for a token.
CREATE TABLE pilot_secrets (
	stamp TEXT NOT NULL, 
	digest VARCHAR(64) NOT NULL, 
	expires_at DATETIME NOT NULL, 
	redeemed_at DATETIME, 
	request_id TEXT, 
	CONSTRAINT pk_pilot_secrets PRIMARY KEY (stamp), 
	CONSTRAINT fk_pilot_secrets_stamp FOREIGN KEY(stamp) REFERENCES pilots (stamp) ON DELETE CASCADE
);


-- Assignments of jobs to pilots. At most one attempt of a job is open.

CREATE TABLE attempts (
	job_id INTEGER NOT NULL, 
	epoch INTEGER NOT NULL, 
	lease VARCHAR(64) NOT NULL, 
	holder TEXT NOT NULL, 
	stamp TEXT, 
	vo TEXT NOT NULL, 
	site TEXT NOT NULL, 
	ce TEXT NOT NULL, 
	queue TEXT NOT NULL, 
	opened_at DATETIME NOT NULL, 
	lease_expires_at DATETIME NOT NULL, 
	started_at DATETIME, 
	heartbeat_at DATETIME, 
	ending BOOLEAN DEFAULT 0 NOT NULL, 
	closed_at DATETIME, 
	closed_as TEXT, 
	request TEXT, 
	answer TEXT, 
	exit_code INTEGER, 
	progress TEXT NOT NULL, 
	output_tail TEXT NOT NULL, 
	output VARCHAR(64), 
	processors INTEGER, 
	ram_mb BIGINT, 
	gpus INTEGER, 
	phases TEXT, 
	local_jobs TEXT, 
	quarantined BOOLEAN DEFAULT 0 NOT NULL, 
	lost_at DATETIME, 
	counted_by TEXT, 
	claim_number INTEGER, 
	times TEXT, 
	CONSTRAINT pk_attempts PRIMARY KEY (job_id, epoch), 
	CONSTRAINT ck_attempts_closed_for_a_reason CHECK ((closed_at IS NULL) = (closed_as IS NULL)), 
	CONSTRAINT fk_attempts_job_id FOREIGN KEY(job_id) REFERENCES jobs (job_id) ON DELETE CASCADE, 
	CONSTRAINT uq_attempts_lease UNIQUE (lease)
);
CREATE INDEX ix_attempts_ending ON attempts (job_id) WHERE closed_at IS NULL AND ending IS true;
CREATE INDEX ix_attempts_not_started ON attempts (job_id) WHERE closed_at IS NULL AND started_at IS NULL;
CREATE INDEX ix_attempts_open_at ON attempts (lower(site), lower(ce), lower(queue)) WHERE closed_at IS NULL;
CREATE INDEX ix_attempts_lost_at ON attempts (lower(site), lower(ce)) WHERE closed_as = 'lost';
CREATE UNIQUE INDEX uq_attempts_claim_number ON attempts (stamp, claim_number);
CREATE INDEX ix_attempts_open_of_stamp ON attempts (stamp) WHERE closed_at IS NULL;
CREATE INDEX ix_attempts_times ON attempts (vo, times) WHERE closed_at IS NULL AND times IS NOT NULL;
CREATE INDEX ix_attempts_output ON attempts (output) WHERE output IS NOT NULL;
CREATE UNIQUE INDEX uq_attempts_open ON attempts (job_id) WHERE closed_at IS NULL;

CREATE TABLE attempt_marks (
	job_id INTEGER NOT NULL, 
	epoch INTEGER NOT NULL, 
	mark TEXT NOT NULL, 
	CONSTRAINT pk_attempt_marks PRIMARY KEY (job_id, epoch, mark), 
	CONSTRAINT fk_attempt_marks_job_id FOREIGN KEY(job_id) REFERENCES jobs (job_id) ON DELETE CASCADE
);

-- Those of a grid job, as its job manager last reported them.
CREATE TABLE local_jobs (
	job_id INTEGER NOT NULL, 
	epoch INTEGER NOT NULL, 
	number INTEGER NOT NULL, 
	state TEXT NOT NULL, 
	tries INTEGER NOT NULL, 
	reference TEXT, 
	started_at DATETIME, 
	ended_at DATETIME, 
	exit_code INTEGER, 
	message TEXT NOT NULL, 
	details TEXT NOT NULL, 
	CONSTRAINT pk_local_jobs PRIMARY KEY (job_id, epoch, number), 
	CONSTRAINT fk_local_jobs_job_id FOREIGN KEY(job_id) REFERENCES jobs (job_id) ON DELETE CASCADE
);

-- A repeated request gets its first answer again.
CREATE TABLE match_requests (
	subject TEXT NOT NULL, 
	request_id TEXT NOT NULL, 
	at DATETIME NOT NULL, 
	matches TEXT NOT NULL, 
	CONSTRAINT pk_match_requests PRIMARY KEY (subject, request_id)
);
CREATE INDEX ix_match_requests_at ON match_requests (at);


-- Limits of sites, CEs and queues. Matching at a scope is serialised by the lock of its row.

CREATE TABLE scopes (
	scope TEXT NOT NULL, 
	site TEXT NOT NULL, 
	watermark BIGINT DEFAULT 0 NOT NULL, 
	as_of BIGINT DEFAULT 0 NOT NULL, 
	advertisement TEXT, 
	advertised_at DATETIME, 
	taken_at TEXT, 
	CONSTRAINT pk_scopes PRIMARY KEY (scope)
);
CREATE INDEX ix_scopes_site ON scopes (site);

-- Limits, delays and throttles in force.
CREATE TABLE scope_rules (
	rule_id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, 
	scope TEXT NOT NULL, 
	kind VARCHAR(16) NOT NULL, 
	attribute TEXT NOT NULL, 
	value TEXT NOT NULL, 
	vo TEXT NOT NULL, 
	definition TEXT NOT NULL, 
	format INTEGER NOT NULL, 
	n INTEGER DEFAULT 0 NOT NULL, 
	opened BOOLEAN NOT NULL, 
	CONSTRAINT fk_scope_rules_scope FOREIGN KEY(scope) REFERENCES scopes (scope), 
	CONSTRAINT uq_scope_rules_scope_kind_attribute_value_vo UNIQUE (scope, kind, attribute, value, vo)
);

-- Ended and reopened attempts that scope_rules.n does not contain yet.
CREATE TABLE scope_returns (
	scope TEXT NOT NULL, 
	rule_id BIGINT NOT NULL, 
	job_id BIGINT NOT NULL, 
	epoch INTEGER NOT NULL, 
	number INTEGER NOT NULL
);
CREATE INDEX ix_scope_returns_scope ON scope_returns (scope);

-- Matches that are not in the site's own counts yet.
CREATE TABLE reservations (
	scope TEXT NOT NULL, 
	job_id INTEGER NOT NULL, 
	epoch INTEGER NOT NULL, 
	begun_by BIGINT, 
	seen BOOLEAN DEFAULT 0 NOT NULL, 
	CONSTRAINT pk_reservations PRIMARY KEY (scope, job_id, epoch), 
	CONSTRAINT fk_reservations_scope FOREIGN KEY(scope) REFERENCES scopes (scope)
);

-- Token buckets.
CREATE TABLE matching_delays (
	scope TEXT NOT NULL, 
	kind TEXT NOT NULL, 
	attribute TEXT NOT NULL, 
	value TEXT NOT NULL, 
	vo TEXT NOT NULL, 
	tokens FLOAT NOT NULL, 
	at DATETIME NOT NULL, 
	CONSTRAINT pk_matching_delays PRIMARY KEY (scope, kind, attribute, value, vo)
);

CREATE TABLE site_bans (
	site TEXT NOT NULL, 
	reason TEXT NOT NULL, 
	author TEXT NOT NULL, 
	at DATETIME NOT NULL, 
	until DATETIME, 
	CONSTRAINT pk_site_bans PRIMARY KEY (site)
);

-- Directors and gateways.
CREATE TABLE site_processes (
	kind VARCHAR(16) NOT NULL, 
	name VARCHAR(255) NOT NULL, 
	vo TEXT NOT NULL, 
	holder TEXT NOT NULL, 
	reported_by TEXT NOT NULL, 
	expires_at DATETIME NOT NULL, 
	seen_at DATETIME NOT NULL, 
	every FLOAT NOT NULL, 
	sites TEXT NOT NULL, 
	problems TEXT NOT NULL, 
	too_small TEXT NOT NULL, 
	CONSTRAINT pk_site_processes PRIMARY KEY (kind, name, vo)
);

-- Ends and reopenings of attempts are noted for the counters of scopes, by triggers: an attempt is closed by many
-- statements, and one that forgot the counters would lower a limit for good.
CREATE TRIGGER attempts_return_to_scopes AFTER UPDATE OF closed_at ON attempts
WHEN OLD.counted_by IS NOT NULL AND (OLD.closed_at IS NULL) <> (NEW.closed_at IS NULL)
BEGIN
    INSERT INTO scope_returns (scope, rule_id, job_id, epoch, number)
    SELECT json_extract(value, '$[1]'), json_extract(value, '$[0]'), OLD.job_id, OLD.epoch,
        CASE WHEN NEW.closed_at IS NULL THEN 1 ELSE -1 END
    FROM json_each(OLD.counted_by)
    WHERE json_extract(value, '$[0]') <> 0 OR NEW.closed_at IS NOT NULL
        AND (NEW.started_at IS NULL OR NEW.closed_as IN ('finished', 'released'));
END;

CREATE TRIGGER attempts_deleted_return_to_scopes AFTER DELETE ON attempts
WHEN OLD.counted_by IS NOT NULL AND OLD.closed_at IS NULL
BEGIN
    INSERT INTO scope_returns (scope, rule_id, job_id, epoch, number)
    SELECT json_extract(value, '$[1]'), json_extract(value, '$[0]'), OLD.job_id, OLD.epoch, -1
    FROM json_each(OLD.counted_by);
END;


-- Accounting: sums over the log of jobs, read from where log_readers says.

CREATE TABLE log_readers (
	name TEXT NOT NULL, 
	counted BIGINT NOT NULL, 
	noted BIGINT NOT NULL, 
	under_way TEXT NOT NULL, 
	CONSTRAINT pk_log_readers PRIMARY KEY (name)
);

CREATE TABLE job_flows (
	minute DATETIME NOT NULL, 
	vo TEXT NOT NULL, 
	status VARCHAR(16) NOT NULL, 
	came BIGINT NOT NULL, 
	went BIGINT NOT NULL, 
	CONSTRAINT pk_job_flows PRIMARY KEY (minute, vo, status)
);

CREATE TABLE job_stocks (
	vo TEXT NOT NULL, 
	status VARCHAR(16) NOT NULL, 
	jobs BIGINT NOT NULL, 
	CONSTRAINT pk_job_stocks PRIMARY KEY (vo, status)
);

CREATE TABLE queue_depths (
	at DATETIME NOT NULL, 
	site TEXT NOT NULL, 
	queue TEXT NOT NULL, 
	vo TEXT NOT NULL, 
	jobs BIGINT NOT NULL, 
	CONSTRAINT pk_queue_depths PRIMARY KEY (at, site, queue, vo)
);

CREATE TABLE accounted_use (
	hour DATETIME NOT NULL, 
	vo TEXT NOT NULL, 
	site TEXT NOT NULL, 
	ce TEXT NOT NULL, 
	queue TEXT NOT NULL, 
	owner TEXT NOT NULL, 
	owner_group TEXT NOT NULL, 
	status VARCHAR(16) NOT NULL, 
	jobs BIGINT NOT NULL, 
	attempts BIGINT NOT NULL, 
	wall_seconds FLOAT NOT NULL, 
	core_seconds FLOAT NOT NULL, 
	cpu_seconds FLOAT NOT NULL, 
	told_core_seconds FLOAT NOT NULL, 
	normalised_seconds FLOAT NOT NULL, 
	CONSTRAINT pk_accounted_use PRIMARY KEY (hour, vo, site, ce, queue, owner, owner_group, status)
);

CREATE TABLE accounted_waits (
	hour DATETIME NOT NULL, 
	vo TEXT NOT NULL, 
	site TEXT NOT NULL, 
	ce TEXT NOT NULL, 
	queue TEXT NOT NULL, 
	owner TEXT NOT NULL, 
	owner_group TEXT NOT NULL, 
	status VARCHAR(16) NOT NULL, 
	cause TEXT NOT NULL, 
	seconds FLOAT NOT NULL, 
	CONSTRAINT pk_accounted_waits PRIMARY KEY (hour, vo, site, ce, queue, owner, owner_group, status, cause)
);


-- Web hooks, and the bytes of sandboxes and outputs.

CREATE TABLE web_hooks (
	hook_id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, 
	vo TEXT NOT NULL, 
	name TEXT NOT NULL, 
	url TEXT NOT NULL, 
	secret TEXT NOT NULL, 
	events TEXT NOT NULL, 
	owner TEXT DEFAULT '' NOT NULL, 
	job_group TEXT DEFAULT '' NOT NULL, 
	created_by TEXT NOT NULL, 
	created_at DATETIME NOT NULL, 
	failures INTEGER DEFAULT '0' NOT NULL, 
	next_try_at DATETIME, 
	dropped INTEGER DEFAULT '0' NOT NULL, 
	CONSTRAINT uq_web_hooks_vo_name UNIQUE (vo, name)
);

CREATE TABLE hook_deliveries (
	delivery_id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, 
	hook_id INTEGER NOT NULL, 
	event VARCHAR(40) NOT NULL, 
	body TEXT NOT NULL, 
	created_at DATETIME NOT NULL, 
	tries INTEGER DEFAULT '0' NOT NULL, 
	answer TEXT DEFAULT '' NOT NULL, 
	is_delivered BOOLEAN DEFAULT 0 NOT NULL, 
	ended_at DATETIME, 
	CONSTRAINT fk_hook_deliveries_hook_id FOREIGN KEY(hook_id) REFERENCES web_hooks (hook_id) ON DELETE CASCADE
);
CREATE INDEX ix_hook_deliveries_hook_id ON hook_deliveries (hook_id, delivery_id);
CREATE INDEX ix_hook_deliveries_open ON hook_deliveries (hook_id, delivery_id) WHERE ended_at IS NULL;
CREATE INDEX ix_hook_deliveries_ended_at ON hook_deliveries (ended_at);

CREATE TABLE hook_conditions (
	vo TEXT NOT NULL, 
	event VARCHAR(40) NOT NULL, 
	subject TEXT NOT NULL, 
	since DATETIME NOT NULL, 
	reported_at DATETIME, 
	CONSTRAINT pk_hook_conditions PRIMARY KEY (vo, event, subject)
);

CREATE TABLE blobs (
	digest VARCHAR(64) NOT NULL, 
	vo TEXT NOT NULL, 
	size BIGINT NOT NULL, 
	created_at DATETIME NOT NULL, 
	last_used_at DATETIME NOT NULL, 
	is_output BOOLEAN NOT NULL, 
	CONSTRAINT pk_blobs PRIMARY KEY (digest, vo)
);
CREATE INDEX ix_blobs_vo ON blobs (vo);


-- Sign-in.

CREATE TABLE revoked_tokens (
	jti TEXT NOT NULL, 
	expires_at DATETIME NOT NULL, 
	CONSTRAINT pk_revoked_tokens PRIMARY KEY (jti)
);

CREATE TABLE login_links (
	digest VARCHAR(64) NOT NULL, 
	session TEXT NOT NULL, 
	expires_at DATETIME NOT NULL, 
	CONSTRAINT pk_login_links PRIMARY KEY (digest)
);

-- Command lines that wait until a person confirms their code in a browser.
CREATE TABLE device_logins (
	digest VARCHAR(64) NOT NULL, 
	user_code VARCHAR(16) NOT NULL, 
	address TEXT NOT NULL, 
	expires_at DATETIME NOT NULL, 
	CONSTRAINT pk_device_logins PRIMARY KEY (digest), 
	CONSTRAINT uq_device_logins_user_code UNIQUE (user_code)
);
CREATE INDEX ix_device_logins_expires_at ON device_logins (expires_at);


-- The installation and its processes.

CREATE TABLE installation (
	row_number INTEGER DEFAULT 1 NOT NULL, 
	incarnation BIGINT DEFAULT 1 NOT NULL, 
	opened_at DATETIME, 
	epoch_floor INTEGER DEFAULT 0 NOT NULL, 
	trimmed_to BIGINT DEFAULT 0 NOT NULL, 
	rules_version INTEGER DEFAULT 0 NOT NULL, 
	rules_expiries INTEGER DEFAULT 0 NOT NULL, 
	mended_counters INTEGER DEFAULT 0 NOT NULL, 
	CONSTRAINT pk_installation PRIMARY KEY (row_number), 
	CONSTRAINT ck_installation_one_row CHECK (row_number = 1)
);
INSERT INTO installation (row_number) VALUES (1);

-- The process that runs an agent now.
CREATE TABLE agent_leases (
	name TEXT NOT NULL, 
	holder TEXT NOT NULL, 
	fence BIGINT NOT NULL, 
	expires_at DATETIME NOT NULL, 
	last_cycle_at DATETIME, 
	broken TEXT DEFAULT '[]' NOT NULL, 
	CONSTRAINT pk_agent_leases PRIMARY KEY (name)
);

-- A pilot counts as silent only while a process could receive it.
CREATE TABLE service_uptime (
	process TEXT NOT NULL, 
	since DATETIME NOT NULL, 
	until DATETIME NOT NULL, 
	CONSTRAINT pk_service_uptime PRIMARY KEY (process, since)
);
