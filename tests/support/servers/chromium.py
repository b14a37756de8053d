"""Debian's Chromium without a user interface, looking at a real service as somebody who is signed in."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, expect, sync_playwright

from tests.support.service import Service

#: Milliseconds that a page may take: the machine may be busy with other tests.
PATIENCE = 180_000
expect.set_options(timeout=PATIENCE)

#: The whole browser takes three times the CPU: each session has a window, if nobody sees it.
_CHROMIUM = "/usr/bin/chromium-headless-shell"
#: Chromium has no sandbox for root, and /dev/shm may be small.
_ARGUMENTS = ("--no-sandbox", "--disable-dev-shm-usage")
#: Where pictures of the pages go, if anybody wants them.
_PICTURES = os.environ.get("PILOTAGE_PICTURES")
#: A page that is refused says so in the console as well.
_REFUSED = "Failed to load resource: the server responded with a status of"

#: What htmx says of a request that nobody waits for any more, since the page was left or after ten seconds.
_ABORTED = ("htmx:afterRequest", "htmx:sendAbort", "htmx:timeout")

SignedIn = Callable[..., Page]


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=_CHROMIUM, args=_ARGUMENTS)
        yield browser
        browser.close()


class Windows:
    """Pages in sessions of their own; what goes wrong in them is written down."""

    def __init__(self, chromium: Browser) -> None:
        self._chromium = chromium
        self._contexts: list[BrowserContext] = []
        self.wrong: list[str] = []

    def open(self, service: Service, **how: Any) -> Page:
        """A page of nobody who is signed in."""
        context = self._chromium.new_context(base_url=service.url, **how)
        self._contexts.append(context)
        context.set_default_timeout(PATIENCE)
        page = context.new_page()
        page.on("console", self._heard)
        page.on("pageerror", lambda error: self.wrong.append(f"{page.url}: {error}"))
        return page

    def close(self) -> None:
        for context in self._contexts:
            context.close()

    def _heard(self, message: ConsoleMessage) -> None:
        if message.text.startswith(_ABORTED):
            return  # no answer came before; the page asks again
        if message.location.get("url", "").startswith("https://"):
            return  # of a provider of sign-ins: what is missing on its pages is not ours
        is_page = "/assets/" not in message.location.get("url", "")
        if message.type == "error" and not (is_page and message.text.startswith(_REFUSED)):
            self.wrong.append(f"{message.location.get('url')}: {message.text}")


@pytest.fixture
def windows(chromium: Browser) -> Iterator[Windows]:
    """Opens pages; at the end none of them had an error in its console, nor a violation of the policy."""
    made = Windows(chromium)
    yield made
    made.close()
    assert not made.wrong, made.wrong


@pytest.fixture
def signed_in(windows: Windows) -> SignedIn:
    """`signed_in(service, role=…, **wishes)`: a page with a session of this role."""

    def open_as(service: Service, *, role: str, how: dict[str, Any] | None = None, **wishes: Any) -> Page:
        page = windows.open(service, **(how or {}))
        add_session(page, service.url, service.token(role, **wishes))
        return page

    return open_as


def add_session(page: Page, url: str, token: str) -> None:
    """Sign in at the service of this URL."""
    name = f"pilotage-{url.rpartition(':')[2]}"
    cookie = {"name": name, "value": token, "url": url, "httpOnly": True, "sameSite": "Lax"}
    page.context.add_cookies([cookie])  # type: ignore[list-item]


def picture(page: Page, name: str) -> None:
    """Take the page light and dark, in four widths, where `PILOTAGE_PICTURES` names a directory."""
    if _PICTURES is None:
        return
    path = Path(_PICTURES) / name
    path.parent.mkdir(parents=True, exist_ok=True)
    for scheme in ("light", "dark"):
        for width in (1920, 1280, 768, 360):
            page.emulate_media(color_scheme=scheme)
            page.set_viewport_size({"width": width, "height": 900})
            page.screenshot(path=path.with_name(f"{path.name}-{scheme}-{width}.png"), full_page=True)
    page.emulate_media(color_scheme="light")
    page.set_viewport_size({"width": 1280, "height": 900})
