"""Routes and context of pages: sign-in, navigation, CSRF protection, rendering."""

import hmac
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, ClassVar, TypeVar
from urllib.parse import urlencode

from fastapi import APIRouter, Depends, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, RedirectResponse, Response
from fastapi.routing import APIRoute
from starlette.datastructures import FormData

from cs_config.editing.editor import ConfigEditor
from pilotage.service import configuring, error_statuses, routing
from pilotage.service.auth import access
from pilotage.service.auth.callers import Caller, Role
from pilotage.service.auth.tokens import BearerToken
from pilotage.service.http_errors import ClockBehind, ForgedRequest, NotAuthenticated, describe_refusal
from pilotage.service.models import ListPage
from pilotage.service.pages import sessions, templating
from pilotage.service.routing import StrictRequest
from pilotage.service.services import Services
from requirements.errors import InvalidInput, InvalidRequest, NotFound, PilotageError, Problem

_Entry = TypeVar("_Entry")
_Endpoint = TypeVar("_Endpoint", bound=Callable[..., Any])
_ATTRIBUTE = "navigation_title"


@dataclass(frozen=True, slots=True, kw_only=True)
class NavigationEntry:
    """A link of the navigation."""

    title: str
    path: str
    roles: frozenset[Role]  #: roles that may use it

    def is_around(self, path: str) -> bool:
        """Whether `path` is this page or below it."""
        return path == self.path or (self.path != "/" and path.startswith(f"{self.path}/"))


def add_to_navigation(title: str) -> Callable[[_Endpoint], _Endpoint]:
    """List the page in the navigation, in the order in which routers are registered."""

    def mark(endpoint: _Endpoint) -> _Endpoint:
        setattr(endpoint, _ATTRIBUTE, title)
        return endpoint

    return mark


