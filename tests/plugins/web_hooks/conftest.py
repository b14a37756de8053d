"""The browser, for pages."""

from tests.support.servers.chromium import chromium, signed_in, windows

__all__ = ["chromium", "signed_in", "windows"]
