"""What the OpenAPI description has beside the routes: names, summaries, parameters, error codes, examples."""

import re
from collections.abc import Iterator
from importlib import resources
from typing import Any, Final

import yaml
from fastapi.routing import APIRoute

from pilotage import extensions
from pilotage.service.error_handlers import ErrorAnswer
from requirements.job_fields import FILTERS, JOB_GROUP, STATUS

_API: Final = "/api/v1/"
_ERROR: Final = {"application/json": {"schema": {"$ref": f"#/components/schemas/{ErrorAnswer.__name__}"}}}

#: Parameters whose meaning is the same in all requests.
_PARAMETERS: Final = {
    **{name: each.words for name, each in FILTERS.items()},
    "job_id": "Number of the job.",
    "lease": "Lease of an attempt, from requestJob.",
    "pool_id": "Id of the SubmitPool: 64 hexadecimal digits.",
    "stamp": "Stamp of the pilot: the name of its batch job.",
    "ce": "Name of a CE of the site.",
    "downtime_id": "Number of the downtime.",
    "queue": "Name of a batch queue of the CE.",
    "limit": "Entries of one page.",
    "last-event-id": "Id of the last event that arrived; browsers send it when they connect again.",
    "from": "Earlier version of the configuration.",
    "idempotency-key": "The same key again returns the same answer and submits nothing; kept for 7 days.",
}

TAGS: Final = {
    "jobs": "Submit, list, show, kill, delete and reschedule jobs; their output.",
    "explanations": "Why jobs do not run, and where they would.",
    "pools": "SubmitPools: Requirements of jobs with the queues eligible for them.",
    "resources": "Sites, CEs and batch queues with their parameters.",
    "configuration": "The configuration: read, preview, change, restore.",
    "sites": "State of sites: advertisements, bans, downtimes, limits, excluded nodes.",
    "accounting": "Used resources.",
    "matcher": "For directors and pilots: pools of queues, jobs, demand.",
    "leases": "For pilots: reports about the job that they run.",
    "pilots": "For directors: pilots and their states.",
    "tokens": "Renew and revoke tokens; sign in.",
    "health": "Is the service alive and ready; metrics; public keys.",
}

#: Codes of errors by status; the operations that have a parameter, or whose name matches.
_NOT_FOUND: Final = {
    "job_id": "job_not_found",
    "lease": "lease_not_found",
    "pool_id": "pool_not_found",
    "stamp": "pilot_not_found",
    "site": "site_not_found",
    "downtime_id": "downtime_not_found",
    "queue": "queue_not_found",
}
_CODES: Final = (
    (r"leases_(start|heartbeat|finish|release|deliver_output)", 409, "stale_lease"),
    (r"leases_finish", 409, "output_missing"),
    (r"jobs_(kill|reschedule)", 409, "illegal_transition"),
    (r"jobs_reschedule", 409, "reschedule_limit"),
    (r"jobs_(submit|resubmit|resubmit_many)", 409, "idempotency_conflict"),
    (r"jobs_(list_changes|follow)", 410, "cursor_expired"),
    (r"jobs_(list_changes|follow)", 503, "busy"),
    (r"jobs_(submit|resubmit|resubmit_many)", 429, "quota_exceeded"),
    (r"pilots_exchange", 409, "secret_used"),
    (r"config_(replace|edit|rollback)|resources_(drain|resume)_queue", 409, "version_conflict"),
    (r"config_(replace|edit)", 409, "guard_failed"),
    (r"config_(replace|edit|preview|rollback)|resources_(drain|resume)_queue", 422, "config_error"),
    (r"config_(replace|edit)", 428, "precondition_required"),
    (r"sandboxes_store", 413, "too_large"),
    (r"sandboxes_store|leases_deliver_output|jobs_(submit|resubmit|resubmit_many)", 503, "storage_full"),
    (r"sandboxes_store|leases_(deliver_output|fetch_sandbox)", 503, "storage_away"),
    (r"jobs_(submit|resubmit|resubmit_many|fetch_output)", 503, "storage_away"),
    (r"site_processes_(report_process|forget)", 409, "other_process"),
    (r"sites_readmit", 404, "node_not_excluded"),
    (r"matcher_request_job", 503, "busy"),
    (r"matcher_request_job", 503, "not_in_time"),
    (r"matcher_get_submit_pools_for_queue", 404, "queue_not_found"),
)