def entries(routers: Iterable[APIRouter]) -> tuple[NavigationEntry, ...]:
    """The navigation of the pages of these routers."""
    routes = [route for router in routers for route in router.routes if isinstance(route, APIRoute)]
    return tuple(
        NavigationEntry(title=title, path=route.path, roles=access.allowed_roles(route.endpoint))
        for route in routes
        if (title := getattr(route.endpoint, _ATTRIBUTE, None))
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusedForm:
    """A form to be corrected: shown again with what was typed, and what is wrong beside the fields."""

    name: str  #: of the form on its page
    values: Mapping[str, Any]  #: as typed, by field
    error: PilotageError
    _shown: set[str] = field(default_factory=set, init=False)  #: fields with what is wrong beside them

    @property
    def problems(self) -> Mapping[str, str]:
        """What is wrong, by field."""
        found: dict[str, str] = {}
        for each in _list_problems(self.error):
            found.setdefault(each.path, str(each).removeprefix(f"{each.path}: "))
        return found

    def show(self, name: str) -> str:
        """What is wrong with a field, for the place beside it."""
        self._shown.add(name)
        return self.problems[name]

    @property
    def rest(self) -> str:
        """What is wrong, but not shown beside a field so far; empty: nothing is."""
        if not (problems := _list_problems(self.error)):
            return str(self.error)
        left = [each for each in problems if each.path not in self._shown]
        return str(InvalidRequest(left)) if left else ""


def _list_problems(error: PilotageError) -> Sequence[Problem]:
    return error.problems if isinstance(error, InvalidInput) else ()


_FILTER = "shows_filter"


def shows_filter(endpoint: _Endpoint) -> _Endpoint:
    """Show the page with the form of its query, as it was typed, where a value of that is refused.

    The page takes the form from `refused_filter`, and leaves out what the form selects.
    """
    setattr(endpoint, _FILTER, True)
    return endpoint


FIELD = "csrf"
HEADER = "x-csrf-token"

#: Pages depend on the session and must not be cached.
_HEADERS = {"Cache-Control": "no-store", "Vary": "Cookie, HX-Request"}


@dataclass(frozen=True, slots=True, kw_only=True)
class PageUrl:
    """The address of the page, which holds all of its state."""

    path: str
    query: tuple[tuple[str, str], ...]  #: in their order; a name may come several times

    def __str__(self) -> str:
        return self.with_query()

    def with_query(self, **changes: object) -> str:
        """The address with other values in its query; None removes a name."""
        query = [(name, value) for name, value in self.query if name not in changes]
        query += [(name, str(value)) for name, value in changes.items() if value is not None]
        return f"{self.path}?{urlencode(query)}" if query else self.path


@dataclass(frozen=True, slots=True, kw_only=True)
class PageContext:
    """A request for a page by a person who is signed in."""

    request: Request
    parts: Services
    token: BearerToken  #: of the session
    csrf: str  #: token that forms must send back
    refused: RefusedForm | None = None  #: the form of the query, if that is refused

    @property
    def caller(self) -> Caller:
        """The person."""
        return self.token.caller

    @property
    def editor(self) -> ConfigEditor:
        """The configuration with the person's rights."""
        return configuring.editor_of(self.parts, self.caller)

    @property
    def is_fragment(self) -> bool:
        """Whether a script requests a part of the page."""
        headers = self.request.headers
        return headers.get("hx-request") == "true" and headers.get("hx-boosted") != "true"

    @property
    def url(self) -> PageUrl:
        """The address of the page."""
        return here(self.request)

    @property
    def frame(self) -> dict[str, object]:
        """The variables that every page needs."""
        return {
            "caller": self.caller,
            "csrf": self.csrf,
            "csrf_header": HEADER,
            "here": self.url,
            "navigation": [
                each for each in self.request.app.state.navigation if self.caller.role in each.roles
            ],
            "now": self.parts.clock(),
            "refused_filter": self.refused,
        }

    def render(self, template: str, *, status: int = 200, **context: object) -> HTMLResponse:
        """Render a template (a path below `templates/`)."""
        if self.refused is not None:
            status = error_statuses.status_of(self.refused.error)
        return templating.respond(template, status, _HEADERS, **{**self.frame, **context})

    def render_list(
        self,
        name: str,
        query: ListPage,
        found: Sequence[_Entry],
        key: Callable[[_Entry], object],
        **context: Any,
    ) -> HTMLResponse:
        """Render a page of a list, or its live part, with a link to what follows the last entry's key."""
        rows, last = query.cut(found)
        part = "live" if self.is_fragment else "list"
        after = key(last) if last is not None else None
        return self.render(f"{name}/{part}.html", rows=rows, next=after, query=query, **context)


def here(request: Request) -> PageUrl:
    """The requested address."""
    return PageUrl(path=request.url.path, query=tuple(request.query_params.multi_items()))


#: Bytes of a form from a caller that is not authenticated.
_STRANGERS_FORM = 16 << 10
_READING = frozenset({"GET", "HEAD"})

_Handler = Callable[[Request], Coroutine[Any, Any, Response]]


#: Errors that a person can correct in the form of a query.
_CORRECTABLE = (RequestValidationError, InvalidInput, NotFound)


def _describe_refusal(error: RequestValidationError | InvalidInput | NotFound) -> PilotageError:
    """The error with the names of fields as paths: `status` for the first of its values, `status/0`."""
    if isinstance(error, RequestValidationError):
        error = describe_refusal(error.errors())
    if isinstance(error, InvalidInput):
        return InvalidRequest([replace(each, path=each.path.partition("/")[0]) for each in error.problems])
    return error


class PageRoute(routing.RoleRoute):
    """A page that needs a session; without one the browser is sent to the login page."""

    takes_json = False
    takes_form: ClassVar[bool] = True  #: its body is a form, which is read before the handler is called

    def __init__(self, path: str, endpoint: Callable[..., Any], **about: Any) -> None:
        self.shows_filter: bool = getattr(endpoint, _FILTER, False)
        super().__init__(path, endpoint, **about)

    async def guard(self, request: StrictRequest, parts: Services, handle: _Handler) -> Response:
        """Send the browser to the login without a session; show a refused filter for correction."""
        page = request.state.page = signed_in(request)
        if page is None:
            return _to_login(request)
        try:
            return await super().guard(request, parts, handle)
        except _CORRECTABLE as error:
            is_filter = self.shows_filter and not page.is_fragment
            again = await self._correct(request, parts, handle, error) if is_filter else None
            if again is None:
                raise
            return again

    async def _correct(
        self,
        request: StrictRequest,
        parts: Services,
        handle: _Handler,
        error: RequestValidationError | InvalidInput | NotFound,
    ) -> Response | None:
        """The page without the refused values of its query, and its form as it was typed.

        None: it is not the query that is refused.
        """
        page: PageContext = request.state.page
        left, typed = request.query_params.multi_items(), dict(request.query_params)
        refusal = _describe_refusal(error)
        while left:
            wrong = {each.path for each in _list_problems(refusal)}
            right = [(name, value) for name, value in left if name not in wrong]
            left = right if len(right) < len(left) else []
            form = RefusedForm(name="filter", values=typed, error=refusal)
            scope = {**request.scope, "query_string": urlencode(left).encode()}
            valid = StrictRequest(scope, request.receive)
            request.state.page = replace(page, request=valid, refused=form)
            try:
                return await super().guard(valid, parts, handle)
            except _CORRECTABLE as another:
                more = _describe_refusal(another)
                problems = [*_list_problems(refusal), *_list_problems(more)]
                refusal = InvalidRequest(problems) if problems else more
        request.state.page = page
        return None

    async def admit(self, request: StrictRequest, parts: Services) -> Caller:  # noqa: ARG002
        """Check the role."""
        caller: Caller = request.state.page.caller
        access.require(request.scope, caller, self.rules)
        return caller

    async def read(self, request: StrictRequest, parts: Services) -> None:
        """Read the form, and check its token."""
        if request.method in _READING:
            return
        _require_own_page(request)
        if self.takes_form:
            await _read_form(request, routing.limit_text(parts, request.state.page.caller))
        await _require_token(request, request.state.page.csrf)


class UploadRoute(PageRoute):
    """An archive that a script of a page sends, with the token of the session in a header."""

    takes_form = False


class OpenRoute(routing.GuardedRoute):
    """A page that needs no session, such as the login; requests are limited by address."""

    takes_json = False

    async def admit(self, request: StrictRequest, parts: Services) -> None:
        """Check rate and origin, and read the form, which is small."""
        access.limit_anonymous(request, parts)
        if request.method not in _READING:
            _require_own_page(request)
            await _read_form(request, _STRANGERS_FORM)


def signed_in(request: Request) -> PageContext | None:
    """The context of a signed-in person, or None."""
    parts: Services = request.app.state.parts
    text = sessions.token_of(request)
    if text is None:
        return None
    try:
        token = access.admit(parts.tokens.verify(text, now=parts.clock()), parts)
    except (NotAuthenticated, ClockBehind):  # behind another host, which began it: a new one here is valid
        return None
    request.state.token = token
    return PageContext(request=request, parts=parts, token=token, csrf=sessions.csrf_of(text))


def _to_login(request: Request) -> Response:
    """Redirect to the login and back; a request for a part reloads the whole page."""
    if request.headers.get("hx-request") == "true":
        return Response(status_code=401, headers={"HX-Refresh": "true"})
    wanted = str(here(request)) if request.method in _READING else "/"
    is_back = wanted != "/" and len(wanted) <= sessions.LONGEST_ADDRESS
    query = f"?{urlencode({'next': wanted})}" if is_back else ""
    return RedirectResponse(f"/login{query}", 303, headers={"Cache-Control": "no-store"})


async def _read_form(request: StrictRequest, limit: int) -> None:
    """Read the whole body of a form of ours: the framework would cut its fields at its own limit."""
    await request.read(limit)
    if request.headers.get("content-type", "").lower().startswith("multipart/"):
        # Its parts could choose their encoding; our pages do not send it.
        message = "comes in parts, allowed is application/x-www-form-urlencoded"
        raise InvalidRequest([Problem(path="body", message=message)])
    for name, value in (await request.form(max_part_size=limit)).multi_items():
        routing.check_text("form", name)
        routing.check_text(name, str(value))


def _require_own_page(request: Request) -> None:
    """Raise `ForgedRequest` unless the browser's headers prove that a page of ours sent the request.

    Browsers send `Sec-Fetch-Site` to hosts that they trust (TLS, or this machine), and `Origin` to all.
    """
    site = request.headers.get("sec-fetch-site")
    if site is not None:
        is_own = site == "same-origin"
    else:
        is_own = request.headers.get("origin", "").partition("://")[2] == request.headers.get("host")
    if not is_own:
        raise ForgedRequest("the request does not come from a page of this service")


async def _require_token(request: StrictRequest, expected: str) -> None:
    """Raise `ForgedRequest` unless a header or the form (read before) has the token of the session."""
    form = await request.form() if request.is_read else FormData()
    shown = request.headers.get(HEADER) or form.get(FIELD)
    if not isinstance(shown, str) or not hmac.compare_digest(shown.encode(), expected.encode()):
        raise ForgedRequest("the page is from another session: reload it and try again")


async def _page(request: Request) -> PageContext:
    page: PageContext = request.state.page
    return page


#: Dependency of the handlers of a `PageRoute`.
PageOf = Annotated[PageContext, Depends(_page)]
