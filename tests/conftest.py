"""A Chromium whose every request to another host is refused and remembered; and Ctrl-C, wherever the tests run."""

import shutil
import signal
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar
from urllib.parse import urlsplit

import pytest

# What a shell starts in the background ignores Ctrl-C, and so would the processes that tests interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

CHROMIUM_FLAGS = ["--no-sandbox", "--disable-quic", "--disable-background-networking", "--disable-gpu"]


@pytest.fixture(scope="session")
def chromium():
    """One headless Chromium for the whole run."""
    from playwright.sync_api import sync_playwright

    path = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if not path:
        pytest.fail("the browser tests need Chromium (Debian: apt install chromium)")
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=path, args=CHROMIUM_FLAGS)
        yield browser
        browser.close()


class QuietHandler(SimpleHTTPRequestHandler):
    """Serves files without a log."""

    extensions_map: ClassVar = SimpleHTTPRequestHandler.extensions_map | {
        ".mjs": "text/javascript",
        ".wasm": "application/wasm",
    }

    def log_message(self, *args):
        """Say nothing."""


@pytest.fixture(scope="session")
def serve():
    """A function from a folder to the address at which it is served, on a free port of this machine."""
    servers = []

    def start(folder):
        server = ThreadingHTTPServer(("127.0.0.1", 0), partial(QuietHandler, directory=str(folder)))
        threading.Thread(target=server.serve_forever, daemon=True).start()
        servers.append(server)
        return f"http://127.0.0.1:{server.server_address[1]}"

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.fixture
def open_page(chromium):
    """A function that opens an address in a page of its own; the page remembers what went wrong.

    ``page.foreign`` lists the requests to other hosts (all refused), ``page.faults`` the console's errors,
    failed requests and uncaught exceptions.
    """
    contexts = []

    def start(address, *, width=1280, height=800, scheme="light", scripts=True, motion="no-preference"):
        context = chromium.new_context(
            viewport={"width": width, "height": height},
            color_scheme=scheme,
            java_script_enabled=scripts,
            reduced_motion=motion,
        )
        contexts.append(context)
        page = context.new_page()
        page.foreign, page.faults = [], []
        home = urlsplit(address).netloc

        def guard(route):
            target = urlsplit(route.request.url)
            if target.scheme in {"http", "https"} and target.netloc != home:
                page.foreign.append(route.request.url)
                route.abort()
            else:
                route.continue_()

        context.route("**/*", guard)
        page.on(
            "console", lambda message: page.faults.append(message.text) if message.type == "error" else None
        )
        page.on("pageerror", lambda error: page.faults.append(str(error)))
        page.on(
            "response",
            lambda answer: (
                page.faults.append(f"{answer.status} {answer.url}") if answer.status >= 400 else None
            ),
        )
        page.goto(address, wait_until="load", timeout=30_000)
        return page

    yield start
    for context in contexts:
        context.close()
