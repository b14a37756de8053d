"""Every amount that one caller, VO or site may have: its bound, who counts it, the test that reaches it.

`docs/reference/bounds.md` is written from it. What is new and can be asked for without end needs a row here.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from cs_config.classes import queue_columns
from cs_config.options import bounds
from cs_config.options.options import LimitOptions
from matcher import class_flags
from matcher.claim import snapshot
from matcher.explain import queue_set, stuck_classes, unmet_conditions, work_budget
from matcher.index import place_pools
from matcher.limits import job_groups
from matcher.request import node_checks
from optimizers.description import template_cache
from pilotage import tar_headers
from pilotage.cli.commands import downtime
from pilotage.client.api import _ClientTransport
from pilotage.fabric.pilot.service import timed_response, transport
from pilotage.plugins.arc import rest as arc
from pilotage.plugins.dirac import command as dirac_history
from pilotage.plugins.dirac import door_guard
from pilotage.plugins.formats import dirac_server
from pilotage.plugins.kubernetes import api as kubernetes
from pilotage.plugins.web_hooks import messages
from pilotage.replay import recorded_day
from pilotage.service import hot_routes, routing
from pilotage.service.auth import rate_limits
from pilotage.service.auth.oidc import discovery
from pilotage.service.queries import archives, downtimes
from pilotage.service.routes import matcher
from pilotage.service.services import ServiceLimits
from requirements.classad import evaluation, work
from taskqueue import day_record, past_forecasts
from taskqueue.jobs import dependencies
from taskqueue.leases import assignment
from taskqueue.pilots import hardware

_MB: Final = 1 << 20
_SERVICE: Final = "tests/integration/pilotage/service/"
_ROUTES: Final = f"{_SERVICE}routes/"
_ACCESS: Final = f"{_SERVICE}auth/test_access.py::"
_SESSIONS: Final = f"{_SERVICE}auth/test_sessions.py::"
_STREAMS: Final = f"{_ROUTES}test_job_changes.py::"
_CONNECTIONS: Final = "tests/integration/pilotage/cli/processes/test_client_connections.py::"
_RATES: Final = "tests/unit/pilotage/service/auth/test_rate_limits.py::"
_REPLAY: Final = "tests/integration/pilotage/replay/test_replay.py::"
_OUTGOING: Final = "tests/integration/pilotage/test_outgoing_requests.py::"
_EDITS: Final = "tests/unit/cs_config/editing/test_permissions.py::"
_CHECKS: Final = "tests/unit/optimizers/submit/test_checking.py::"


@dataclass(frozen=True, slots=True, kw_only=True)
class Amount:
    """What is bounded."""

    who: str
    what: str
    most: str  #: with its unit, and the answer beyond it unless that is 429
    counted_by: str  #: module and name
    test: str  #: file and name
    attacks: Sequence[str] = ()  #: of `benchmarks.hostile`


_DEFAULTS: Final = LimitOptions()
_LIMITS: Final = ServiceLimits()
_TURNS, _EXPENSIVE, _LARGE = rate_limits.TURNS, rate_limits.EXPENSIVE_TURNS, rate_limits.LARGE_TURNS
_UPLOADS, _ANSWERS, _FORMS = rate_limits.UPLOADS, rate_limits.ANSWERS, door_guard.FORMS
_SANDBOXES: Final = door_guard.SANDBOXES
_HALF: Final = "half of what is free"

AMOUNTS: Final[Mapping[str, Sequence[Amount]]] = {
    "Requests": (
        Amount(
            who="caller (subject of a token)",
            what="requests",
            most=f"`Limits/RequestsPerSecond`, {_LIMITS.burst_seconds:g} s of it at once; with "
            "Redis at all processes",
            counted_by="pilotage.service.auth.rate_limits.RateLimiter",
            test=f"{_ACCESS}test_too_many_requests_of_one_subject_are_429",
        ),
        Amount(
            who="caller",
            what="requests at work",
            most=f"{rate_limits.AT_WORK.of_one}; {rate_limits.AT_WORK.waiting} more wait",
            counted_by="pilotage.service.auth.rate_limits.AT_WORK",
            test=f"{_RATES}test_few_requests_of_a_subject_work_at_a_time_some_wait_and_more_are_refused",
            attacks=["long lists"],
        ),
        Amount(
            who="address without a token (`/login`, `/docs`, wrong secrets)",
            what="requests",
            most=f"{_LIMITS.strangers_per_second:g} a second, "
            f"{10 * _LIMITS.strangers_per_second:g} at once; an IPv6 "
            "network of /64 counts as one",
            counted_by="pilotage.service.auth.access.limit_anonymous",
            test=f"{_ROUTES}test_health.py::test_strangers_have_a_rate_of_their_own",
            attacks=["wrong tokens"],
        ),
        Amount(
            who="all / one VO",
            what="submissions, changes, lists, reports of directors at work",
            most=f"{_TURNS.of_all} / {_TURNS.of_vo}; VOs, and callers of each, take turns. "
            "Requests of pilots need no "
            "such place",
            counted_by="pilotage.service.auth.rate_limits.TURNS",
            test=f"{_RATES}test_vos_and_the_callers_of_each_get_places_in_turn_and_a_vo_has_only_some",
            attacks=["pilots are registered by the hundred"],
        ),
        Amount(
            who="all / one VO",
            what=f"requests with more than {routing.AT_ONCE >> 10} kB at work, such as large submissions",
            most=f"{_LARGE.of_all} / {_LARGE.of_vo}; VOs, and callers of each, take turns",
            counted_by="pilotage.service.auth.rate_limits.LARGE_TURNS",
            test=f"{_ACCESS}test_no_small_submission_waits_for_large_ones_of_which_a_vo_has_one_at_work",
            attacks=[
                "1,000 different Requirements",
                "1,000 jobs of 140 tags",
                "1,000 jobs of different memory",
            ],
        ),
        Amount(
            who="all / one VO",
            what="explanations, previews, changes of the configuration, accounting, summaries at work",
            most=f"{_EXPENSIVE.of_all} / {_EXPENSIVE.of_vo}",
            counted_by="pilotage.service.auth.rate_limits.EXPENSIVE_TURNS",
            test=f"{_ACCESS}test_no_submission_pilot_or_report_waits_for_expensive_requests_of_others",
            attacks=["summaries of everything", "queues are explained", "previews of 3,000 values"],
        ),
        Amount(
            who="preview, report of a queue",
            what="characters of the requirements that it evaluates; fewer where many queues change",
            most=f"{work_budget.PREVIEWED:,}, {work_budget.QUEUE_REPORT:,}: those of most jobs. The answer "
            "counts the others by VO (`left_out`), and no guard holds for them. 9,200 pools took 5 s of "
            "processor time",
            counted_by="matcher.explain.work_budget.choose_classes",
            test=f"{_ROUTES}test_config_preview.py::"
            "test_a_preview_evaluates_the_classes_with_most_jobs_and_no_guard_holds_for_the_others",
            attacks=["previews of 3,000 values", "queues are explained"],
        ),
        Amount(
            who="caller",
            what="bytes and values of a body that is no archive",
            most=f"{bounds.BODY / 1e6:g} MB, {bounds.JSON_VALUES:,} names and values: 413, 400; "
            "operators more",
            counted_by="pilotage.service.routing.limit_text",
            test="tests/unit/pilotage/service/test_routing.py::"
            "test_values_beyond_a_number_are_refused_before_they_take_memory",
            attacks=["3 MB of zeros"],
        ),
        Amount(
            who="client",
            what="time for the body of a request",
            most=f"{bounds.SLOWEST / 1e3:g} kB/s beyond two minutes; then it is disconnected",
            counted_by="pilotage.cli.processes.client_connections.ClientConnection",
            test=f"{_CONNECTIONS}test_a_body_has_to_come_at_the_least_rate",
            attacks=["bodies come slowly"],
        ),
        Amount(
            who="all / one VO / caller",
            what="bytes of answers not sent yet",
            most=f"{_ANSWERS.of_all / _MB:g} MB / {_HALF} / {_ANSWERS.of_one / _MB:g} MB. A client "
            "that reads nothing for "
            f"{bounds.READER_PATIENCE:g} s, or fewer than {bounds.SLOWEST / 1e3:g} kB/s for "
            "longer, is disconnected",
            counted_by="pilotage.service.middleware.CountedAnswers",
            test=f"{_SERVICE}test_unread_answers.py::"
            "test_the_unread_answers_of_one_vo_are_bounded_and_leave_room_to_others",
            attacks=["answers are not read"],
        ),
        Amount(
            who="all / one VO / caller",
            what="streams of events",
            most=f"{_LIMITS.streams:,} / {_HALF} / {_LIMITS.streams_of_caller}; then clients and pages poll",
            counted_by="pilotage.service.job_events.JobEvents",
            test=f"{_STREAMS}test_the_streams_of_some_vos_leave_room_for_those_of_others",
            attacks=["streams of events"],
        ),
        Amount(
            who="connection",
            what="bytes behind a request that is not answered",
            most="64 KiB; more wait in the network",
            counted_by="pilotage.cli.processes.client_connections.ClientConnection",
            test=f"{_CONNECTIONS}test_more_than_a_head_that_comes_behind_a_request_waits_in_the_network",
        ),
        Amount(
            who="all / one address",
            what="connections without a whole TLS handshake or head",
            most="a quarter / a sixteenth of the open files; the oldest are closed, with a line in the log",
            counted_by="pilotage.cli.processes.client_connections.ClientConnections",
            test=f"{_CONNECTIONS}test_of_too_many_connections_without_a_whole_head_the_oldest_are_closed",
            attacks=["heads do not end"],
        ),
    ),
    "Jobs, pools and pilots": (
        Amount(
            who="caller",
            what="jobs submitted, rescheduled or reset",
            most="`Limits/JobsPerHour`, those of an hour at once. Each is a kilobyte of the database until "
            "`Retention/Jobs`, also if it is killed at once, and so are "
            f"{bounds.EDGES_OF_JOB} of the jobs that it waits for",
            counted_by="pilotage.service.auth.access.admit_jobs",
            test=f"{_ACCESS}test_who_submitted_too_many_jobs_in_an_hour_neither_submits_nor_reschedules_more",
        ),
        Amount(
            who="submission",
            what="jobs, and words of its different expressions",
            most=f"{bounds.SUBMITTED_JOBS:,}; {bounds.EXPRESSION_TOKENS:,}: 400",
            counted_by="optimizers.submit.checking.check_sources",
            test=f"{_CHECKS}test_different_expressions_that_take_seconds_are_refused_before_they_are_read",
            attacks=["40 long expressions are submitted"],
        ),
        Amount(
            who="VO",
            what="pairs of a job that waits and one that has ended, which are counted in a turn",
            most=f"{dependencies.EDGES_AT_ONCE:,}, and as many jobs that fail with others; then other VOs "
            "have their turn",
            counted_by="taskqueue.jobs.dependencies.count_turn",
            test="tests/integration/agents/test_dependencies.py::"
            "test_the_jobs_of_a_vo_with_many_pairs_keep_those_of_others_waiting_for_one_turn",
        ),
        Amount(
            who="owner / VO",
            what="jobs that wait",
            most=f"`Limits/WaitingJobsPerOwner` ({_DEFAULTS.waiting_jobs_per_owner:,}) / "
            f"`Limits/WaitingJobsPerVO` ({_DEFAULTS.waiting_jobs_per_vo:,}), at all processes",
            counted_by="taskqueue.jobs.submission",
            test="tests/integration/optimizers/submit/test_submission.py::test_waiting_jobs_have_limits",
        ),
        Amount(
            who="job",
            what="names in one list of its description",
            most=f"{bounds.LISTED:,}, of {bounds.NAME} characters each: 400",
            counted_by="cs_config.options.keywords",
            test="tests/unit/optimizers/description/test_description.py::"
            "test_names_of_a_keyword_have_a_bound_in_number_and_length",
        ),
        Amount(
            who="job",
            what="jobs that it waits for",
            most=f"{bounds.PARENTS:,}: 400",
            counted_by="cs_config.options.keywords",
            test="tests/unit/optimizers/description/test_description.py::"
            "test_a_job_waits_for_so_many_others_at_most",
        ),
        Amount(
            who="job",
            what="parameters that its pilot notes, and changes of its status in its log",
            most=f"{bounds.PARAMETERS}, {bounds.ALL_PARAMETERS:,} characters; {bounds.LOGGED_NOTES:,}: "
            "later changes are those of the job only",
            counted_by="taskqueue.jobs.descriptions",
            test="tests/integration/taskqueue/leases/test_notes.py::test_parameters_are_bounded_over_all_notes",
        ),
        Amount(
            who="request for a summary",
            what="groups",
            most=f"{bounds.SUMMARY_GROUPS:,}: 400",
            counted_by="taskqueue.jobs.search",
            test="tests/integration/taskqueue/jobs/test_search.py::"
            "test_a_summary_has_a_bounded_number_of_groups",
        ),
        Amount(
            who="site",
            what="shapes of hardware that its pilots had",
            most=f"{hardware.MOST_SHAPES}: the latest",
            counted_by="taskqueue.pilots.hardware",
            test="tests/integration/taskqueue/pilots/test_hardware.py::test_of_many_shapes_the_latest_are_kept",
        ),
        Amount(
            who="request for copies of jobs, or edits",
            what="bytes of descriptions, and jobs that they wait for",
            most=f"{bounds.ALL_FILLED / 1e6:g} MB, {bounds.DEPENDENCIES:,} pairs: 400",
            counted_by="taskqueue.jobs.descriptions.require_few_bytes",
            test=f"{_ROUTES}test_jobs.py::test_so_much_is_read_of_jobs_that_are_copied_at_once_and_no_more",
        ),
        Amount(
            who="job",
            what="retries by its rules",
            most=f"{bounds.RETRIES} by each of {bounds.JOB_RULES} rules, which change "
            f"{bounds.JOB_RULE_CHANGES} values and are checked at submission",
            counted_by="cs_config.options.retry_rules.count_uses",
            test=f"{_ROUTES}test_retries.py::test_each_retry_has_more_memory_until_none_is_left",
        ),
        Amount(
            who="job",
            what="steps in which it asks for less",
            most=f"one by each of {bounds.JOB_RULES} rules, which change {bounds.JOB_RULE_CHANGES} values",
            counted_by="cs_config.options.job_rules.split_rules",
            test="tests/unit/cs_config/options/test_relax_rules.py"
            "::test_what_is_no_rule_of_relaxation_is_refused",
        ),
        Amount(
            who="expression at a queue",
            what="work of its evaluation",
            most=f"{(work.MAX_WORK + work.MAX_READING) / 1e7:g} ms, counted before it begins: then "
            "its value is Error",
            counted_by="requirements.classad.work.count_work",
            test="tests/unit/requirements/classad/test_work.py::test_every_kind_of_expression_is_bounded",
            attacks=[
                "a text is multiplied",
                "an expression of many terms",
                "a node states 16,000 characters",
            ],
        ),
        Amount(
            who="all, counted for each VO",
            what="bytes of expressions, lists and descriptions, and of what is derived from them",
            most=f"{evaluation.KEPT_MB} MB of programs of expressions, 552 MB of the rest. Where there is no "
            "room, what was stored first for the VO that has most goes",
            counted_by="requirements.kept.Kept",
            test="tests/unit/requirements/test_kept.py::"
            "test_a_vo_that_stores_without_end_removes_nothing_of_others",
            attacks=["40 long expressions are submitted", "1,000 jobs of 140 tags"],
        ),
        Amount(
            who="VO",
            what="bytes of conditions at queues, and of explanations of them",
            most=f"{queue_columns.MOST_BYTES >> 20} MB each of those of pools and of explanations, "
            f"{unmet_conditions.MOST_BYTES >> 20} MB of unmet ones, {queue_set.MOST_BYTES >> 20} MB of sets "
            f"of queues; for all VOs {stuck_classes.MOST_KNOWN:,} classes with whether a queue is eligible. "
            "What was stored first goes",
            counted_by="cs_config.cache.Cache",
            test="tests/unit/matcher/explain/test_queue_set.py::"
            "test_conditions_of_many_long_lists_are_kept_up_to_their_bytes",
            attacks=["queues are explained"],
        ),
        Amount(
            who="all",
            what="bytes of templates, of attributes of descriptions, and of flags of pilots",
            most=f"{template_cache.MOST_BYTES >> 20} MB, {job_groups.MOST_BYTES >> 20} MB, "
            f"{class_flags.MOST_BYTES >> 20} MB. What was stored first goes",
            counted_by="cs_config.cache.Cache",
            test="tests/unit/cs_config/test_cache.py::"
            "test_a_cache_of_so_many_bytes_loses_what_was_stored_first_until_a_result_has_room",
        ),
        Amount(
            who="all",
            what="evaluations, and readings of a value, of more than a millisecond at a time",
            most="1; others wait in their order, in threads. The event loop evaluates nothing",
            counted_by="requirements.classad.turns",
            test="tests/unit/requirements/classad/test_turns.py::"
            "test_a_long_evaluation_waits_for_another_one_and_a_short_one_does_not",
            attacks=["an expression of many terms"],
        ),
        Amount(
            who="VO",
            what="processor time of checks of `NodeFacts` that no node had before",
            most=f"{node_checks.BURST:g} s at once, {node_checks.SHARE:.0%} of a processor in the long run; "
            "the jobs of pools that wait for it are given to other nodes only (`node`)",
            counted_by="matcher.request.node_checks.NodeChecks",
            test="tests/integration/matcher/request/test_node_checks.py::"
            "test_checks_of_a_vo_take_a_share_of_processor_time_and_go_on_where_they_ended",
        ),
        Amount(
            who="all",
            what="bytes of cached places and requests without a match",
            most=f"{snapshot.MOST_BYTES >> 20} MB each, {matcher.MOST_BYTES >> 20} MB of what pilots state, "
            f"{hot_routes.MOST_BYTES >> 20} MB of their requests; "
            f"{place_pools.MOST_IDS:,} ids of pools. What was stored first goes",
            counted_by="cs_config.cache.Cache",
            test="tests/unit/cs_config/test_cache.py::"
            "test_a_cache_of_so_many_bytes_loses_what_was_stored_first_until_a_result_has_room",
        ),
        Amount(
            who="request for work",
            what="jobs",
            most="as many as fit into the slot, 1,000",
            counted_by="pilotage.service.models.matching.JobRequest",
            test=f"{_ROUTES}test_matcher.py::test_a_wrong_resource_is_400",
            attacks=["a pilot asks for 1,000 jobs"],
        ),
        Amount(
            who="request for work",
            what="descriptions of its jobs",
            most=f"{assignment.MOST_BYTES >> 20} MB, or one; the next request gets more",
            counted_by="taskqueue.leases.assignment.DescriptionRoom",
            test="tests/integration/matcher/claim/test_filled_pilots.py::"
            "test_descriptions_of_one_answer_are_bounded_by_bytes",
        ),
        Amount(
            who="pilots, the first of a place after a start or a change",
            what="places that are read from the database",
            most="4 at a time, each once for all its pilots; 1,024 wait, further requests are "
            "served one by one",
            counted_by="matcher.claim.async_claimer.AsyncClaimer",
            test="tests/integration/matcher/claim/test_async_claimer.py::"
            "test_the_first_request_from_a_place_is_claimed_for_in_the_event_loop",
        ),
        Amount(
            who="director",
            what="pilots registered",
            most="as jobs",
            counted_by="pilotage.service.auth.access.admit_jobs",
            test=f"{_ROUTES}test_pilot_batches.py::"
            "test_a_director_that_registered_too_many_pilots_in_an_hour_registers_no_more",
        ),
        Amount(
            who="VO",
            what="pilots that have not ended, at all processes",
            most=f"`Limits/PilotsPerVO` ({_DEFAULTS.pilots_per_vo:,}): directors submit no more "
            "and show it as a problem. "
            "Four days after its last report a pilot has ended",
            counted_by="taskqueue.pilots.pilots.require_within_quota",
            test=f"{_ROUTES}test_pilot_batches.py::"
            "test_a_vo_has_so_many_pilots_that_have_not_ended_whoever_registers_them",
        ),
        Amount(
            who="VO",
            what="SubmitPools, at all processes",
            most=f"`Limits/Pools` ({_DEFAULTS.pools:,}): jobs that need another one are held "
            "(Checking, with the reason) "
            "and tried again each `JobScheduling/HoldTime`",
            counted_by="taskqueue.pools.pools.LOCK_NEW",
            test="tests/integration/optimizers/chain/test_batch.py::"
            "test_jobs_that_need_more_pools_than_their_vo_may_have_wait_until_others_go",
        ),
        Amount(
            who="VO",
            what="bytes of sandboxes",
            most=f"`Limits/SandboxQuota` ({_DEFAULTS.sandbox_quota >> 30} GB), one "
            f"`Limits/SandboxBytes` ({_DEFAULTS.sandbox_bytes >> 20} MB), at all processes",
            counted_by="taskqueue.blobs",
            test=f"{_ROUTES}test_archives.py::test_a_vo_beyond_its_quota_is_429",
        ),
        Amount(
            who="VO",
            what="bytes of outputs",
            most="`Limits/OutputQuota`: `retention` removes the oldest. An output that is sent "
            "again replaces the first",
            counted_by="agents.retention.retention",
            test="tests/integration/taskqueue/test_retention.py::test_the_oldest_outputs_beyond_the_quota_go",
        ),
        Amount(
            who="VO",
            what="directors and gateways, and characters of their reports",
            most=f"{bounds.SITE_PROCESSES:,}, {bounds.SITE_REPORTS / 1e6:g} million",
            counted_by="taskqueue.sites.processes",
            test=f"{_ROUTES}test_sites.py::test_a_vo_has_so_many_directors_and_gateways_and_no_more",
        ),
        Amount(
            who="VO",
            what="stored forecasts of starts",
            most=f"{past_forecasts.MOST} whose jobs have started, {past_forecasts.MOST} whose jobs wait",
            counted_by="taskqueue.past_forecasts.REMOVE_OLD",
            test="tests/integration/agents/test_forecasts.py::"
            "test_jobs_that_no_longer_wait_and_the_oldest_forecasts_go",
        ),
        Amount(
            who="place, class or scope",
            what="bytes of an hour in the record of days",
            most=f"{day_record.MOST_BYTES >> 10} kB: further minutes are not recorded",
            counted_by="taskqueue.day_record.MOST_BYTES",
            test="tests/integration/taskqueue/test_day_record.py::test_a_row_has_so_many_bytes_and_no_more",
        ),
        Amount(
            who="replay of a day",
            what="jobs, slots / days",
            most=f"{recorded_day.MOST_JOBS:,}, as many / {recorded_day.MOST_TIME.days}: refused",
            counted_by="pilotage.replay.recorded_day.MOST_JOBS",
            test=f"{_REPLAY}test_a_day_that_cannot_be_replayed_is_refused",
        ),
        Amount(
            who="replay of a day",
            what="time that it takes",
            most="2 h, or `--within`: it is given up",
            counted_by="pilotage.replay.simulation.Simulation",
            test=f"{_REPLAY}test_a_replay_that_takes_too_long_is_given_up",
        ),
    ),
    "Uploads and sessions": (
        Amount(
            who="all / one VO",
            what="sandboxes under way",
            most=f"{_UPLOADS.of_all} / {_HALF}, {rate_limits.UPLOADS_OF_CALLER.of_one} of a "
            "caller; others wait",
            counted_by="pilotage.service.queries.archives.Uploads",
            test=f"{_ROUTES}test_archives.py::test_slow_sandboxes_of_one_vo_leave_places_to_others",
            attacks=["sandboxes come slowly"],
        ),
        Amount(
            who="all / one VO / one site",
            what="outputs under way",
            most=f"{_UPLOADS.of_all} / {_HALF} / {_UPLOADS.of_one}",
            counted_by="pilotage.service.queries.archives.Uploads",
            test=f"{_ROUTES}test_archives.py::test_slow_outputs_of_one_site_leave_places_to_others",
        ),
        Amount(
            who="upload",
            what="time",
            most=f"{bounds.SLOWEST / 1e3:g} kB/s over any minute: 408; then the caller has less "
            "than a minute for the next",
            counted_by="pilotage.service.auth.rate_limits.Patience",
            test=f"{_RATES}test_a_client_may_pause_and_has_to_reach_the_least_rate_over_a_time",
        ),
        Amount(
            who="archive of a sandbox or output",
            what="bytes of an extended header; of what is unpacked to list it, and entries",
            most=f"{tar_headers.LONGEST >> 10} kB; {archives.MOST_BYTES >> 20} MB, "
            f"{archives.MOST_MEMBERS:,}, where the list ends. Pilots and gateways refuse such headers, "
            "and sparse files",
            counted_by="pilotage.tar_headers.CheckedTarInfo",
            test="tests/unit/pilotage/test_tar_headers.py::test_headers_that_take_any_time_are_refused",
        ),
        Amount(
            who="person",
            what="sign-ins, also by `pilotage login --device`",
            most=f"{bounds.SIGN_INS} at once, then one in {bounds.SIGN_IN_SECONDS} s",
            counted_by="pilotage.service.auth.access.count_sign_in",
            test=f"{_SESSIONS}test_a_person_signs_in_so_often_and_a_refused_link_stays_good",
        ),
        Amount(
            who="all / one address",
            what="command lines that wait in `pilotage login --device`",
            most=f"{bounds.DEVICE_LOGINS:,} / {bounds.DEVICE_LOGINS_OF_ADDRESS}, for 15 minutes: 503",
            counted_by="cs_config.options.bounds.DEVICE_LOGINS",
            test=f"{_SESSIONS}test_so_many_command_lines_wait_and_no_more",
        ),
        Amount(
            who="all / VO / DN",
            what="bytes of forms that `dirac-door` has in memory",
            most=f"{_FORMS.of_all / _MB:g} MB / {_HALF} / {_FORMS.of_one / _MB:g} MB, one 16 MB",
            counted_by="pilotage.plugins.dirac.door_guard.FORMS",
            test="tests/plugins/dirac/test_moving.py::"
            "test_forms_that_wait_are_bounded_by_their_bytes_and_cost_other_vos_nothing",
        ),
        Amount(
            who="all / VO / DN",
            what="sandboxes in such forms at work, once they have come",
            most=f"{_SANDBOXES.of_all} / {_SANDBOXES.of_vo} / {_SANDBOXES.of_one}; others wait",
            counted_by="pilotage.plugins.dirac.door_guard.SANDBOXES",
            test="tests/plugins/dirac/test_moving.py::test_so_many_sandboxes_are_worked_on_at_once",
        ),
    ),
    "Configuration and web hooks": (
        Amount(
            who="admin",
            what="changes, and the values and characters of each",
            most=f"30 at once, then one in 30 s; {bounds.EDITED_VALUES:,} values, "
            f"{bounds.EDITED_TEXT:,} characters",
            counted_by="pilotage.service.configuring",
            test=f"{_EDITS}test_a_change_of_an_administrator_takes_little_time_at_most",
            attacks=["changes of 3,000 values"],
        ),
        Amount(
            who="site, VO",
            what="values",
            most=f"{bounds.OWN_VALUES:,}, but for what an earlier version had",
            counted_by="cs_config.editing.permissions",
            test=f"{_EDITS}test_the_parts_of_an_administrator_grow_up_to_a_bound",
        ),
        Amount(
            who="VO",
            what="characters of all defaults of keywords",
            most=f"{bounds.DEFAULT_VALUES:,}: each job gets them",
            counted_by="cs_config.options.operations",
            test="tests/unit/cs_config/options/test_operations.py::"
            "test_all_defaults_together_are_bounded_since_each_job_gets_them",
        ),
        Amount(
            who="all",
            what="values that queues inherit, each counted for each queue",
            most=f"{bounds.INHERITED_VALUES:,}",
            counted_by="cs_config.editing.permissions",
            test=f"{_EDITS}test_a_site_that_adds_queues_does_not_multiply_the_values_of_vos",
        ),
        Amount(
            who="server of others that we send requests to",
            what="time of a request in all, and bytes of its answer, with its head",
            most=f"issuer: {discovery.TIMEOUT:g} s, {discovery.MOST >> 20} MB; CE of the kind `arc`: "
            f"{arc.LONGEST:g} s, {arc.MOST >> 20} MB; cluster: {kubernetes.LONGEST:g} s, "
            f"{kubernetes.MOST >> 20} MB; "
            f"feed of downtimes: {downtime.LONGEST:g} s, {downtime.MOST >> 20} MB; "
            f"DIRAC's configuration: {dirac_server.LONGEST:g} s, {dirac_server.MOST_ANSWERED >> 20} MB; "
            f"OpenSearch: {dirac_history.LONGEST:g} s, {dirac_history.MOST_ANSWERED >> 20} MB; "
            f"receiver of a web hook: {messages.TRY_SECONDS:g} s, only the head. "
            "Redirects are not followed, and a compressed body is refused: the server is away. The look-up "
            "of a name counts, but ends when the resolver says",
            counted_by="pilotage.bounded_http.BoundedTransport",
            test=f"{_OUTGOING}test_a_request_ends_whatever_its_server_sends",
        ),
        Amount(
            who="pilot, director, gateway, client",
            what="time and bytes of an answer of the service",
            most=f"its head within the time of a request, then {timed_response.LEAST_RATE / 1e3:g} kB/s; "
            f"{transport.Transport.longest_answer >> 20} MB, for clients and commands "
            f"{_ClientTransport.longest_answer >> 20:,} MB, but for archives, which have limits of their own",
            counted_by="pilotage.fabric.pilot.service.timed_response.TimedResponse",
            test=f"{_OUTGOING}test_a_request_ends_whatever_its_server_sends",
        ),
        Amount(
            who="site, CE, queue",
            what="advertised attributes beside those of the policies, and bytes of all",
            most=f"{bounds.ADVERTISED}, {bounds.ADVERTISED_BYTES >> 10} kB: 400",
            counted_by="pilotage.service.routes.sites",
            test=f"{_ROUTES}test_sites.py::test_an_advertisement_that_each_match_would_read_slowly_is_refused",
        ),
        Amount(
            who="admin",
            what="values that are changed temporarily at a time, and those of one path within one another",
            most=f"{bounds.TEMPORARY_VALUES:,}, {bounds.TEMPORARY_LEVELS}",
            counted_by="cs_config.editing.reverts",
            test="tests/integration/agents/test_reverts.py::"
            "test_values_within_one_another_are_bounded_and_count_for_their_authors",
        ),
        Amount(
            who="place",
            what="limits by kind of job in one section, and floors",
            most=f"{bounds.LIMITS_OF_PLACE}: each claim there looks at all of them",
            counted_by="cs_config.options.place_limits",
            test="tests/unit/cs_config/test_validate.py::test_limits_of_a_site_are_checked",
        ),
        Amount(
            who="site",
            what="downtimes that are not over",
            most=f"{downtimes.MOST_OF_SITE:,}, of all feeds and by hand (400)",
            counted_by="pilotage.service.queries.downtimes",
            test=f"{_ROUTES}test_downtimes.py::test_a_site_has_only_so_many_downtimes",
        ),
        Amount(
            who="installation",
            what="texts of versions of the configuration",
            most="kept for `Retention/Logs`, the newest 1,000 for longer, 10,000 in all, and "
            "those in force or named by "
            "pools. Author, time and paths stay",
            counted_by="agents.retention.retention",
            test="tests/integration/taskqueue/test_retention.py::"
            "test_texts_of_old_versions_go_but_not_of_those_that_are_named",
        ),
        Amount(
            who="VO",
            what="web hooks",
            most=f"`Limits/WebHooks` ({_DEFAULTS.web_hooks}); of each {bounds.HOOK_DELIVERIES:,} "
            "messages wait, of "
            f"{bounds.HOOK_JOBS} jobs each",
            counted_by="pilotage.plugins.web_hooks.administration",
            test="tests/plugins/web_hooks/test_agent.py::test_a_vo_has_so_many_hooks_each_with_a_name_of_its_own",
        ),
        Amount(
            who="all / one VO",
            what="receivers served at a time",
            most="8 / 2; a try takes 10 s, after a failure the next comes later each time, for a day",
            counted_by="pilotage.plugins.web_hooks.agent",
            test="tests/plugins/web_hooks/test_agent.py::test_a_cycle_does_not_wait_for_a_receiver_without_end",
        ),
    ),
}
