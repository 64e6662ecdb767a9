"""The runner: it returns what the ranks return, says what went wrong, and leaves nothing running."""

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from shardlab import labs
from shardlab.labs import launcher, machine, processes
from shardlab.labs.run import LabError, LabInterrupted, run
from tools.kernels import START_S, through_files

HERE = Path(__file__).parent
PYTHON = sys.executable
# A loaded machine of two cores may need this long to import torch four times.
LIMIT_S = 200.0

pytestmark = [pytest.mark.usefixtures("family"), pytest.mark.timeout(1200)]


def stopped_at_the_limit(worker, ranks, words):
    """The error of a run that ends at its limit; as long as it lacks these words, once more with twice the time.

    A busy machine may need a while until every rank is where it will stay.
    """
    for limit_s in (5, 10, 20, 40, 80, 160):
        with pytest.raises(LabError) as caught:
            run(worker, ranks, limit_s=limit_s, show=False)
        if all(str(caught.value).count(word) == times for word, times in words.items()):
            break
    return caught.value


@pytest.fixture
def start_caller(family):
    """Starts a script of its own that calls the runner, in a session of its own, with this folder on its path."""
    callers = []

    def start(code, path=str(HERE)):
        caller = subprocess.Popen(
            [PYTHON, "-c", code],
            env={**os.environ, "PYTHONPATH": path},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        callers.append(caller)
        return caller

    yield start
    for caller in callers:
        caller.kill()
        caller.communicate(timeout=600)


def sleeper(up, start="auto"):
    return (
        "from shardlab.labs import run\n"
        f"run('lab_workers:sleep', 3, {{'up': {up.path!r}}}, limit_s=300, start={start!r})"
    )


# ---- what it returns ----


@pytest.mark.torch
@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_every_rank_returns_its_result(start, temporary_folders, capfd):
    outcome = run("lab_workers:total", 3, {"answer": [1, "two"]}, limit_s=LIMIT_S, start=start)
    assert outcome.start == start
    assert [result["sum"] for result in outcome.results] == [[3.0] * 4] * 3
    assert [result["rank"] for result in outcome.results] == ["0", "1", "2"]
    assert all(result["params"] == {"answer": [1, "two"]} for result in outcome.results)
    assert len({result["pid"] for result in outcome.results}) == 3
    assert os.getpid() not in {result["pid"] for result in outcome.results}
    threads = max(1, machine.usable_cores() // 3)
    assert {(result["threads"], result["omp"]) for result in outcome.results} == {(threads, str(threads))}
    assert list(temporary_folders.glob("shardlab-*")) == []
    shown = capfd.readouterr().err
    assert all(f"[rank {rank}] sum 3" in shown for rank in range(3))


@pytest.mark.torch
def test_one_rank_and_a_function_as_worker():
    import lab_workers

    outcome = run(lab_workers.total, 1, limit_s=LIMIT_S, threads=2, show=False)
    assert outcome.results[0]["sum"] == [0.0] * 4
    assert outcome.results[0]["threads"] == 2
    assert outcome.results[0]["backend"] == "gloo"


@pytest.mark.torch
def test_gather_team_and_barrier():
    results = run("lab_workers:gather", 3, limit_s=LIMIT_S, show=False).results
    everyone = [{"rank": rank, "tensor": [rank, 2]} for rank in range(3)]
    assert [result["everyone"] for result in results] == [everyone] * 3
    assert [result["in_team"] for result in results] == [True, True, False]
    assert [result["x"] for result in results] == [2.0, 2.0, 1.0]


@pytest.mark.torch
def test_importing_all_labs_does_not_import_torch():
    code = "import sys\nfrom shardlab.labs import LABS\nsys.exit('torch' in sys.modules or 'matplotlib' in sys.modules)"
    assert subprocess.run([PYTHON, "-c", code], timeout=600).returncode == 0


def test_only_the_lab_that_is_used_is_imported():
    code = (
        "import sys\nfrom shardlab import labs\n"
        "def there(): print([name for name in labs.LAB_NAMES if f'shardlab.labs.{name}' in sys.modules])\n"
        "there()\nlabs.ring\nthere()\nprint('zero' in dir(labs), hasattr(labs, 'zeros'))\n"
        "print([lab.name for lab in labs.LABS] == list(labs.LAB_NAMES))\n"
    )
    done = subprocess.run([PYTHON, "-c", code], capture_output=True, text=True, timeout=600)
    assert done.stdout == "[]\n['ring']\nTrue False\nTrue\n", done.stderr


@pytest.mark.parametrize(
    "imports",
    [
        "from shardlab.labs import ring",
        "from shardlab.labs.ring import RingRun\nfrom shardlab.labs import ring",
        "import shardlab.labs.ring as ring",
        "import shardlab.labs\nring = shardlab.labs.ring",
        "from shardlab.labs import *",
    ],
)
def test_a_labs_name_means_the_lab_however_it_is_imported(imports):
    code = f"{imports}\nfrom shardlab.labs import Lab\nprint(isinstance(ring, Lab))"
    done = subprocess.run([PYTHON, "-c", code], capture_output=True, text=True, timeout=600)
    assert done.stdout == "True\n", done.stderr


@pytest.mark.torch
def test_the_same_worker_under_torchrun(family):
    # torchrun's own store listens where it likes: what is tested is the worker, not torchrun.
    command = [PYTHON, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command += ["-m", "shardlab.labs", "lab_workers:total", "--params", '{"a": 1}', "--limit", str(LIMIT_S)]
    environment = {**os.environ, "PYTHONPATH": str(HERE), "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    results = json.loads(done.stdout.splitlines()[-1])
    assert [result["sum"] for result in results] == [[1.0] * 4] * 2
    assert [result["params"] for result in results] == [{"a": 1}] * 2


@pytest.mark.torch
def test_from_the_command_line():
    command = [PYTHON, "-m", "shardlab.labs", "lab_workers:total", "--ranks", "2", "--limit", str(LIMIT_S)]
    environment = {**os.environ, "PYTHONPATH": str(HERE)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    assert [result["sum"] for result in json.loads(done.stdout)] == [[1.0] * 4] * 2
    failed = subprocess.run(
        [*command[:3], "lab_workers:fail"], env=environment, capture_output=True, text=True, timeout=200
    )
    assert failed.returncode == 1
    assert "rank 1 has had enough" in failed.stderr


# ---- what goes wrong ----


@pytest.mark.torch
@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_an_exception_names_the_rank_and_shows_its_traceback(start):
    with pytest.raises(LabError) as caught:
        run("lab_workers:fail", 3, limit_s=LIMIT_S, start=start, show=False)
    assert (caught.value.cause, caught.value.rank) == ("error", 1)
    text = str(caught.value)
    assert text.startswith("rank 1 of 3 raised an error")
    assert "RuntimeError: rank 1 has had enough" in text
    assert "lab_workers.py" in text
    assert "labs/rank.py" not in text


@pytest.mark.torch
@pytest.mark.parametrize(
    ("start", "worker", "rank", "words"),
    [
        ("fork", "leave", 1, "ended with exit status 7"),
        ("fork", "leave_quietly", 0, "ended with exit status 0"),
        ("fork", "killed", 1, "was killed by signal 9 (SIGKILL"),
        ("spawn", "killed", 1, "was killed by signal 9 (SIGKILL"),
        ("fork", "crash", 1, "was killed by signal 11 (SIGSEGV)"),
    ],
)
def test_a_rank_that_dies_without_a_word(start, worker, rank, words):
    with pytest.raises(LabError) as caught:
        run(f"lab_workers:{worker}", 2, limit_s=LIMIT_S, start=start, show=False)
    assert (caught.value.cause, caught.value.rank) == ("died", rank)
    assert f"rank {rank} of 2 {words}" in str(caught.value)
    if worker == "leave":
        assert caught.value.partial == {"half": 0.5}
        assert "Kept so far: half." in str(caught.value)
    if worker == "crash":
        assert "in string_at" in str(caught.value)


@pytest.mark.torch
def test_a_hung_collective_ends_at_the_limit_and_says_who_is_where():
    error = stopped_at_the_limit("lab_workers:hang", 3, {"waits in all_reduce": 2, "time.sleep": 1})
    assert error.cause == "limit"
    assert error.partial == {"first part": [1, 2]}
    lines = str(error).splitlines()
    assert lines[0].startswith("the lab reached the limit of")
    for rank in (0, 1):
        assert f"rank {rank}: lab_workers.py line" in lines[1 + rank]
        assert "dist.all_reduce" in lines[1 + rank]
        assert "waits in all_reduce #1 of 3×5 elements" in lines[1 + rank]
    assert "rank 2: lab_workers.py line" in lines[3]
    assert "time.sleep(600); has called no collective" in lines[3]


@pytest.mark.torch
def test_ranks_in_different_collectives_and_one_that_has_stopped():
    waits = {"waits in all_reduce": 1, "waits in barrier": 1, "ctx.barrier()": 1}
    lines = str(stopped_at_the_limit("lab_workers:mismatch", 4, waits)).splitlines()
    assert "waits in all_reduce #1" in lines[1]
    assert "waits in barrier #1" in lines[2]
    assert "ctx.barrier()" in lines[3]
    assert "rank 3: doesn't answer" in lines[4]


@pytest.mark.torch
@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_a_worker_that_cannot_be_imported(start):
    with pytest.raises(LabError, match="no_such_module"):
        run("no_such_module:worker", 2, limit_s=LIMIT_S, start=start, show=False)


@pytest.mark.torch
def test_a_result_that_json_cannot_hold():
    with pytest.raises(LabError, match="a result must be made of numbers, text, lists and dicts, not object"):
        run("lab_workers:unreadable", 2, limit_s=LIMIT_S, show=False)


def test_a_launcher_that_cannot_start(monkeypatch):
    monkeypatch.setattr(machine, "torch_installed", lambda: True)
    monkeypatch.setattr(sys, "executable", shutil.which("false"))
    with pytest.raises(LabError, match="ended before the ranks had finished") as caught:
        run("lab_workers:total", 2, limit_s=20, show=False)
    assert caught.value.cause == "start"


@pytest.mark.torch
def test_a_port_in_use_is_in_nobodys_way(monkeypatch):
    monkeypatch.setenv("MASTER_PORT", "29500")
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # If that fails, somebody else has it: in use it is.
        with contextlib.suppress(OSError):
            taken.bind(("127.0.0.1", 29500))
            taken.listen()
        assert run("lab_workers:total", 2, limit_s=LIMIT_S, show=False).results[0]["sum"] == [1.0] * 4


# ---- what it must never touch ----


@pytest.mark.torch
@pytest.mark.skipif(sys.platform != "linux", reason="reads the kernel's socket tables")
def test_every_socket_is_on_the_loopback_interface():
    for addresses in run("lab_workers:endpoints", 2, limit_s=LIMIT_S, show=False).results:
        assert addresses
        assert set(addresses) == {"127.0.0.1"}


@pytest.mark.torch
def test_it_needs_no_network_but_loopback():
    unshare = shutil.which("unshare")
    inside = [unshare or "", "-Urn", "sh", "-c"]
    if unshare is None or subprocess.run([*inside, "ip link set lo up"], capture_output=True).returncode:
        pytest.skip("needs unshare, ip and user namespaces")
    code = "from shardlab.labs import run; print(run('lab_workers:total', 2, limit_s=100).results[0]['sum'])"
    environment = {**os.environ, "PYTHONPATH": str(HERE)}
    command = [*inside, f'ip link set lo up && "{PYTHON}" -c "{code}"']
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
    assert done.stdout == "[1.0, 1.0, 1.0, 1.0]\n", done.stderr


# ---- nothing is left running ----


@pytest.mark.torch
@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_ctrl_c_stops_everything(start, start_caller, up, family):
    caller = start_caller(sleeper(up, start))
    ranks = up.wait(3)
    assert len(family.living()) >= 5  # the caller, the launcher and the ranks
    caller.send_signal(signal.SIGINT)
    text, _ = caller.communicate(timeout=600)
    assert "nothing is left running" in text
    assert caller.returncode != 0
    family.assert_all_gone()
    # A zombie waits for init's look alone.
    assert not any(runs(pid) for pid in ranks)


def runs(pid):
    """Whether there is such a process, and it is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.torch
def test_an_interrupt_keeps_what_was_ready(up):
    def interrupt(*_):
        raise KeyboardInterrupt

    def interrupt_when_up():
        up.wait(2)
        signal.pthread_kill(threading.main_thread().ident, signal.SIGUSR1)

    # The signal plays the reader's Ctrl-C in this very process.
    before = signal.signal(signal.SIGUSR1, interrupt)
    watcher = threading.Thread(target=interrupt_when_up)
    watcher.start()
    try:
        with pytest.raises(LabInterrupted) as caught:
            run("lab_workers:sleep", 2, {"up": up.path}, limit_s=LIMIT_S, show=False)
    finally:
        watcher.join()
        signal.signal(signal.SIGUSR1, before)
    assert set(caught.value.partial) <= {"before the sleep"}


@pytest.mark.torch
@pytest.mark.parametrize(
    ("start", "signal_number"),
    [("fork", signal.SIGKILL), ("spawn", signal.SIGKILL), ("fork", signal.SIGTERM)],
)
def test_nothing_outlives_a_killed_caller(start, signal_number, start_caller, up, family, temporary_folders):
    caller = start_caller(sleeper(up, start))
    up.wait(3)
    caller.send_signal(signal_number)
    caller.communicate(timeout=600)
    family.assert_all_gone()
    assert list(temporary_folders.glob("shardlab-*")) == []


# A system without PR_SET_PDEATHSIG: only the pipe tells that the parent is gone.
WITHOUT_PDEATHSIG = "from shardlab.labs import processes\nprocesses.die_with_parent = lambda **_: None\n"


@pytest.mark.torch
@pytest.mark.parametrize("start", ["fork", "spawn"])
@pytest.mark.parametrize("victim", ["caller", "launcher"])
def test_the_pipe_alone_is_enough(start, victim, start_caller, up, family, tmp_path):
    (tmp_path / "sitecustomize.py").write_text(WITHOUT_PDEATHSIG)
    caller = start_caller(sleeper(up, start), path=f"{tmp_path}:{HERE}")
    ranks = up.wait(3)
    if victim == "caller":
        caller.kill()
    else:
        status = Path(f"/proc/{ranks[0]}/stat").read_text().rpartition(")")[2].split()
        os.kill(int(status[1]), signal.SIGKILL)
    text, _ = caller.communicate(timeout=600)
    if victim == "launcher":
        assert "ended before the ranks had finished" in text
    family.assert_all_gone()


@pytest.mark.torch
def test_a_caller_killed_while_torch_is_being_imported(start_caller, up, family, temporary_folders):
    caller = start_caller(sleeper(up))
    deadline = time.monotonic() + 200
    while len(family.living()) < 2 and time.monotonic() < deadline:
        time.sleep(0.02)
    caller.kill()
    caller.communicate(timeout=600)
    family.assert_all_gone()
    assert list(temporary_folders.glob("shardlab-*")) == []


@pytest.mark.skipif(sys.platform == "win32", reason="asks a pipe whether it was hung up")
def test_a_launcher_sees_that_its_caller_went_before_it_could_look():
    ours, callers = os.pipe()
    try:
        assert not launcher._has_hung_up(ours)
        os.close(callers)
        assert launcher._has_hung_up(ours)
    finally:
        os.close(ours)


@pytest.mark.torch
@pytest.mark.skipif(sys.platform != "linux", reason="finds marked processes in /proc")
def test_a_process_that_left_the_group_is_found_too(family):
    run("lab_workers:child_in_its_own_session", 2, limit_s=LIMIT_S, show=False)
    # It would sleep far longer than this waits.
    family.assert_all_gone()


@pytest.mark.torch
@pytest.mark.parametrize("how", ["restart", "interrupt"])
def test_a_notebook_kernel_that_restarts_or_is_interrupted(how, up, family):
    client_library = pytest.importorskip("jupyter_client")
    pytest.importorskip("ipykernel")
    with through_files() as config:
        manager = client_library.KernelManager(kernel_name="python3", config=config)
        manager.start_kernel(env={**os.environ, "PYTHONPATH": str(HERE)})
        client = manager.client()
        client.start_channels()
        try:
            client.wait_for_ready(timeout=START_S)
            lab_in_a_kernel(how, up, family, manager, client)
        finally:
            client.stop_channels()
            manager.shutdown_kernel(now=True)


def lab_in_a_kernel(how, up, family, manager, client):
    # What a library starts for a moment, such as ldconfig, is not counted.
    until_living(family, 1)
    request = client.execute(sleeper(up))
    up.wait(3)
    # The kernel, the launcher, the ranks.
    until_living(family, 5)
    if how == "restart":
        manager.restart_kernel(now=True)
        client.wait_for_ready(timeout=START_S)
    else:
        manager.interrupt_kernel()
        reply = client.get_shell_msg(timeout=600)
        while reply["parent_header"].get("msg_id") != request:
            reply = client.get_shell_msg(timeout=600)
        assert reply["content"]["ename"] == "LabInterrupted"
    until_living(family, 1)
    client.execute("1 + 1", reply=True, timeout=600)


def until_living(family, n, patience_s=60):
    deadline = time.monotonic() + patience_s
    while len(living := family.living()) != n and time.monotonic() < deadline:
        time.sleep(0.1)
    assert len(living) == n, living


# ---- bad input ----


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"ranks": 0}, "ranks must be a whole number from 1 to 64, not 0"),
        ({"ranks": "4"}, "ranks must be a whole number from 1 to 64, not '4'"),
        ({"ranks": 2.5}, "ranks must be a whole number from 1 to 64, not 2.5"),
        ({"ranks": 65}, "ranks must be a whole number from 1 to 64, not 65"),
        ({"limit_s": 0}, "limit_s must be a finite number above 0 seconds, not 0"),
        ({"limit_s": float("nan")}, "limit_s must be"),
        ({"threads": 0}, "threads must be a whole number of at least 1, not 0"),
        ({"start": "thread"}, "start must be one of 'auto', 'fork', 'spawn', not 'thread'"),
        ({"worker": "lab_workers"}, "worker must be an importable function"),
        ({"worker": "lab workers:total"}, "worker must be an importable function"),
        ({"worker": 3}, "worker must be an importable function"),
        ({"worker": lambda ctx: None}, "worker must be an importable function"),
        ({"worker": processes.Path.exists}, "worker must be an importable function"),
    ],
)
def test_bad_input_names_the_argument(arguments, message):
    with pytest.raises(ValueError, match="must be") as caught:
        run(**{"worker": "lab_workers:total", "ranks": 2, **arguments})
    assert message in str(caught.value)


def test_params_must_be_json():
    with pytest.raises(TypeError):
        run("lab_workers:total", 2, {"a": object()})


def test_a_worker_typed_into_a_notebook_or_script_is_refused_with_the_way_out(start_caller):
    code = "from shardlab.labs import run\ndef worker(ctx): pass\nrun(worker, 2)"
    caller = start_caller(code)
    text, _ = caller.communicate(timeout=600)
    assert "put it in a .py file and import it" in text


def test_lab_errors_show_themselves_briefly_in_a_notebook():
    error = LabError("rank 1 of 2 fell", cause="died", rank=1)
    assert error._render_traceback_() == ["LabError: rank 1 of 2 fell"]
    assert labs.LabError is LabError


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (0, "ended with exit status 0"),
        (-15, "was killed by signal 15 (SIGTERM)"),
        (-250, "signal 250 (unknown)"),
    ],
)
def test_words_for_an_exit_status(status, words):
    assert words in processes.exit_words(status)
