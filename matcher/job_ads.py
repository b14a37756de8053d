"""A job as the expression of a site or queue sees it: its description, and what we know of it."""

import json
from collections.abc import Mapping
from functools import lru_cache

from matcher.applicants import Applicant
from requirements import job_attributes
from requirements.values import Value, fold
from taskqueue import placeholders
from taskqueue.choosing import Waiting

Job = Waiting | Applicant


def of(job: Job) -> Mapping[str, Value]:
    """The attributes of a waiting job under `TARGET.`; what is no plain value is left out."""
    known = {
        **identity(vo=job.vo, owner=job.owner, owner_group=job.owner_group),
        "JobID": job.job_id,
        "JobName": job.job_name,
        "JobType": job.job_type,
        "JobGroup": job.job_group,
        "Priority": job.priority,
    }
    ours = {fold(name) for name in known}
    stated = _described(job.body, job.parameters)
    return {name: value for name, value in stated.items() if fold(name) not in ours} | {
        name: value for name, value in known.items() if value is not None
    }


def identity(*, vo: str, owner: str, owner_group: str) -> Mapping[str, Value]:
    """Whose a job is, in our names and in those of gLite's checks."""
    return {
        "VO": vo,
        "VirtualOrganisation": vo,
        "Owner": owner,
        "CertificateSubject": owner,
        "OwnerGroup": owner_group,
    }


@lru_cache(maxsize=1024)
def _described(body: str, parameters: str | None) -> Mapping[str, Value]:
    filled = placeholders.fill(json.loads(body), json.loads(parameters) if parameters else None)
    return job_attributes.of_description(filled)
