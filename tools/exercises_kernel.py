"""The inside of the sandbox: a process that is warm, and one fork of it for each submission.

``exercises_sandbox`` starts it and talks to it through unix sockets that it inherits; nothing here is told which
marks a check is worth. It needs IPython and shardlab, and neither nbgrader nor a Jupyter kernel: a submission's
cells run in IPython's own shell, so magics and ``display`` work as in JupyterLab.

For each submission the warm process forks one that moves into namespaces of its own: processes, network, mounts,
users, IPC. What one submission does there, the next one can't find. Three processes are involved:

- the *warm* one, which runs no student's code;
- the *first* of the new process namespace: it waits, passes on interrupts, and takes all others along when it ends;
- the *kernel*, without any rights, which runs the cells.

A check runs apart from the student's cells: not through IPython, whose hooks and history a student can reach, but
compiled and run here, in a namespace that is put together for it. Its result is signed by ``exercises_guard``.
"""

from __future__ import annotations

import ast
import base64
import builtins
import contextlib
import ctypes
import gc
import io
import json
import os
import re
import resource
import select
import signal
import socket
import struct
import sys
import threading
import time
import traceback
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import exercises_guard

STUDENT_VARIABLE = "SHARDLAB_STUDENT"
WORK = "/tmp/work"

# A cell's printed text; more is cut off.
MOST_TEXT = 100_000
MOST_PICTURE = 700_000
_MOST_TRACEBACK = 20_000
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_PARSE_ONLY = 0x400
_PATIENCE_S = 1.0


# ---- frames: a length, then JSON ----


def send(channel: socket.socket, message: dict[str, Any]) -> None:
    """Send one message."""
    body = json.dumps(message).encode()
    channel.sendall(struct.pack(">I", len(body)) + body)


def receive(channel: socket.socket) -> dict[str, Any] | None:
    """Wait for one message; None at the end."""
    head = _exactly(channel, 4)
    body = _exactly(channel, struct.unpack(">I", head)[0]) if head else None
    return None if body is None else dict(json.loads(body))


def _exactly(channel: socket.socket, n_bytes: int) -> bytes | None:
    parts = bytearray()
    while len(parts) < n_bytes:
        part = channel.recv(min(n_bytes - len(parts), 1 << 16))
        if not part:
            return None
        parts += part
    return bytes(parts)


# ---- the warm process ----


def main(control_number: int, isolated: bool, torch: bool) -> None:
    """Serve submissions until the grader hangs up.

    Args:
        control_number: file descriptor of the socket to the grader.
        isolated: whether bubblewrap is around us, so that each submission gets namespaces of its own.
        torch: whether submissions may see PyTorch.
    """
    control = socket.socket(fileno=control_number)
    shell = _warm_up(torch)
    snapshot = exercises_guard.take_snapshot()
    nested = isolated and _try_namespaces()
    send(
        control,
        {"nested": nested, "versions": snapshot.has_versions, "python": sys.version.split()[0]},
    )
    while True:
        data, numbers, _, _ = socket.recv_fds(control, 1 << 16, 2)
        if not data:
            return
        request = json.loads(data)
        lifeline, channel = (socket.socket(fileno=number) for number in numbers)
        outer = os.fork()
        if outer == 0:
            control.close()
            _outermost(request, nested, isolated, lifeline, channel, shell, snapshot)
        lifeline.close()
        channel.close()
        os.waitpid(outer, 0)
        if isolated and not nested:
            # Without namespaces of its own a submission could leave something for the next one.
            return


def _warm_up(torch: bool) -> Any:
    """Import whatever checks need, and make IPython's shell."""
    import importlib
    import pkgutil

    if not torch:
        # Starting ranks takes longer than all checks together. Where nothing asks for torch, it isn't there.
        sys.modules["torch"] = None  # type: ignore[assignment]
    import shardlab.classroom

    for module in pkgutil.iter_modules(shardlab.classroom.__path__):
        # Those that can't be imported need something that isn't there.
        with contextlib.suppress(ImportError):
            importlib.import_module(f"shardlab.classroom.{module.name}")
    # run_ranks looks it up at its first loop without end; afterwards ctypes is the guard's affair.
    _ = ctypes.pythonapi.PyThreadState_SetAsyncExc
    gc.collect()
    gc.freeze()
    return make_shell()


