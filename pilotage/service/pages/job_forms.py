"""Filters of jobs as forms and addresses say them."""

from collections.abc import Mapping
from dataclasses import dataclass

from pilotage.service.callers import Role
from pilotage.service.models.job_filter import JobFilter

_ALL = frozenset({Role.USER, Role.VO_ADMIN, Role.OPERATOR})
_ADMINS = _ALL - {Role.USER}


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """One condition in the form."""

    name: str  #: of `JobFilter`
    title: str
    hint: str = ""
    roles: frozenset[Role] = _ALL  #: that have a choice
    is_rare: bool = False  #: asked for now and then


FIELDS = (
    Field(name="ids", title="Job ids", hint="17, 18"),
    Field(name="job_name", title="Name"),
    Field(name="owner", title="Owner", roles=_ADMINS),
    Field(name="owner_group", title="Owner group", hint="cms_user", is_rare=True),
    Field(name="vo", title="VO", roles=frozenset({Role.OPERATOR})),
    Field(name="site", title="Site", hint="LCG.CERN.ch"),
    Field(name="pool", title="SubmitPool", hint="its id", is_rare=True),
    Field(name="job_type", title="Type", is_rare=True),
    Field(name="job_group", title="Job group", is_rare=True),
    Field(name="minor_status", title="Minor status", hint="No eligible queue"),
)


def stated(given: object) -> object:
    """What a form says without its empty fields; several ids may stand apart by spaces."""
    if not isinstance(given, Mapping):
        return given
    found = {name: _values(name, value) for name, value in given.items()}
    return {name: value for name, value in found.items() if value not in ("", [], None)}


def query_of(which: JobFilter) -> list[tuple[str, str]]:
    """The filter as the query of an address."""
    said = which.model_dump(mode="json", include=set(JobFilter.model_fields), exclude_none=True)
    return [
        (name, ",".join(map(str, value)) if isinstance(value, list) else value)
        for name, value in said.items()
    ]


def _values(name: str, value: object) -> object:
    if isinstance(value, list):
        return [each for each in (_values(name, one) for one in value) if each != ""]
    if not isinstance(value, str):
        return value
    return ",".join(value.replace(",", " ").split()) if name == "ids" else value.strip()
