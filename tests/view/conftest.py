"""A made-up study, a server and a browser that the tests share."""

import os
import secrets
import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from emergo.view import Catalog

from .made_up import finish, made_up_study

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"]


@pytest.fixture(scope="session")
def folder(tmp_path_factory) -> Path:
    """Eighteen runs of a finished study, one of which failed. Tests must not change it."""
    path = tmp_path_factory.mktemp("view") / "study"
    finish(made_up_study(), path)
    return path


@pytest.fixture
def catalog(folder) -> Catalog:
    return Catalog(folder)


@pytest.fixture(scope="session")
def browser() -> Iterator[object]:
    playwright = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")
    if CHROMIUM is None:
        pytest.skip("Chromium is not installed")
    with playwright.sync_playwright() as started:
        opened = started.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield opened
        opened.close()


class Served:
    """A server in a thread, with its address and token."""

    def __init__(self, path: Path) -> None:
        import uvicorn

        from emergo.view._bounded import BoundedProtocol
        from emergo.view._serve import free_port, listen
        from emergo.view._server import make_app

        # Parallel test processes search different ranges of ports.
        port = free_port(30_000 + os.getpid() % 9000)
        token = secrets.token_urlsafe(8)
        self.catalog = Catalog(path)
        app = make_app(self.catalog, token, port)
        self._socket = listen(port)
        self._server = uvicorn.Server(
            uvicorn.Config(
                app,
                http=BoundedProtocol,
                lifespan="off",
                log_level="error",
                timeout_graceful_shutdown=1,
            )
        )
        self._thread = threading.Thread(
            target=self._server.run, kwargs={"sockets": [self._socket]}, daemon=True
        )
        self._thread.start()
        while not self._server.started:
            time.sleep(0.01)
        self.origin = f"http://127.0.0.1:{port}"
        self.address = f"{self.origin}/?token={token}"

    def end(self) -> None:
        self._server.should_exit = True
        self._thread.join(5)
        self._socket.close()


@pytest.fixture(scope="session")
def served(folder) -> Iterator[Served]:
    server = Served(folder)
    yield server
    server.end()


class Seen:
    """A page that records the errors of its console and the hosts that it asked."""

    def __init__(self, context) -> None:
        self.page = context.new_page()
        self.errors: list[str] = []
        self.asked: set[str] = set()
        self.page.on("console", self._note_message)
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("request", lambda request: self.asked.add(urlsplit(request.url).netloc))

    def _note_message(self, message) -> None:
        if message.type in ("error", "warning"):
            self.errors.append(message.text)

    def open(self, address: str):
        self.page.goto(address)
        self.page.wait_for_selector("html[data-painted]", state="attached", timeout=60_000)
        return self.page


@pytest.fixture
def seen(browser) -> Iterator[Seen]:
    """A page; fail at the end if it reported an error or asked another machine."""
    context = browser.new_context(viewport={"width": 1200, "height": 800})
    page = Seen(context)
    yield page
    context.close()
    assert page.errors == []
    assert all(host.startswith("127.0.0.1:") or not host for host in page.asked), page.asked