def _try_namespaces() -> bool:
    """Whether this system lets us make namespaces inside the sandbox's."""
    child = os.fork()
    if child == 0:
        try:
            _enter_namespaces()
            first = os.fork()
            if first == 0:
                try:
                    _furnish({"disk_bytes": 1 << 20})
                    os._exit(0)
                except OSError:
                    os._exit(1)
            os._exit(os.waitstatus_to_exitcode(os.waitpid(first, 0)[1]))
        except OSError:
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def _outermost(
    request: dict[str, Any],
    nested: bool,
    isolated: bool,
    lifeline: socket.socket,
    channel: socket.socket,
    shell: Any,
    snapshot: exercises_guard.Snapshot,
) -> None:
    """Enter new namespaces, start the first process in them, and wait for it. Never returns."""
    try:
        if nested:
            _enter_namespaces()
        first = os.fork()
        if first:
            lifeline.close()
            channel.close()
            os.waitpid(first, 0)
            os._exit(0)
        _die_with_parent()
        if nested:
            _furnish(request)
        kernel = os.fork()
        if kernel == 0:
            lifeline.close()
            _become_kernel(request, isolated)
            serve(channel, request, shell, snapshot)
            os._exit(0)
        channel.close()
        _first_process(kernel, lifeline)
    except BaseException:
        # Nothing was run yet: say what went wrong where the grader looks for it.
        with contextlib.suppress(OSError):
            send(channel, {"broken": traceback.format_exc()[-2000:]})
    os._exit(1)


def _first_process(kernel: int, lifeline: socket.socket) -> None:
    """Pass interrupts on to the kernel until the grader hangs up; then everything here ends with us."""
    if sys.platform == "linux":
        _prctl(_SET_DUMPABLE, 0)
    alive = True
    while True:
        ready, _, _ = select.select([lifeline], [], [], 0.5)
        with contextlib.suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG)[0]) > 0:
                alive = alive and ended != kernel
        if ready:
            word = lifeline.recv(1)
            if not word:
                if alive:
                    with contextlib.suppress(ProcessLookupError):
                        os.killpg(kernel, signal.SIGKILL)
                os._exit(0)
            if alive:
                os.kill(kernel, signal.SIGINT)


# ---- namespaces and limits ----

_LIBC = ctypes.CDLL(None, use_errno=True)
_NEW_USER, _NEW_PID, _NEW_NET, _NEW_IPC, _NEW_NS, _NEW_UTS = (
    0x10000000,
    0x20000000,
    0x40000000,
    0x08000000,
    0x00020000,
    0x04000000,
)
_SLAVE, _REC, _NO_SUID, _NO_DEV, _NO_EXEC = 1 << 19, 1 << 14, 2, 4, 8
_SET_DEATH_SIGNAL, _SET_DUMPABLE, _SET_SECCOMP, _SET_NO_NEW_PRIVILEGES = 1, 4, 22, 38


def _check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def _prctl(option: int, value: Any, more: Any = 0) -> None:
    _check(_LIBC.prctl(option, value, more, 0, 0), f"prctl {option}")


def _die_with_parent() -> None:
    if sys.platform == "linux":
        _prctl(_SET_DEATH_SIGNAL, signal.SIGKILL)


def _enter_namespaces() -> None:
    user, group = os.getuid(), os.getgid()
    _check(_LIBC.unshare(_NEW_USER | _NEW_PID | _NEW_NET | _NEW_IPC | _NEW_NS | _NEW_UTS), "unshare")
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
    Path("/proc/self/gid_map").write_text(f"{group} {group} 1")


