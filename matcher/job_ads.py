"""A job as the expression of a site sees it: its description, and what we know of it."""

import json
from collections.abc import Mapping

from matcher.applicants import Applicant
from requirements.errors import InvalidInput
from requirements.values import Value, as_value, fold
from taskqueue.choosing import Waiting

Job = Waiting | Applicant


def of(job: Job) -> Mapping[str, Value]:
    """The attributes of a waiting job under `TARGET.`; what is no plain value is left out."""
    ad: dict[str, Value] = {}
    known = {
        "JobID": job.job_id,
        "VO": job.vo,
        "Owner": job.owner,
        "OwnerGroup": job.owner_group,
        "JobName": job.job_name,
        "JobType": job.job_type,
        "JobGroup": job.job_group,
        "Priority": job.priority,
    }
    ours = {fold(name) for name in known}
    for name, raw in {**json.loads(job.body), **known}.items():
        if raw is None or (name not in known and fold(name) in ours):
            continue
        try:
            ad[name] = as_value(raw, name)
        except InvalidInput:
            continue
    return ad
