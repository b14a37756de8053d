"""The configuration: reading it, replacing it, its versions."""

from dataclasses import asdict
from typing import Annotated

from fastapi import APIRouter, Header, Query, Response

from cs_config import versions, visible, yaml_text
from pilotage.service import access, audit
from pilotage.service.api_route import ApiRoute, CallerOf, PartsOf
from pilotage.service.callers import Caller
from pilotage.service.models.config import (
    ConfigAnswer,
    NewConfig,
    NewVersion,
    Rollback,
    VersionAnswer,
    Versions,
)
from pilotage.service.parts import Parts
from pilotage.service.refusals import PreconditionRequired
from requirements.errors import InvalidRequest
from requirements.problem import Problem
from taskqueue import database

router = APIRouter(prefix="/config", tags=["configuration"], route_class=ApiRoute)

IfMatch = Annotated[str | None, Header(description="The version that the change starts from.")]


@router.get("")
@access.allow(*access.EVERY_ROLE)
def show(parts: PartsOf, caller: CallerOf, response: Response) -> ConfigAnswer:
    """Show the configuration in force; of VOs that are not the caller's nothing is shown."""
    with database.reading(parts.engine) as conn:
        parts.live.refresh(conn)  # a change that starts from this answer should not find it outdated
    config = parts.live.current
    response.headers["ETag"] = f'"{config.version}"'
    if caller.is_operator:
        return ConfigAnswer(
            version=config.version, config=dict(config.tree), text=config.source, source=config.file
        )
    return ConfigAnswer(version=config.version, config=dict(visible.tree(config, caller.vos)))


@router.put("")
@access.allow()
def replace(parts: PartsOf, caller: CallerOf, body: NewConfig, if_match: IfMatch = None) -> NewVersion:
    """Replace the whole configuration; one that is wrong changes nothing."""
    expected = _expected(if_match)
    if expected is None:
        raise PreconditionRequired("this needs the header If-Match with the version that it starts from")
    return _store(parts, caller, _text(body), message=body.message, source=body.source, expected=expected)


@router.get("/versions")
@access.allow()
def history(parts: PartsOf, limit: Annotated[int, Query(ge=1, le=1000)] = 100) -> Versions:
    """List the latest versions, the newest first."""
    with database.reading(parts.engine) as conn:
        found = versions.history(conn, limit)
    return Versions(versions=[VersionAnswer.model_validate(asdict(each)) for each in found])


@router.post("/rollback")
@access.allow()
def rollback(parts: PartsOf, caller: CallerOf, body: Rollback, if_match: IfMatch = None) -> NewVersion:
    """Make an older version's text the newest version."""
    with database.reading(parts.engine) as conn:
        text = versions.text_of(conn, body.version)
    message = f"back to version {body.version}"
    return _store(parts, caller, text, message=message, source="api", expected=_expected(if_match))


def _store(
    parts: Parts, caller: Caller, text: str, *, message: str, source: str, expected: int | None
) -> NewVersion:
    with database.writing(parts.engine) as conn:
        version = versions.store(
            conn,
            text,
            author=caller.user or caller.subject,
            message=message,
            source=source,
            expected=expected,
            now=parts.clock(),
        )
    with database.reading(parts.engine) as conn:
        parts.live.refresh(conn)
    audit.done(caller, "configuration", version=version, message=message)
    return NewVersion(version=version)


def _text(body: NewConfig) -> str:
    if (body.config is None) == (body.text is None):
        raise InvalidRequest([Problem(path="body", message="needs exactly one of config and text")])
    return body.text if body.text is not None else yaml_text.to_yaml(body.config or {})


def _expected(if_match: str | None) -> int | None:
    """The version in `If-Match: 7` or `"7"`; None without the header.

    Raises:
        InvalidRequest: It is no version.
    """
    if if_match is None:
        return None
    number = if_match.strip().strip('"')
    if not (number.isascii() and number.isdigit() and len(number) <= 9):
        message = f"{if_match!r:.80} is no version, which is a number such as 7"
        raise InvalidRequest([Problem(path="If-Match", message=message)])
    return int(number)