def _furnish(request: dict[str, Any]) -> None:
    """Own /proc, own small /tmp, a loopback that is up, and no further user namespaces."""
    _check(_LIBC.mount(b"none", b"/", None, _SLAVE | _REC, None), "mount /")
    _mount("proc", "/proc", _NO_SUID | _NO_DEV | _NO_EXEC, "")
    size = request["disk_bytes"]
    for place in ("/tmp", "/dev/shm"):
        _mount("tmpfs", place, _NO_SUID | _NO_DEV, f"size={size},nr_inodes=20000,mode=0700")
    # In its own namespace it may only ever reach itself.
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        import fcntl

        fcntl.ioctl(probe, 0x8914, struct.pack("16sh14x", b"lo", 0x1 | 0x40))
    Path("/proc/sys/user/max_user_namespaces").write_text("0")


def _mount(kind: str, place: str, flags: int, options: str) -> None:
    result = _LIBC.mount(kind.encode(), place.encode(), kind.encode(), flags, options.encode())
    _check(result, f"mount {kind} on {place}")


def _become_kernel(request: dict[str, Any], isolated: bool) -> None:
    """Give up every right, and accept the limits."""
    os.setsid()
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(nothing, number)
    os.close(nothing)
    if isolated:
        os.makedirs(WORK, exist_ok=True)
        os.chdir(WORK)
    for name, most in request["limits"].items():
        number = getattr(resource, name, None)
        # Outside of a sandbox it would count all that the teacher runs.
        if number is not None and (isolated or name != "RLIMIT_NPROC"):
            _, hard = resource.getrlimit(number)
            least = most if hard == resource.RLIM_INFINITY else min(most, hard)
            resource.setrlimit(number, (least, least))
    if isolated:
        # Version 3 of the header, this process, no capability in any set.
        header, none = struct.pack("Ii", 0x20080522, 0), bytes(24)
        _check(_LIBC.capset(header, none), "capset")
        _prctl(_SET_NO_NEW_PRIVILEGES, 1)
        _forbid_calls()
        # Neither /proc/PID/mem nor a debugger reaches this process any more, not even from its own user.
        _prctl(_SET_DUMPABLE, 0)
    os.environ[STUDENT_VARIABLE] = request["student"]


# Memory that no limit counts, other processes' memory, and parts of the kernel that a notebook has no use for.
_FORBIDDEN = {
    "x86_64": (
        0xC000003E,
        # ptrace process_vm_readv process_vm_writev memfd_create memfd_secret userfaultfd bpf perf_event_open
        # keyctl add_key request_key io_uring_setup shmget msgget semget unshare setns mount umount2 pivot_root
        (101, 310, 311, 319, 447, 323, 321, 298, 250, 248, 249, 425, 29, 68, 64, 272, 308, 165, 166, 155),
    ),
    "aarch64": (
        0xC00000B7,
        (117, 270, 271, 279, 447, 282, 280, 241, 219, 217, 218, 425, 194, 186, 190, 97, 268, 40, 39, 41),
    ),
}


def _forbid_calls() -> None:
    """A seccomp filter (man 2 seccomp): the calls of ``_FORBIDDEN`` fail, everything else works."""
    machine = os.uname().machine
    if machine not in _FORBIDDEN:
        return
    architecture, calls = _FORBIDDEN[machine]
    load, equal, greater, give = 0x20, 0x15, 0x35, 0x06
    refuse, allow, kill = 0x00050000 | 1, 0x7FFF0000, 0x80000000
    program = [(load, 0, 0, 4), (equal, 1, 0, architecture), (give, 0, 0, kill), (load, 0, 0, 0)]
    # Calls of the x32 interface have numbers of their own.
    tests = [(greater, len(calls) + 1, 0, 0x40000000)]
    tests += [(equal, len(calls) - number, 0, call) for number, call in enumerate(calls)]
    program += [*tests, (give, 0, 0, allow), (give, 0, 0, refuse)]
    code = b"".join(struct.pack("HBBI", *line) for line in program)
    buffer = ctypes.create_string_buffer(code, len(code))
    header = struct.pack("HxxxxxxP", len(program), ctypes.addressof(buffer))
    _prctl(_SET_SECCOMP, 2, header)


