"""Chromium without a window, for tests of the page.

Playwright drives Debian's browser; it brings none.
"""

import shutil

import pytest

BROWSERS = ("chromium", "chromium-browser", "google-chrome")


def chromium():
    """Starts the browser, or skips with a reason; a generator for a fixture."""
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    path = next(filter(None, map(shutil.which, BROWSERS)), None)
    if path is None:
        pytest.skip("there is no Chromium here (Debian's package is chromium)")
    with api.sync_playwright() as playwright:
        # Containers and root have no user namespaces for Chromium's sandbox.
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()
