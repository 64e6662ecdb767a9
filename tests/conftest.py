"""A Chromium whose every request to another host is refused and remembered; and Ctrl-C, wherever the tests run."""

import os
import shutil
import signal
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar
from urllib.parse import urlsplit

import pytest

try:
    from hypothesis import HealthCheck, settings
except ImportError:  # In .venv-extras, whose tests draw nothing.
    pass
else:
    # Properties get the same examples in every run, so that a run fails for what was changed and for nothing else, and
    # no example has a time limit, since a busy machine may stop in one. HYPOTHESIS_PROFILE=search draws new ones.
    UNTIMED = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow], "database": None}
    settings.register_profile("gate", derandomize=True, **UNTIMED)
    settings.register_profile("search", derandomize=False, print_blob=True, **UNTIMED)
    settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "gate"))

# What a shell starts in the background ignores Ctrl-C, and so would the processes that tests interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

TESTS = Path(__file__).parent
# Folders and files whose tests live on processes, servers and times of this machine, beside those marked so.
ON_THE_MACHINE = {"labs", "launch", "exercises", "site", "test_cli", "test_environments", "test_measure"}
# More than that many second tries in one run are not chance.
MOST_SECOND_TRIES = 3


def pytest_configure(config):
    """Show why a test needed its second try."""
    if config.pluginmanager.hasplugin("rerunfailures"):
        config.option.rerun_show_tracebacks = True
        config.option.max_suite_reruns = MOST_SECOND_TRIES


def pytest_collection_modifyitems(config, items):
    """Let a test that needs the machine fail once.

    Thousands of them run in half an hour on two cores that may be lent to others, and one chance failure in all of them
    would hold up a change that it knows nothing of. What is broken fails again; what needed its second try is told at
    the end of the run, with the first one's traceback. Models, numbers of experiments and notebooks have one try: they
    depend on nothing else.
    """
    if not config.pluginmanager.hasplugin("rerunfailures"):
        return
    for item in items:
        place = item.path.relative_to(TESTS).parts[0] if item.path.is_relative_to(TESTS) else ""
        marked = item.get_closest_marker("browser") or item.get_closest_marker("torch")
        if marked or Path(place).stem in ON_THE_MACHINE:
            item.add_marker(pytest.mark.flaky(reruns=1))


# No name and no address but this machine's is found.
CHROMIUM_FLAGS = [
    "--no-sandbox",
    "--disable-quic",
    "--disable-background-networking",
    "--disable-gpu",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
]
# Seconds until a page is given up: many more than it takes, for a machine whose cores others hold.
PATIENCE_S = 120


@pytest.fixture(scope="session")
def chromium():
    """One headless Chromium for the whole run."""
    from playwright.sync_api import sync_playwright

    path = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if not path:
        pytest.fail("the browser tests need Chromium (Debian: apt install chromium)")
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=path, args=CHROMIUM_FLAGS, timeout=PATIENCE_S * 1000)
        yield browser
        browser.close()


class QuietHandler(SimpleHTTPRequestHandler):
    """Serves files without a log."""

    extensions_map: ClassVar = SimpleHTTPRequestHandler.extensions_map | {
        ".mjs": "text/javascript",
        ".wasm": "application/wasm",
    }

    def do_GET(self):
        """A browser asks every host for an icon, the book's or not: there is none, and that is no fault of a page."""
        if self.path == "/favicon.ico":
            self.send_response(204)
            self.end_headers()
        else:
            super().do_GET()

    def log_message(self, *args):
        """Say nothing."""


class QuietServer(ThreadingHTTPServer):
    """Lets a browser's connections wait: with the usual five in line, a busy machine would drop some."""

    request_queue_size = 128


@pytest.fixture(scope="session")
def serve():
    """A function from a folder to the address at which it is served, on a free port of this machine."""
    servers = []

    def start(folder):
        server = QuietServer(("127.0.0.1", 0), partial(QuietHandler, directory=str(folder)))
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
        context.set_default_timeout(PATIENCE_S * 1000)
        page = context.new_page()
        page.foreign, page.faults = [], []
        home = urlsplit(address).netloc

        def remember(request):
            target = urlsplit(request.url)
            if target.scheme in {"http", "https", "ws", "wss"} and target.netloc != home:
                page.foreign.append(request.url)

        context.on("request", remember)
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
        page.goto(address, wait_until="load")
        return page

    yield start
    for context in contexts:
        # A request that a test's own route holds would fail when its page closes, and so the next test.
        context.unroute_all(behavior="ignoreErrors")
        context.close()


SETTLED = """async () => {
  await document.fonts.ready;
  await globalThis.MathJax?.startup?.promise;
  const frame = () => new Promise(requestAnimationFrame);
  // What moves for ever, such as a caret, is no reason to wait.
  const moves = () => document.getAnimations().some((one) => Number.isFinite(one.effect?.getComputedTiming().endTime));
  do { await frame(); await frame(); } while (moves());
  return true;
}"""


@pytest.fixture(scope="session")
def settle():
    """A function that waits until a page stands still: fonts and formulas are there, and nothing moves any more."""
    return lambda page: page.evaluate(SETTLED)