# ---- IPython, with its output going to the grader ----


def make_shell() -> Any:
    """IPython's shell, without history on disk and without anybody's profile."""
    from IPython.core.displayhook import DisplayHook
    from IPython.core.displaypub import DisplayPublisher
    from IPython.core.interactiveshell import InteractiveShell
    from traitlets import Type
    from traitlets.config import Config

    class Result(DisplayHook):
        def write_output_prompt(self) -> None:
            pass

        def write_format_data(self, format_dict: dict[str, Any], md_dict: Any = None) -> None:
            out.emit({"output_type": "execute_result", "data": _shown(format_dict)})

        def finish_displayhook(self) -> None:
            pass

    class Publisher(DisplayPublisher):
        def publish(self, data: dict[str, Any], metadata: Any = None, **_: Any) -> None:
            out.emit({"output_type": "display_data", "data": _shown(data)})

        def clear_output(self, wait: bool = False) -> None:
            pass

    class Shell(InteractiveShell):
        displayhook_class = Type(Result)
        display_pub_class = Type(Publisher)

        def _showtraceback(self, etype: Any, evalue: Any, stb: list[str]) -> None:
            out.emit(_error(etype.__name__, str(evalue), stb))

        def _tee(self, channel: str) -> Any:
            # IPython would keep a second copy of all that is printed.
            return contextlib.nullcontext()

        def enable_gui(self, gui: Any = None) -> None:
            pass

    settings: Any = Config()
    settings.HistoryManager.enabled = False
    settings.InteractiveShell.cache_size = 100
    shell = Shell.instance(config=settings)
    shell.display_formatter.active_types = ["text/plain", "image/png"]
    return shell


def _shown(data: dict[str, Any]) -> dict[str, str]:
    """Text and pictures; no HTML and no scripts, which would run in the teacher's browser."""
    shown = {}
    text, picture = data.get("text/plain"), data.get("image/png")
    if isinstance(text, str):
        shown["text/plain"] = text[:MOST_TEXT]
    if isinstance(picture, bytes):
        picture = base64.b64encode(picture).decode()
    if isinstance(picture, str) and len(picture) <= MOST_PICTURE:
        shown["image/png"] = picture
    return shown


def _error(name: str, words: str, lines: list[str]) -> dict[str, Any]:
    trace = _COLOURS.sub("", "\n".join(str(line) for line in lines))
    return {
        "output_type": "error",
        "ename": name[:200],
        "evalue": words[:2000],
        "traceback": trace[-_MOST_TRACEBACK:].splitlines(),
    }


class Output:
    """Where a cell's outputs go; each cell has so much room and no more."""

    def __init__(self) -> None:
        self._channel: socket.socket | None = None
        self._room = 0
        self._streams: tuple[Stream, ...] = ()

    def open(self, channel: socket.socket, *streams: Stream) -> None:
        """A new cell begins."""
        self._channel, self._room, self._streams = channel, MOST_TEXT + MOST_PICTURE, streams
        for stream in streams:
            stream.reset()

    def emit(self, output: dict[str, Any]) -> None:
        """Send one output, if there is room left for it; what was printed before goes first."""
        if output["output_type"] != "stream":
            for stream in self._streams:
                stream.flush()
        size = len(json.dumps(output))
        if self._channel is not None and size <= self._room:
            self._room -= size
            send(self._channel, {"output": output})


out = Output()


