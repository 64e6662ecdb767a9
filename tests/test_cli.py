"""The command line, as a reader uses it: in a process of its own."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from contextlib import contextmanager

import pytest

from shardlab import __version__, cli
from shardlab.labs import LabError, LabInterrupted, ddp
from shardlab.labs.machine import torch_installed

COMMAND = [sys.executable, "-m", "shardlab"]


def shardlab(*arguments, prelude=None):
    command = [*COMMAND, *arguments]
    if prelude is not None:
        script = f"import sys\n{prelude}\nsys.argv[0] = 'shardlab'\nfrom shardlab.cli import main\nmain()"
        command = [sys.executable, "-c", script, *arguments]
    environment = {**os.environ, "COLUMNS": "120", "NO_COLOR": "1"}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=280)


# ---- the command itself ----


def test_help_lists_the_commands():
    done = shardlab("--help")
    assert done.returncode == 0
    assert "lab" in done.stdout
    assert "serve" in done.stdout
    assert done.stderr == ""


def test_no_arguments_show_the_help():
    assert "Usage: shardlab" in shardlab().stdout + shardlab().stderr


def test_version():
    done = shardlab("--version")
    assert (done.returncode, done.stdout) == (0, f"shardlab {__version__}\n")


def test_the_installed_command_is_the_same():
    script = os.path.join(os.path.dirname(sys.executable), "shardlab")
    if not os.path.exists(script):
        pytest.skip("shardlab is not installed as a command here")
    assert subprocess.run([script, "--version"], capture_output=True, text=True, timeout=280).stdout.endswith(
        f"{__version__}\n"
    )


def test_the_command_line_starts_light():
    heavy = "{'torch', 'matplotlib', 'numpy', 'IPython', 'anywidget'}"
    code = f"import sys, shardlab.cli; print(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=280)
    assert done.stdout == "[]\n"


@pytest.mark.parametrize(
    ("arguments", "imported"),
    [("--help", []), ("plan --help", []), ("lab ring --help", ["ring"])],
)
def test_the_command_line_imports_no_lab_but_the_one_it_runs(arguments, imported):
    script = (
        "import atexit, sys\nfrom shardlab import cli, labs\n"
        "there = lambda: [name for name in labs.LAB_NAMES if f'shardlab.labs.{name}' in sys.modules]\n"
        "atexit.register(lambda: print(there()))\n"
        f"sys.argv = ['shardlab', *{arguments.split()}]\ncli.main()"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=280)
    assert done.stdout.splitlines()[-1] == str(imported), done.stderr


def test_a_mistyped_lab_is_told_its_neighbours():
    done = shardlab("lab", "rings")
    assert done.returncode == 2
    assert "Did you mean 'ring'" in " ".join(done.stderr.split())


@pytest.mark.parametrize(
    "interrupted",
    ["import os, signal\nos.kill(os.getpid(), signal.SIGINT)", "def main(): raise KeyboardInterrupt"],
    ids=["while it is imported", "later"],
)
def test_ctrl_c_gives_one_line_and_130(tmp_path, interrupted):
    """An interrupt at a given place: the real moment can't be hit twice."""
    (tmp_path / "cli.py").write_text(interrupted)
    script = (
        f"import shardlab\nshardlab.__path__.insert(0, {str(tmp_path)!r})\n"
        "from shardlab.__main__ import main\nmain()"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=280)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "Stopped.\n")


# ---- shardlab lab ----


def test_lab_lists_the_labs_with_time_and_needs():
    done = shardlab("lab")
    assert done.returncode == 0
    assert "ddp" in done.stdout
    assert f"about {ddp.seconds} s" in done.stdout
    assert "torch" in done.stdout
    assert ddp.title.partition(":")[0] in done.stdout
    assert ":" not in done.stdout.partition("Run one with:")[0]


