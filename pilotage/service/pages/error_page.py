"""Errors for people: the page that a browser shows where a program gets JSON."""

from collections.abc import Mapping

from fastapi import Request
from fastapi.responses import HTMLResponse

from pilotage.service.pages import templating

#: What lies here answers programs, whoever asks.
_FOR_PROGRAMS = "/api/"
_TITLES = {
    400: "That cannot be done so",
    401: "Sign in first",
    403: "Not allowed",
    404: "Not found",
    409: "It has changed meanwhile",
    413: "Too large",
    422: "The configuration is wrong",
    429: "Too many requests",
    503: "Not available now",
}


def is_wanted(request: Request) -> bool:
    """Whether a person looks at the answer."""
    wants_html = "text/html" in request.headers.get("accept", "")
    return wants_html and not request.url.path.startswith(_FOR_PROGRAMS)


def render(request: Request, status: int, message: str, headers: Mapping[str, str]) -> HTMLResponse:
    """The page; it needs nobody to be signed in and no database."""
    text = (
        templating.environment()
        .get_template("error.html")
        .render(
            status=status,
            heading=_TITLES.get(status, "An error of the service" if status >= 500 else "Refused"),
            message=message,
            path=request.url.path,
        )
    )
    return HTMLResponse(text, status, headers={"Cache-Control": "no-store", **headers})