class Stream(io.TextIOBase):
    """Standard output or error of a cell."""

    encoding = "utf-8"

    def __init__(self, name: str) -> None:
        self.name = name
        self.reset()

    def reset(self) -> None:
        """A new cell begins."""
        self._parts: list[str] = []
        self._pending = 0
        self._room = MOST_TEXT
        self._is_cut = False

    def write(self, text: str) -> int:
        """Keep the text until there is enough of it, or the cell ends."""
        if not isinstance(text, str):
            raise TypeError(f"write() argument must be str, not {type(text).__name__}")
        kept = text[: self._room]
        self._room -= len(kept)
        if len(kept) < len(text) and not self._is_cut:
            self._is_cut = True
            kept += f"\n… cut off after {MOST_TEXT:,} characters\n"
        if kept:
            self._parts.append(kept)
            self._pending += len(kept)
        if self._pending > 1 << 13:
            self.flush()
        return len(text)

    def flush(self) -> None:
        """Send what is there."""
        if self._parts:
            text, self._parts, self._pending = "".join(self._parts), [], 0
            out.emit({"output_type": "stream", "name": self.name, "text": text})

    def writable(self) -> bool:
        """Always."""
        return True

    def isatty(self) -> bool:
        """Never."""
        return False


# ---- a submission's cells ----


