"""The resource tree: eligible nodes, and parameters of queues."""

from typing import Annotated

from fastapi import APIRouter, Query

from cs_config.classes import queue_selection
from cs_config.tree.address import QueueAddress
from pilotage.service import configuring
from pilotage.service.auth.access import EVERY_ROLE, allow
from pilotage.service.auth.callers import Caller, Capability, Role
from pilotage.service.models.config import NewVersion
from pilotage.service.models.pools import NodeSelection, NodeTree, ParameterAnswer, QueueAnswer, Switch
from pilotage.service.routing import SMALL, ApiRoute, CallerOf, PartsOf, QueueOf, takes_at_most
from requirements.errors import InvalidRequest, NotAllowed, Problem
from requirements.values import fold

router = APIRouter(prefix="/resources", tags=["resources"], route_class=ApiRoute)


@router.post("/getEligibleNodes")
@allow(*EVERY_ROLE, needs=Capability.READ)
def get_eligible_nodes(parts: PartsOf, caller: CallerOf, body: NodeSelection) -> NodeTree:
    """Select the queues that match both conditions, as a tree."""
    vo = _vo(caller, body.vo)
    if vo is None:
        raise InvalidRequest(
            [Problem(path="vo", message="is required, since the token does not have exactly one VO")]
        )
    tree = queue_selection.get_eligible_nodes(
        parts.live.current, vo=vo, node=body.node, ce=body.ce, queue=body.queue
    )
    return NodeTree(tree)


@router.get("/queues/{site}/{ce}/{queue}")
@allow(*EVERY_ROLE)
def show_queue(
    parts: PartsOf,
    caller: CallerOf,
    address: QueueOf,
    vo: Annotated[str | None, Query()] = None,
) -> QueueAnswer:
    """Show the effective parameters of a queue for a VO, each with its origin."""
    config = parts.live.current
    config.require(address)
    whose = _vo(caller, vo)
    parameters = {
        each.name: ParameterAnswer(
            value=each.value, level=each.level, path=each.path, file=each.file, line=each.line
        )
        for each in config.parameters(address, whose or "").values()
    }
    return QueueAnswer(
        queue=str(address),
        vo=whose,
        usable=config.usable(address, whose or ""),
        config_version=config.version,
        parameters=parameters,
    )


@router.post("/queues/{site}/{ce}/{queue}/drain")
@allow(Role.SITE_ADMIN)
@takes_at_most(SMALL)
def drain_queue(parts: PartsOf, caller: CallerOf, address: QueueOf, body: Switch | None = None) -> NewVersion:
    """Drain a queue by `Enabled: false`: it gets no new jobs, running jobs go on to their end."""
    return _switch(parts, caller, address, body, drained=True)


@router.post("/queues/{site}/{ce}/{queue}/resume")
@allow(Role.SITE_ADMIN)
@takes_at_most(SMALL)
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


def _vo(caller: Caller, named: str | None) -> str | None:
    """The VO of the request; None: no VO in particular."""
    if named is None:
        return caller.vo
    vo = fold(named)
    if not caller.may_read(vo):
        raise NotAllowed(f"{named!r:.80} is not a VO of the token")
    return vo
