"""Web hooks of VOs: make, list, test and remove them, and read their deliveries."""

import re
from collections.abc import Collection
from datetime import datetime
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import Field

from cs_config.options import bounds
from cs_config.options.operations import options_for
from pilotage.plugins.web_hooks import stored_hooks
from pilotage.plugins.web_hooks.sender import HookNetworks, RefusedAddressError
from pilotage.plugins.web_hooks.settings import HookSettings
from pilotage.plugins.web_hooks.stored_hooks import EVENTS, Delivery, Event, WebHook, WebHookNotFound
from pilotage.service.auth import audit
from pilotage.service.auth.callers import Caller, Role
from pilotage.service.models import AnswerModel, StrictInput
from pilotage.service.services import Services
from requirements.errors import InvalidRequest, NotAllowed, Problem
from requirements.values import fold
from taskqueue.db import database

#: One mailbox, without headers of a message.
_MAIL = re.compile(r"mailto:[A-Za-z0-9._+'-]{1,64}@[A-Za-z0-9-]+(\.[A-Za-z0-9-]+)*")
_Name = Annotated[str, Field(max_length=255)]


class NewWebHook(StrictInput):
    """A web hook to make."""

    vo: str | None = Field(default=None, max_length=255, description="Default: the token's VO.")
    name: str = Field(min_length=1, max_length=bounds.HOOK_NAME, description="Unique in the VO.")
    url: str = Field(
        max_length=bounds.HOOK_URL, description="https or mailto address to which messages are sent."
    )
    events: list[Event] = Field(
        default=[Event.JOB_ENDED],
        min_length=1,
        max_length=10,
        description="Kinds of events that are reported.",
    )
    owner: _Name = Field(default="", description="Only the jobs of this owner; empty: all of the VO.")
    job_group: _Name = Field(default="", description="Only the jobs of this `JobGroup`; empty: all.")


class WebHookAnswer(AnswerModel):
    """A web hook."""

    hook_id: int
    vo: str
    name: str
    url: str
    events: list[Event]
    owner: str
    job_group: str
    created_by: str
    created_at: datetime
    failures: int = Field(description="Tries since the last that succeeded.")
    next_try_at: datetime | None = Field(description="Time of the next try after a failed one.")
    waiting: int = Field(description="Deliveries to be sent.")
    dropped: int = Field(description="Deliveries for which there was no place.")


class MadeWebHook(WebHookAnswer):
    """A new web hook with its secret, which is shown only now."""

    secret: str = Field(description="Signs the deliveries, in the form of Standard Webhooks.")


class DeliveryAnswer(AnswerModel):
    """A message to a web hook."""

    delivery_id: int = Field(description="The message has the id `msg_<delivery_id>`.")
    event: Event
    state: str = Field(description="`waiting`, `delivered` or `given up`.")
    created_at: datetime
    tries: int
    answer: str = Field(description="Answer to the last try: an HTTP status, or the error.")
    ended_at: datetime | None


def make(parts: Services, caller: Caller, wanted: NewWebHook) -> MadeWebHook:
    """Make a web hook of a VO, and send it a test."""
    vo, now = _vo(caller, wanted.vo), parts.clock()
    _check(wanted, parts.settings_of(HookSettings))
    most = options_for(parts.live.current, vo).limits.web_hooks
    values = wanted.model_dump(exclude={"vo"})
    with database.writing(parts.engine) as conn:
        hook = stored_hooks.create(conn, vo=vo, **values, created_by=caller.subject, most=most, now=now)
        stored_hooks.add_test(conn, hook, now=now)
    audit.done(caller, "make web hook", vo=vo, name=hook.name, url=hook.url)
    return MadeWebHook.model_validate(hook)


def _vo(caller: Caller, named: str | None) -> str:
    vo = caller.vo if named is None else fold(named)
    if vo is None:
        raise InvalidRequest([Problem(path="vo", message="is required, the token has no VO")])
    if not _administers(caller, vo):
        raise NotAllowed(f"the token is not for web hooks of {vo}")
    return vo


def _administers(caller: Caller, vo: str) -> bool:
    return caller.is_operator or any(one.role is Role.VO_ADMIN and vo in one.vos for one in caller.each)


def _check(wanted: NewWebHook, settings: HookSettings) -> None:
    problems = []
    try:
        parts = urlsplit(wanted.url)
        is_mail = _MAIL.fullmatch(wanted.url) is not None
        is_address = is_mail or (
            parts.scheme in ("https", "http") and bool(parts.hostname) and parts.port != 0
        )
    except ValueError:
        is_address = False
    if not is_address or not all("!" <= sign <= "~" for sign in wanted.url):
        problems.append(
            Problem(path="url", message=f"{wanted.url!r:.200} is neither an https nor a mailto address")
        )
    elif parts.username is not None or parts.password is not None:
        problems.append(Problem(path="url", message="may contain no password: messages are signed instead"))
    elif not is_mail and (why := _find_refusal(wanted.url, settings)):
        problems.append(Problem(path="url", message=why))
    if Event.TEST in wanted.events:
        message = f"{Event.TEST} is sent to every hook; there are {', '.join(EVENTS)}"
        problems.append(Problem(path="events", message=message))
    if problems:
        raise InvalidRequest(problems)


def _find_refusal(url: str, settings: HookSettings) -> str | None:
    """Why the agent would send nothing to the address in a URL; None: it would, or there is a name."""
    networks = HookNetworks.read(
        allowed=settings.web_hook_networks, refused=settings.web_hook_refused_networks
    )
    try:
        networks.check_literal(url)
    except RefusedAddressError as refused:
        return str(refused)
    return None


def list_hooks(parts: Services, caller: Caller, vos: Collection[str] | None = None) -> list[WebHookAnswer]:
    """The hooks of the VOs that the caller administers, or of some of them."""
    with database.reading(parts.engine) as conn:
        found = stored_hooks.list_hooks(conn, None if vos is None else frozenset(map(fold, vos)))
    return [_answer(each) for each in found if _administers(caller, each.vo)]


def show(parts: Services, caller: Caller, hook_id: int) -> WebHookAnswer:
    """One hook; `WebHookNotFound` also for one of another VO."""
    return _answer(_get(parts, caller, hook_id))


def list_deliveries(parts: Services, caller: Caller, hook_id: int, *, most: int) -> list[DeliveryAnswer]:
    """The latest deliveries of a hook, newest first."""
    _get(parts, caller, hook_id)
    with database.reading(parts.engine) as conn:
        found: list[Delivery] = stored_hooks.list_deliveries(conn, hook_id, most=most)
    return [DeliveryAnswer.model_validate(each) for each in found]


def send_test(parts: Services, caller: Caller, hook_id: int) -> None:
    """Send a test as soon as possible."""
    hook = _get(parts, caller, hook_id)
    with database.writing(parts.engine) as conn:
        stored_hooks.add_test(conn, hook, now=parts.clock())


def remove(parts: Services, caller: Caller, hook_id: int) -> None:
    """Delete a hook with its deliveries."""
    hook = _get(parts, caller, hook_id)
    with database.writing(parts.engine) as conn:
        stored_hooks.remove(conn, hook_id)
    audit.done(caller, "remove web hook", vo=hook.vo, name=hook.name, url=hook.url)


def _get(parts: Services, caller: Caller, hook_id: int) -> WebHook:
    with database.reading(parts.engine) as conn:
        hook = stored_hooks.get(conn, hook_id)
    if not _administers(caller, hook.vo):
        raise WebHookNotFound(hook_id)
    return hook


def _answer(hook: WebHook) -> WebHookAnswer:
    return WebHookAnswer.model_validate(hook)
