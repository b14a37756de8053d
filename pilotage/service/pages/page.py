"""What a page's handler has in hand: who looks at it, and how it is shown."""

from dataclasses import dataclass
from urllib.parse import urlencode

from fastapi import Request
from fastapi.responses import HTMLResponse

from pilotage.service.callers import Caller
from pilotage.service.pages import forgery, navigation, templating
from pilotage.service.parts import Parts
from pilotage.service.tokens import Token

#: What pages show is for the one who is signed in, and only as long as that is so.
_HEADERS = {"Cache-Control": "no-store", "Vary": "Cookie, HX-Request"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Here:
    """The address of the page, which holds all of its state."""

    path: str
    query: tuple[tuple[str, str], ...]  #: in their order; a name may come several times

    def __str__(self) -> str:
        return self._address(self.query)

    def with_query(self, **changes: object) -> str:
        """The address with other values in its query; None takes a name out."""
        kept = [(name, value) for name, value in self.query if name not in changes]
        new = [(name, str(value)) for name, value in changes.items() if value is not None]
        return self._address((*kept, *new))

    def _address(self, query: tuple[tuple[str, str], ...]) -> str:
        return f"{self.path}?{urlencode(query)}" if query else self.path


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """A page that is asked for by somebody who is signed in."""

    request: Request
    parts: Parts
    token: Token  #: of the session
    csrf: str  #: what forms have to show; see `forgery`

    @property
    def caller(self) -> Caller:
        """Who looks at it."""
        return self.token.caller

    @property
    def is_fragment(self) -> bool:
        """Whether a script wants a part of the page anew, not the whole page."""
        headers = self.request.headers
        return headers.get("hx-request") == "true" and headers.get("hx-boosted") != "true"

    def render(self, template: str, *, status: int = 200, **context: object) -> HTMLResponse:
        """The template, with what every page shows around it.

        Args:
            template: Path below `templates/`.
            status: Of the answer.
            context: What the template shows.
        """
        text = (
            templating.environment()
            .get_template(template)
            .render(
                {
                    "caller": self.caller,
                    "csrf": self.csrf,
                    "csrf_header": forgery.HEADER,
                    "here": here(self.request),
                    "navigation": navigation.visible(self.request.app.state.navigation, self.caller.role),
                    "now": self.parts.clock(),
                    **context,
                }
            )
        )
        return HTMLResponse(text, status, headers=_HEADERS)


def here(request: Request) -> Here:
    """The address that was asked for."""
    return Here(path=request.url.path, query=tuple(request.query_params.multi_items()))
