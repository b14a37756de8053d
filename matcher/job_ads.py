"""A job as the expression of a site or queue sees it: its description, and what we know of it."""

import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from sqlalchemy import Row

from matcher.applicants import Applicant
from requirements import job_attributes
from requirements.values import Value, fold
from taskqueue import placeholders
from taskqueue.choosing import Waiting

Job = Waiting | Applicant


def of(job: Job) -> Mapping[str, Value]:
    """The attributes of a waiting job by folded name; what is no plain value is left out."""
    known = {"jobid": job.job_id, "jobname": job.job_name or None, "priority": job.priority}
    ad = of_kind(job, described(job.body, job.parameters))
    return {**ad, **{name: value for name, value in known.items() if value is not None}}


def of_kind(kind: Job | Row[Any], stated: Mapping[str, Value]) -> dict[str, Value]:
    """The same without what tells jobs of one kind apart: their number, name and priority."""
    known = {"jobtype": kind.job_type, "jobgroup": kind.job_group}
    whose = identity(vo=kind.vo, owner=kind.owner, owner_group=kind.owner_group)
    return {**stated, **whose, **{name: value for name, value in known.items() if value}}


def identity(*, vo: str, owner: str, owner_group: str) -> Mapping[str, Value]:
    """Whose a job is, in our names and in those of gLite's checks."""
    return {
        "vo": vo,
        "virtualorganisation": vo,
        "owner": owner,
        "certificatesubject": owner,
        "ownergroup": owner_group,
    }


@lru_cache(maxsize=1024)
def described(body: str, parameters: str | None) -> Mapping[str, Value]:
    """What a stored description says, its placeholders filled, by folded name."""
    filled = placeholders.fill(json.loads(body), json.loads(parameters) if parameters else None)
    return {fold(name): value for name, value in job_attributes.of_description(filled).items()}