def serve(
    channel: socket.socket, request: dict[str, Any], shell: Any, snapshot: exercises_guard.Snapshot
) -> None:
    """Run the cells that the grader sends, until it sends no more."""
    secret = receive(channel)
    if secret is None:
        return
    for name, content in secret["files"].items():
        path = Path(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(base64.b64decode(content))
        path.chmod(0o444)
    # C extensions that are loaded later may bring threads and signals of their own; ours are set for every cell.
    kernel = Kernel(channel, request["student"], shell)
    exercises_guard.arm(snapshot, bytes.fromhex(secret.pop("key")))
    send(channel, {"ready": True})
    audit, wait, run = sys.audit, receive, kernel.run
    while True:
        # Before anything is read that a student's code should not see.
        audit("exercises.verify")
        cell = wait(channel)
        if cell is None:
            return
        run(cell)


class Kernel:
    """The cells' namespace, and the two ways to run a cell.

    Attributes:
        given: names that given cells bound to something of shardlab's, with their values: checks use these.
        from_checks: names that earlier checks defined; no student's cell sees them.
    """

    def __init__(self, channel: socket.socket, student: str, shell: Any) -> None:
        self._channel = channel
        self._student = student
        self._shell = shell
        self._stdout, self._stderr = Stream("stdout"), Stream("stderr")
        self.given: dict[str, Any] = {}
        self._frozen: dict[str, tuple[tuple[str, Any], ...]] = {}
        self.from_checks: dict[str, Any] = {}

    def run(self, cell: dict[str, Any]) -> None:
        """Run one cell and report."""
        if cell["kind"] == "check":
            self._run_check(cell)
            return
        if cell["kind"] == "quiet":
            send(self._channel, {"done": True, "quiet": _stop_threads()})
            return
        before = dict(self._shell.user_ns) if cell["kind"] == "given" else {}
        out.open(self._channel, self._stdout, self._stderr)
        sys.stdout, sys.stderr = self._stdout, self._stderr
        try:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            self._shell.run_cell(cell.pop("source"), store_history=True)
        except KeyboardInterrupt:
            out.emit(_error("KeyboardInterrupt", "", []))
        finally:
            signal.signal(signal.SIGINT, signal.SIG_IGN)
        self._stdout.flush()
        self._stderr.flush()
        if cell["kind"] == "given":
            self._remember(before)
        send(self._channel, {"done": True})

    def _remember(self, before: dict[str, Any]) -> None:
        """Keep what a given cell has bound to something of shardlab's."""
        for name, value in self._shell.user_ns.items():
            if before.get(name, self) is value:
                continue
            is_module = isinstance(value, types.ModuleType)
            home = value.__name__ if is_module else type(value).__module__
            if isinstance(value, (type, types.FunctionType)):
                home = value.__module__
            if str(home).partition(".")[0] == "shardlab":
                self.given[name] = value
                if not is_module and not isinstance(value, (type, types.FunctionType)):
                    self._frozen[name] = tuple(getattr(value, "__dict__", {}).items())

    def _run_check(self, cell: dict[str, Any]) -> None:
        """Run a check cell by itself, and have its result signed.

        This frame asks the guard to begin and to end: no other one can.
        """
        audit, source = sys.audit, cell.pop("source")
        nonce, proof = bytes.fromhex(cell["nonce"]), cell["proof"]
        audit("exercises.begin", nonce, proof)
        printed = _Capture()
        value, error = None, None
        complaint = self._complaint()
        if complaint is None:
            namespace = self._check_namespace()
            known = dict(namespace)
            sys.stdout = sys.stderr = printed
            try:
                signal.signal(signal.SIGINT, signal.default_int_handler)
                statements, last = _compiled(source, cell["name"])
                del source
                exec(statements, namespace)
                value = eval(last, namespace) if last is not None else None
            except BaseException as caught:
                error = _check_error(caught)
            finally:
                signal.signal(signal.SIGINT, signal.SIG_IGN)
                sys.stdout, sys.stderr = self._stdout, self._stderr
            for name, made in namespace.items():
                if known.get(name, self) is not made:
                    self.from_checks[name] = made
            complaint = self._complaint()
        number = value if type(value) in (int, float) else None
        report = {"value": number, "text": printed.text(), "error": error, "tampered": complaint}
        answer: list[str] = []
        audit("exercises.end", json.dumps(report), answer)
        send(self._channel, {"check": answer})

    def _check_namespace(self) -> dict[str, Any]:
        return {
            **self._shell.user_ns,
            **self.from_checks,
            **self.given,
            "__name__": "__main__",
            "__builtins__": builtins,
        }

    def _complaint(self) -> str | None:
        """What was tampered with, beside what the guard looks at."""
        if os.environ.get(STUDENT_VARIABLE) != self._student:
            return f"the variable {STUDENT_VARIABLE} was changed"
        for name, fields in self._frozen.items():
            now = tuple(getattr(self.given[name], "__dict__", {}).items())
            if len(now) != len(fields) or any(
                one[0] != other[0] or one[1] is not other[1] for one, other in zip(now, fields, strict=True)
            ):
                return f"{name} was changed from within"
        if sys.gettrace() is not None or sys.getprofile() is not None:
            return "a trace or profile function is set"
        if any(
            signal.getitimer(which)[0]
            for which in (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF)
        ):
            return "a timer is set that would interrupt a check"
        if gc.callbacks:
            return "a function is hooked into the garbage collector"
        return None


class _Capture(io.StringIO):
    """What a check prints, up to a limit."""

    def write(self, text: str) -> int:
        if self.tell() < MOST_TEXT:
            super().write(text[: MOST_TEXT - self.tell()])
        return len(text)

    def text(self) -> str:
        """All of it."""
        return self.getvalue()


def _compiled(source: str, name: str) -> tuple[Any, Any]:
    """A cell's statements, and its last line if that is an expression. The source itself is kept nowhere."""
    tree = compile(source, f"<{name}>", "exec", _PARSE_ONLY)
    last = tree.body.pop().value if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    expression = None if last is None else compile(ast.Expression(last), f"<{name}>", "eval")
    return compile(tree, f"<{name}>", "exec"), expression


def _check_error(error: BaseException) -> dict[str, Any]:
    """An exception that ended a check, without a line of the check itself."""
    try:
        render: Callable[[], list[str]] | None = getattr(error, "_render_traceback_", None)
        lines = render() if render else traceback.format_exception_only(type(error), error)
        return _error(type(error).__name__, str(error), lines)
    except Exception:
        return _error(type(error).__name__, "an exception that can't be shown", [])


def _stop_threads() -> bool:
    """End the threads that the notebook left running; False if one resists."""
    own = threading.get_ident()
    deadline = time.monotonic() + _PATIENCE_S
    while others := [number for number in sys._current_frames() if number != own]:
        if time.monotonic() > deadline:
            return False
        for number in others:
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(number), ctypes.py_object(SystemExit))
        time.sleep(0.02)
    return True
