"""What stands in the navigation: the pages that say so, for those who may use them."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from fastapi import APIRouter
from fastapi.routing import APIRoute

from pilotage.service import access
from pilotage.service.callers import Role

_Endpoint = TypeVar("_Endpoint", bound=Callable[..., Any])
_ATTRIBUTE = "navigation_title"


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A page that one can go to from every other."""

    title: str
    path: str
    roles: frozenset[Role]  #: that may use it

    def is_around(self, path: str) -> bool:
        """Whether the page at `path` is this one or lies below it."""
        return path == self.path or (self.path != "/" and path.startswith(f"{self.path}/"))


def in_navigation(title: str) -> Callable[[_Endpoint], _Endpoint]:
    """Have the page stand in the navigation, in the order in which routers are registered."""

    def mark(endpoint: _Endpoint) -> _Endpoint:
        setattr(endpoint, _ATTRIBUTE, title)
        return endpoint

    return mark


def entries(routers: Iterable[APIRouter]) -> tuple[Entry, ...]:
    """What the pages of these routers say."""
    routes = [route for router in routers for route in router.routes if isinstance(route, APIRoute)]
    return tuple(
        Entry(title=title, path=route.path, roles=access.allowed_roles(route.endpoint))
        for route in routes
        if (title := getattr(route.endpoint, _ATTRIBUTE, None))
    )


def visible(known: Sequence[Entry], role: Role) -> list[Entry]:
    """Those that the role may use."""
    return [entry for entry in known if role in entry.roles]
