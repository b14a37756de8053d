"""The resource tree: eligible nodes, and parameters of queues."""

from typing import Annotated, Any

from fastapi import APIRouter, Query
from pydantic import BaseModel, Field, RootModel

from cs_config.classes import queue_class_index
from cs_config.tree.address import QueueAddress
from matcher.index import place_pools
from pilotage.service import configuring
from pilotage.service.auth.access import EVERY_ROLE, allow
from pilotage.service.auth.callers import Caller, Capability, Role
from pilotage.service.models import AnswerModel, ListPage, StrictInput
from pilotage.service.models.config import NewVersion
from pilotage.service.models.matching import MOST_QUEUES
from pilotage.service.routing import SMALL, ApiRoute, CallerOf, PartsOf, QueueOf
from requirements.errors import InvalidRequest, NotAllowed, Problem
from requirements.values import Value, fold

router = APIRouter(prefix="/resources", tags=["resources"], route_class=ApiRoute)


class NodeSelection(StrictInput):
    """Filter of nodes of the resource tree."""

    vo: str | None = Field(default=None, description="VO whose parameters apply; default: the token's.")
    node: str = Field(default="Queue", description="`Site`, `CE` or `Queue`.")
    ce: dict[str, Any] | str = Field(
        default_factory=dict, description="Required values, or an expression, of the CE's parameters."
    )
    queue: dict[str, Any] | str = Field(
        default_factory=dict, description="Required values, or an expression, of the queue's parameters."
    )


class NodeTree(RootModel[dict[str, Any]]):
    """Site → CE → queue → its effective parameters; site → CE → parameters for CEs, and so on."""


class ParameterAnswer(AnswerModel):
    """An effective parameter and its origin."""

    value: Value
    level: str = Field(description="`Site`, `CE` or `Queue`; with `VOs/<vo>` for the value of a VO.")
    path: str
    file: str = Field(description="File in which it is written; `version 7`: an edit outside of files.")
    line: int = Field(description="0: not of a file.")


class QueueAnswer(BaseModel):
    """A queue with its parameters for a VO."""

    queue: str = Field(description="`Site/CE/Queue`.")
    vo: str | None
    usable: bool = Field(description="Enabled, and open to the VO.")
    config_version: int
    parameters: dict[str, ParameterAnswer]
    expired: dict[str, ParameterAnswer] = Field(description="Parameters whose values have expired.")


class ListedQueue(BaseModel):
    """A queue with the values of its parameters."""

    queue: str = Field(description="`Site/CE/Queue`.")
    parameters: dict[str, Value]


class QueuePage(BaseModel):
    """Queues by site, CE and name."""

    queues: list[ListedQueue]
    next: str | None = Field(description="The `after` of the next page; null: this was the last.")


class NamedQueues(StrictInput):
    """Queues to describe."""

    queues: list[str] = Field(min_length=1, max_length=MOST_QUEUES, description="`Site/CE/Queue` of each.")
    vo: str = Field(default="", description="Whose parameters; empty: those that hold for every VO.")


class DescribedQueue(ListedQueue):
    """A queue with the values of its parameters for a VO."""

    usable: bool = Field(description="Enabled, and open to the VO.")


class DescribedQueues(BaseModel):
    """The requested queues as they are for a VO."""

    config_version: int
    queues: list[DescribedQueue]
    unknown: list[str]


class QueueQuery(StrictInput, ListPage):
    """Filter of queues."""

    vo: str | None = Field(default=None, description="Only queues that this VO may use now, as it gets them.")
    site: str | None = None
    after: str | None = Field(default=None, description="`next` of the page before.")


class Switch(StrictInput):
    """Draining or resuming a queue."""

    message: str = Field(
        default="", max_length=1000, description="Reason of the change, for the history of the configuration."
    )


@router.post("/getEligibleNodes")
@allow(*EVERY_ROLE, needs=Capability.READ, is_expensive=True)
def get_eligible_nodes(parts: PartsOf, caller: CallerOf, body: NodeSelection) -> NodeTree:
    """Select the sites, CEs or queues that match both conditions, as a tree.

    A site admin selects for every VO, at the own sites.
    """
    sites = None
    if body.vo and caller.own_sites and not caller.may_read(fold(body.vo)):
        vo: str | None = fold(body.vo)
        sites = caller.own_sites
    else:
        vo = _vo(caller, body.vo, site=None)
    if vo is None:
        raise InvalidRequest(
            [Problem(path="vo", message="is required, since the token does not have exactly one VO")]
        )
    tree = queue_class_index.get_eligible_nodes(
        parts.live.current, vo=vo, node=body.node, ce=body.ce, queue=body.queue, sites=sites
    )
    return NodeTree(tree)