def test_help_of_a_lab_names_every_setting():
    done = shardlab("lab", "ddp", "--help")
    for option in ("--ranks", "--batches", "--steps", "--micro-steps", "--limit-s", "--start", "--json"):
        assert option in done.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["ddp", "--ranks", "0"], "ranks must be a whole number from 1 to 64, not 0"),
        (["ddp", "--ranks", "four"], "--ranks"),
        (["ddp", "--steps", "-1"], "steps must be a whole number of at least 1, not -1"),
        (["ddp", "--batches", "64"], "batches must hold at least two sizes"),
        (
            ["ddp", "--json", "/no/such/folder/out.json"],
            "--json must name a file in a folder that can be written to",
        ),
        (
            ["ddp", "--json", os.path.dirname(__file__)],
            "--json must name a file in a folder that can be written to",
        ),
        (["dpp"], "No such command"),
    ],
)
def test_wrong_usage_is_told_and_ends_with_2(arguments, message):
    done = shardlab("lab", *arguments)
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.torch
@pytest.mark.skipif(not torch_installed(), reason="torch is not installed")
def test_a_lab_shows_progress_then_tables_and_writes_json(tmp_path):
    path = tmp_path / "out.json"
    done = shardlab("lab", "ddp", "--ranks", "2", "--steps", "1", "--limit-s", "250", "--json", str(path))
    assert done.returncode == 0, done.stderr
    assert "2 ranks [1/9]" in done.stderr
    assert "12,595,200" not in done.stdout
    assert done.stdout.count("8,396,800") >= 4
    assert "Strong scaling" in done.stdout
    written = json.loads(path.read_text())
    assert written["complete"] is True
    assert written["settings"]["ranks"] == 2
    assert [row["ranks"] for row in written["equality"]] == [1, 2]


def test_without_torch_the_recorded_run_and_status_3(tmp_path):
    path = tmp_path / "out.json"
    done = shardlab("lab", "ddp", "--json", str(path), prelude="sys.modules['torch'] = None")
    assert done.returncode == cli.NOT_MEASURED == 3
    assert "torch is not installed" in done.stderr
    assert "Recorded earlier, not measured here" in done.stdout
    assert json.loads(path.read_text())["recorded"] is True
    assert "torch is not installed" in shardlab("lab", prelude="sys.modules['torch'] = None").stdout


class Stub:
    """A lab whose outcome a test chooses."""

    name = "stub"

    def __init__(self, outcome):
        self.outcome = outcome

    def __call__(self, **_):
        if isinstance(self.outcome, BaseException):
            raise self.outcome
        return self.outcome


def exit_status(lab, json_file=None):
    with pytest.raises(cli.typer.Exit) as caught:
        cli._run_lab(lab, {}, json_file)
    return caught.value.exit_code


@pytest.mark.parametrize(
    ("error", "status", "words"),
    [
        (LabError("rank 1 of 2 fell", cause="died", rank=1, partial={"a": [1]}), 1, "rank 1 of 2 fell"),
        (LabInterrupted({"a": [1]}), 130, "Stopped. Nothing is left running."),
        (KeyboardInterrupt(), 130, "Stopped."),
        (ValueError("ranks must be 1, not 2"), 2, "ranks must be 1, not 2"),
    ],
)
def test_a_lab_that_stops_keeps_what_was_ready(error, status, words, tmp_path, capsys):
    path = tmp_path / "out.json"
    assert exit_status(Stub(error), path) == status
    assert words in capsys.readouterr().err
    if status != 2:
        kept = json.loads(path.read_text())
        assert kept["complete"] is False
        assert kept["lab"] == "stub"
        assert kept["partial"] == getattr(error, "partial", {})
        assert kept["stamp"]["shardlab"] == __version__


def test_a_check_that_does_not_hold_ends_with_1(capsys):
    import dataclasses

    recorded = ddp.load_recording()
    wrong = dataclasses.replace(recorded, recorded=False, accumulation_gap=0.5)
    assert exit_status(Stub(wrong)) == 1
    assert "no_sync changes the result" in capsys.readouterr().err


def test_of_many_launched_ranks_one_speaks(monkeypatch, capsys):
    import dataclasses

    run = dataclasses.replace(ddp.load_recording(), recorded=False)
    monkeypatch.setenv("RANK", "1")
    cli._run_lab(Stub(run), {}, None)
    assert capsys.readouterr().out == ""
    monkeypatch.setenv("RANK", "0")
    cli._run_lab(Stub(run), {}, None)
    assert "Strong scaling" in capsys.readouterr().out


