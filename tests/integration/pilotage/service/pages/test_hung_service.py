"""A page whose service hangs says since when, and no more when it answers again."""

import shutil
from contextlib import ExitStack
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from examples.servers.starting import free_port
from tests.support import wait
from tests.support.installation import Installation, is_ready
from tests.support.servers.chromium import PATIENCE, add_session, picture

pytestmark = pytest.mark.debian("chromium")


def test_pages_say_since_when_the_service_hangs(
    sqlite_template: Path, tmp_path: Path, chromium: Browser
) -> None:
    shutil.copy(sqlite_template, tmp_path / "pilotage.db")
    environment = {
        "PILOTAGE_HOME": str(tmp_path),
        "PILOTAGE_DATABASE_URL": f"sqlite:///{tmp_path}/pilotage.db",
    }
    with ExitStack() as stack:
        installation = Installation(tmp_path, environment, stack)
        port = free_port()
        url = f"http://127.0.0.1:{port}"
        service = installation.start("service", "serve", "--port", str(port))
        wait.until(lambda: is_ready(url, service))
        token = installation.token("operator")
        pages = []
        # With the overview every five seconds; with the jobs a stream of events, too.
        for address in ("/", "/jobs"):
            page = chromium.new_context(base_url=url).new_page()
            stack.callback(page.context.close)
            page.set_default_timeout(PATIENCE)
            add_session(page, url, token)
            page.goto(address)
            expect(page.locator("#offline")).to_be_hidden()
            pages.append(page)
        service.suspend()
        try:
            for page in pages:
                expect(page.get_by_text("Not live since")).to_be_visible()
                expect(page.locator("#offline time")).to_have_text(
                    page.evaluate("answered.toLocaleTimeString()")
                )
            picture(pages[0], "frame/hung")
        finally:
            service.resume()
        for page in pages:
            expect(page.locator("#offline")).to_be_hidden()