@router.get("/queues")
@allow(*EVERY_ROLE)
def list_queues(parts: PartsOf, caller: CallerOf, query: Annotated[QueueQuery, Query()]) -> QueuePage:
    """List the queues with their parameters, without a VO those that hold for every VO."""
    config = configuring.editor_of(parts, caller).read(in_force=True)
    vo = _vo(caller, query.vo or "", site=query.site) or ""
    start = QueueAddress.parse(query.after) if query.after else None
    found = [
        each
        for each in config.addresses
        if (start is None or each > start)
        and query.site in (None, each.site)
        and (not vo or config.usable(each, vo))
    ]
    page, last = query.cut(found)
    queues = [
        ListedQueue(
            queue=str(each), parameters={one.name: one.value for one in config.parameters(each, vo).values()}
        )
        for each in page
    ]
    return QueuePage(queues=queues, next=str(last) if last else None)


@router.post("/queues")
@allow(*EVERY_ROLE)
def describe_queues(parts: PartsOf, caller: CallerOf, body: NamedQueues) -> DescribedQueues:
    """Show the values of the effective parameters of many queues."""
    config = configuring.editor_of(parts, caller).read(in_force=True)
    vo = _vo(caller, body.vo, site=None) or ""
    known, unknown = place_pools.find_queues(body.queues, config)
    return DescribedQueues(
        config_version=config.version,
        queues=[
            DescribedQueue(
                queue=name,
                usable=config.usable(address, vo),
                parameters={each.name: each.value for each in config.parameters(address, vo).values()},
            )
            for name, address in known.items()
        ],
        unknown=[str(each.name) for each in unknown],
    )


@router.get("/queues/{site}/{ce}/{queue}")
@allow(*EVERY_ROLE)
def show_queue(
    parts: PartsOf,
    caller: CallerOf,
    address: QueueOf,
    vo: Annotated[str | None, Query()] = None,
) -> QueueAnswer:
    """Show the effective parameters of a queue for a VO (empty: for every VO), each with its origin."""
    config = configuring.editor_of(parts, caller).read(in_force=True)
    config.require(address)
    whose = _vo(caller, vo, site=address.site)
    parameters, expired = (
        {each.name: ParameterAnswer.model_validate(each) for each in found.values()}
        for found in (config.parameters(address, whose or ""), config.expired(address, whose or ""))
    )
    return QueueAnswer(
        queue=str(address),
        vo=whose,
        usable=config.usable(address, whose or ""),
        config_version=config.version,
        parameters=parameters,
        expired=expired,
    )


@router.post("/queues/{site}/{ce}/{queue}/drain")
@allow(Role.SITE_ADMIN, most_bytes=SMALL)
def drain_queue(parts: PartsOf, caller: CallerOf, address: QueueOf, body: Switch | None = None) -> NewVersion:
    """Drain a queue by `Enabled: false`: it gets no new jobs, running jobs go on to their end."""
    return _switch(parts, caller, address, body, drained=True)


@router.post("/queues/{site}/{ce}/{queue}/resume")
@allow(Role.SITE_ADMIN, most_bytes=SMALL)
def resume_queue(
    parts: PartsOf, caller: CallerOf, address: QueueOf, body: Switch | None = None
) -> NewVersion:
    """Undo `drain`."""
    return _switch(parts, caller, address, body, drained=False)


def _switch(
    parts: PartsOf, caller: Caller, address: QueueAddress, body: Switch | None, *, drained: bool
) -> NewVersion:
    message = body.message if body else ""
    editor = configuring.editor_of(parts, caller)
    return NewVersion(version=editor.switch_queue(address, drained=drained, message=message).version)


def _vo(caller: Caller, named: str | None, *, site: str | None) -> str | None:
    """The VO of the request; None: no VO in particular. At an own site it may be any VO."""
    if named is None:
        return caller.vo
    vo = fold(named)
    if vo and not caller.may_read(vo) and (site is None or not caller.looks_after(site)):
        raise NotAllowed(f"{named!r:.80} is not a VO of the token")
    return vo or None