# ---- shardlab serve ----


@pytest.fixture
def book(tmp_path):
    folder = tmp_path / "html"
    folder.mkdir()
    (tmp_path / "secret.txt").write_text("not in the book")
    (folder / "index.html").write_text("<h1>价格 of parallelism</h1>", encoding="utf-8")
    for name in ("a.mjs", "a.js", "a.wasm", "a.css", "a.svg", "a.woff2", "a.json"):
        (folder / name).write_bytes(b"x" * 1000)
    return folder


@contextmanager
def serving(folder, *arguments):
    process = subprocess.Popen(
        [*COMMAND, "serve", str(folder), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": ""},
    )
    # A guard: a server that never prints its address must not hang the tests.
    guard = threading.Timer(250, process.kill)
    guard.start()
    try:
        line = process.stdout.readline()
        yield process, line.split()[4] if line else ""
    finally:
        guard.cancel()
        process.kill()
        process.communicate(timeout=120)


def test_serve_prints_a_local_address_and_serves_with_the_right_types(book):
    with serving(book) as (_, address):
        assert address.startswith("http://127.0.0.1:")
        expected = {
            "": "text/html",
            "a.mjs": "text/javascript",
            "a.js": "text/javascript",
            "a.wasm": "application/wasm",
            "a.css": "text/css",
            "a.svg": "image/svg+xml",
            "a.woff2": "font/woff2",
            "a.json": "application/json",
        }
        for name, kind in expected.items():
            with urllib.request.urlopen(address + name, timeout=120) as answer:
                assert answer.headers["Content-Type"].split(";")[0] == kind
                assert answer.headers["Cache-Control"] == "no-cache"
        with urllib.request.urlopen(address, timeout=120) as answer:
            assert "价格" in answer.read().decode()
        for outside in ("missing.html", "../secret.txt", "%2e%2e/secret.txt"):
            with pytest.raises(urllib.error.HTTPError, match="404"):
                urllib.request.urlopen(address + outside, timeout=120)


@pytest.mark.parametrize("signal_number", [signal.SIGINT, signal.SIGTERM])
def test_serve_ends_cleanly(book, signal_number):
    with serving(book) as (process, address):
        urllib.request.urlopen(address, timeout=120).close()
        process.send_signal(signal_number)
        out, err = process.communicate(timeout=120)
        assert process.returncode == 0
        assert out == "Stopped.\n"
        assert err == ""


def test_two_books_at_once_and_a_port_in_use(book):
    with serving(book) as (_, first), serving(book) as (_, second):
        assert first != second
        port = first.rstrip("/").rpartition(":")[2]
        done = shardlab("serve", str(book), "--port", port)
        assert done.returncode == 1
        assert f"--port must be a free port (0 takes one), not {port}" in done.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="127.0.0.2 is a loopback address on Linux only")
def test_serve_listens_on_loopback_alone(book):
    server = cli.BookServer(book)
    try:
        assert server.server_address[0] == "127.0.0.1"
        assert server.address == f"http://127.0.0.1:{server.server_port}/"
    finally:
        server.server_close()


def test_serve_wants_a_built_book(tmp_path):
    done = shardlab("serve", str(tmp_path))
    assert done.returncode == 2
    assert "must be the folder of a built book, with an index.html in it" in done.stderr
    assert shardlab("serve", str(tmp_path / "none")).returncode == 2


def test_a_browser_that_hangs_up_is_no_error(book, capfd):
    import socket

    (book / "big.bin").write_bytes(b"x" * 20_000_000)
    with cli.BookServer(book) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        with socket.create_connection(("127.0.0.1", server.server_port)) as browser:
            browser.sendall(b"GET /big.bin HTTP/1.1\r\nHost: x\r\n\r\n")
            browser.recv(1000)
            browser.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
        with urllib.request.urlopen(server.address, timeout=120) as answer:
            assert answer.status == 200
        time.sleep(0.3)
        server.shutdown()
    assert "Traceback" not in capfd.readouterr().err