_JOB: Final = {"Executable": "run.sh", "CPUTime": 3600, "Requirements": {"Memory": 4000}}
_QUEUE: Final = "LCG.CERN.ch/ce01.cern.ch/long"
_EDIT: Final = {"set": {"Resources/Sites/LCG.CERN.ch/MaxRAM": 4000}, "message": "new nodes"}
#: Bodies of the requests that people make most, by operation.
EXAMPLES: Final[dict[str, Any]] = {
    "jobs_submit": {"jobs": [_JOB]},
    "jobs_kill_many": {"ids": [41, 42]},
    "jobs_resubmit_many": {"ids": [41, 42]},
    "jobs_reschedule_many": {STATUS.name: ["Failed"], JOB_GROUP.name: "scan"},
    "explain_description": {"jobs": [_JOB]},
    "resources_get_eligible_nodes": {"vo": "cms", "node": "Queue", "queue": {"MaxRAM": 4000}},
    "resources_describe_queues": {"queues": [_QUEUE], "vo": "cms"},
    "resources_drain_queue": {"message": "new disks"},
    "resources_resume_queue": {"message": "the disks are there"},
    "matcher_get_submit_pools_for_queue": {"queues": [_QUEUE]},
    "matcher_request_job": {
        "Site": "LCG.CERN.ch",
        "GridCE": "ce01.cern.ch",
        "Queue": "long",
        "CPUTime": 86400,
        "NumberOfProcessors": 1,
    },
    "matcher_get_matching_task_queues": {"Site": "LCG.CERN.ch", "CPUTime": 86400},
    "leases_start": {},
    "leases_heartbeat": {"output_tail": "event 117 of 250"},
    "leases_finish": {"exit_code": 0, "status": "Done"},
    "leases_release": {},
    "config_edit": _EDIT,
    "config_preview": _EDIT,
    "config_rollback": {"version": 41, "message": "jobs went astray"},
    "sites_ban": {"reason": "cooling failed"},
    "downtimes_plan": {
        "place": "LCG.CERN.ch/ce01.cern.ch",
        "begins": "2030-05-06T07:00:00Z",
        "ends": "2030-05-06T15:00:00Z",
        "reason": "new cooling",
    },
    "sites_advertise": {"CurrentJobs": 120, "CurrentSubmittingJobs": 3},
}


def name_operation(route: APIRoute) -> str:
    """The id of an operation, by which generated clients name its function: `jobs_get`, `sites_list`."""
    path = route.path
    noun = (
        path.removeprefix(_API).split("/")[0]
        if path.startswith(_API)
        else str(next(iter(route.tags), "page"))
    )
    noun = noun.partition(".")[0].replace("-", "_")
    verb = route.name
    if verb == noun:
        verb = "get"
    verb = re.sub(rf"_({noun}|{noun.removesuffix('s')})$", "", verb.removeprefix(f"{noun}_"))
    verb = re.sub(r"^show(?=_|$)", "get", verb)
    return f"{noun}_{verb}"


def complete(document: dict[str, Any]) -> dict[str, Any]:
    """Add summaries, descriptions of parameters, error codes and examples to a description."""
    answers = read_answers()
    tags = {**TAGS, **extensions.list_tags()}
    document["tags"] = [{"name": name, "description": text} for name, text in tags.items()]
    for path, operations in document["paths"].items():
        for operation in operations.values():
            _summarize(operation)
            for each in operation.get("parameters", ()):
                is_described = "description" in each or "description" in each.get("schema", {})
                if not is_described and each["name"] in _PARAMETERS:
                    each["description"] = _PARAMETERS[each["name"]]
            if path.startswith(_API) or operation["operationId"] == "health_metrics":
                _list_errors(operation)
            if (example := EXAMPLES.get(operation["operationId"])) is not None:
                operation["requestBody"]["content"]["application/json"]["example"] = example
            if (answer := answers.get(operation["operationId"])) is not None:
                accepted = next(each for status, each in operation["responses"].items() if status[0] == "2")
                accepted["content"]["application/json"]["example"] = answer
    return document


def read_answers() -> dict[str, Any]:
    """Examples of answers by operation, for the calls that people make most."""
    with resources.files("pilotage.service").joinpath("response_examples.yaml").open() as file:
        answers: dict[str, Any] = yaml.safe_load(file)
    return answers


def _summarize(operation: dict[str, Any]) -> None:
    """Make the first sentence of the description the summary."""
    first = " ".join(operation["description"].split("\n\n")[0].split())
    sentence = re.split(r"\.(?: |$)|; ", first, maxsplit=1)[0]
    head = sentence.partition(": ")[0]
    is_whole = head.count("`") % 2 == 0 and head.count("(") == head.count(")")
    operation["summary"] = head if is_whole else sentence


def _list_errors(operation: dict[str, Any]) -> None:
    responses = operation["responses"]
    found: dict[int, list[str]] = {}
    for status, code in _find_codes(operation):
        found.setdefault(status, []).append(code)
    for status, codes in sorted(found.items()):
        listed = ", ".join(f"`{code}`" for code in codes)
        responses[str(status)] = {"description": f"`error.code` is {listed}.", "content": _ERROR}


def _find_codes(operation: dict[str, Any]) -> Iterator[tuple[int, str]]:
    parameters = [each["name"] for each in operation.get("parameters", ()) if each["in"] == "path"]
    if operation.get("parameters") or "requestBody" in operation:
        yield 400, "invalid_request"
    yield from ((401, "not_authenticated"), (403, "not_allowed"))
    codes = {**_NOT_FOUND, **extensions.list_not_found()}
    missing = [code for name, code in codes.items() if name in parameters]
    if missing:
        yield 404, missing[-1]
    if "requestBody" in operation:
        yield 413, "body_too_large"
    yield from ((429, "too_many_requests"), (503, "unavailable"))
    for pattern, status, code in _CODES:
        if re.fullmatch(pattern, operation["operationId"]):
            yield status, code
