"""Changes are taken from our own pages only, whatever another site has the browser of a user send."""

import hmac

from fastapi import Request

from pilotage.service.refusals import ForgedRequest

FIELD = "csrf"
HEADER = "x-csrf-token"


def require_own_page(request: Request) -> None:
    """Refuse what no page of ours asked for, by what the browser itself says of it.

    Browsers say `Sec-Fetch-Site` to hosts that they trust (TLS, or this machine), and `Origin` to all.

    Raises:
        ForgedRequest: Another site did, or nothing says who did.
    """
    site = request.headers.get("sec-fetch-site")
    if site is not None:
        is_own = site == "same-origin"
    else:
        is_own = request.headers.get("origin", "").partition("://")[2] == request.headers.get("host")
    if not is_own:
        raise ForgedRequest("the request does not come from a page of this service")


async def require_token(request: Request, expected: str) -> None:
    """Refuse what does not show the token of the session, in the form or in a header.

    Args:
        request: Its form was read, if it has one.
        expected: The token.

    Raises:
        ForgedRequest: It shows none, or another session's.
    """
    shown = request.headers.get(HEADER) or (await request.form()).get(FIELD)
    if not isinstance(shown, str) or not hmac.compare_digest(shown.encode(), expected.encode()):
        raise ForgedRequest("the page is from another session: load it anew and try again")
