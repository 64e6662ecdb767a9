"""The sandbox that submissions run in: bubblewrap around a warm Python, limits, and a socket to talk through.

What keeps a submission in is the operating system, not Python: namespaces of its own for processes, network, mounts,
users and IPC; a file system that holds a system, a Python and shardlab, all read-only, and a small folder in memory;
an unprivileged user, also when the teacher is root; resource limits; a filter of system calls. See bwrap(1),
namespaces(7), setrlimit(2), seccomp(2). ``exercises_kernel`` is the inside.

Nothing that comes out of the sandbox is believed: messages are bounded in size and number, and what a check earned
counts only with the signature of ``exercises_guard``.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import secrets
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parent
INSTALL = "install bubblewrap (Debian and Ubuntu: apt install bubblewrap; Fedora: dnf install bubblewrap)"

MOST_MESSAGE = 2_000_000
# Outputs of all cells of a submission together, pictures included. The kernel itself stops at less for each cell.
MOST_OUTPUT = 20_000_000
_TICK_S = 0.1
_START_S = 60.0
# After an interrupt a cell has so long to end.
_GRACE_S = 3.0
# Users that no account has: systemd draws its dynamic ones from here.
_FIRST_USER, _USERS = 61184, 4000


class SandboxError(Exception):
    """The sandbox can't be had, or broke: the teacher has to do something. The text says what."""


class StoppedError(Exception):
    """A submission was stopped: it gets no marks. The text says why."""


class OutOfTimeError(StoppedError):
    """It took too long."""


class OutOfMemoryError(StoppedError):
    """It took too much memory."""


class TooManyProcessesError(StoppedError):
    """It started too many processes."""


class TooMuchOutputError(StoppedError):
    """It sent more than anybody would read."""


class KernelDiedError(StoppedError):
    """Its kernel ended by itself."""


class TamperedError(StoppedError):
    """It changed the checking code, or its results."""


class LeakedError(StoppedError):
    """Its outputs hold what it should never have seen."""


@dataclass(frozen=True)
class Limits:
    """What one submission may use.

    Attributes:
        memory_bytes: resident memory of all its processes together.
        cpu_s: processor time of one process, seconds.
        processes: processes and threads at a time.
        disk_bytes: its folder in memory, and /dev/shm, each.
        file_bytes: one file.
    """

    memory_bytes: int = 2 << 30
    cpu_s: int = 600
    processes: int = 256
    disk_bytes: int = 256 << 20
    file_bytes: int = 128 << 20

    def resource_limits(self) -> dict[str, int]:
        """Names and values for setrlimit(2)."""
        return {
            # What is reserved, not what is used: PyTorch reserves more than twice what it uses.
            "RLIMIT_AS": 2 * self.memory_bytes + (1 << 30),
            "RLIMIT_CPU": self.cpu_s,
            "RLIMIT_NPROC": self.processes,
            "RLIMIT_FSIZE": self.file_bytes,
            "RLIMIT_NOFILE": 512,
            "RLIMIT_CORE": 0,
            "RLIMIT_MSGQUEUE": 0,
            "RLIMIT_MEMLOCK": 1 << 16,
        }


# ---- the Python of the kernels ----


@dataclass(frozen=True)
class KernelPython:
    """The Python that runs submissions, and the folders that it needs."""

    path: Path
    folders: tuple[Path, ...]
    has_torch: bool


_ASK = """
import importlib.util, json, os, sys
found = {name: importlib.util.find_spec(name) is not None for name in ("torch", "IPython", "shardlab")}
print(json.dumps({"found": found, "folders": [sys.prefix, sys.base_prefix, *filter(os.path.isdir, sys.path)]}))
"""


def default_pythons() -> list[Path]:
    """The Pythons that come into question, best first: the book's own has PyTorch, the grading one needn't."""
    named = os.environ.get("SHARDLAB_KERNEL_PYTHON")
    if named:
        return [Path(named)]
    return [REPOSITORY / ".venv" / "bin" / "python", Path(sys.executable)]


def find_python(candidates: list[Path]) -> KernelPython:
    """The first candidate with torch, else the first that can run submissions at all.

    Raises:
        SandboxError: none of them can.
    """
    found, missing = [], []
    for path in candidates:
        try:
            done = subprocess.run(
                [str(path), "-I", "-c", _ASK], capture_output=True, text=True, timeout=_START_S, check=True
            )
        except (OSError, subprocess.SubprocessError):
            missing.append(f"{path} can't be run")
            continue
        told = json.loads(done.stdout)
        lacking = [name for name in ("IPython", "shardlab") if not told["found"][name]]
        if lacking:
            missing.append(f"{path} has no {' and no '.join(lacking)}")
            continue
        folders = sorted({Path(name).resolve() for name in told["folders"]} | {Path(told["folders"][0])})
        inner = [
            one for one in folders if not any(one != other and one.is_relative_to(other) for other in folders)
        ]
        hidden = [str(one) for one in inner if one.is_relative_to("/tmp")]
        if hidden:
            missing.append(
                f"{path} needs {hidden[0]}, and inside of the sandbox /tmp is a submission's own folder"
            )
            continue
        found.append(KernelPython(path, tuple(inner), told["found"]["torch"]))
    if not found:
        raise SandboxError(
            f"no Python can run submissions: {'; '.join(missing)}. Run: make release, or name one that has IPython and "
            "shardlab with --kernel-python"
        )
    return next((one for one in found if one.has_torch), found[0])


# ---- the sandbox ----


def bubblewrap() -> str:
    """Path of bwrap.

    Raises:
        SandboxError: there is none, or it can't make a sandbox here.
    """
    program = shutil.which("bwrap")
    otherwise = "or grade without isolation: --no-isolation (submissions then run with your rights)"
    if program is None:
        raise SandboxError(
            f"submissions run in bubblewrap, and there is no bwrap here: {INSTALL}, {otherwise}"
        )
    command = [program, "--unshare-all", "--ro-bind", "/", "/", "--proc", "/proc", "--dev", "/dev", "true"]
    user = _unprivileged()
    settings: dict[str, Any] = {} if user is None else {"user": user, "group": user, "extra_groups": []}
    try:
        tried = subprocess.run(command, capture_output=True, text=True, timeout=30, **settings)
        fault = None if tried.returncode == 0 else tried.stderr.strip()
    except (OSError, subprocess.TimeoutExpired) as error:
        fault = str(error)
    if fault is not None:
        raise SandboxError(
            f"bubblewrap can't make a sandbox here: {fault}. Most likely user namespaces are forbidden: "
            "see sysctl kernel.unprivileged_userns_clone, kernel.apparmor_restrict_unprivileged_userns and "
            f"user.max_user_namespaces; in a container, run it with --privileged or on the host; {otherwise}"
        )
    return program


def _unprivileged() -> int | None:
    """The user that root becomes, who owns nothing: no limit on processes holds for root. None for anybody else."""
    return _FIRST_USER + os.getpid() % _USERS if hasattr(os, "geteuid") and os.geteuid() == 0 else None


class Sandbox:
    """A warm Python in bubblewrap that runs one submission after the other.

    Args:
        python: what runs the cells.
        limits: of one submission.
        isolated: False runs it without bubblewrap, with the rights of whoever grades.
        torch: whether submissions may see PyTorch.
    """

    def __init__(
        self, python: KernelPython, limits: Limits, isolated: bool = True, torch: bool = False
    ) -> None:
        self.python, self.limits, self.isolated, self.torch = python, limits, isolated, torch
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._log: Any = None
        self._reusable = False
        self._folder: str | None = None

    # ---- its life ----

    def _start(self) -> None:
        self.close()
        self._control, inner = socket.socketpair()
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 (it lives as long as the sandbox)
        with contextlib.ExitStack() as opened:
            opened.enter_context(inner)
            number = inner.fileno()
            run = [
                str(self.python.path),
                "-I",
                "-c",
                "import sys; sys.path.insert(0, sys.argv[1]); import exercises_kernel as kernel; "
                "kernel.main(int(sys.argv[2]), sys.argv[3] == 'isolated', sys.argv[4] == 'torch')",
            ]
            torch = "torch" if self.torch else "no torch"
            if self.isolated:
                command, numbers = self._bubblewrap(
                    opened, [*run, "/exercises", str(number), "isolated", torch]
                )
                settings: dict[str, Any] = {"env": {}}
            else:
                self._folder = tempfile.mkdtemp(prefix="exercises-")
                command, numbers = [*run, str(HERE), str(number), "open", torch], []
                settings = {"env": {**_environment(self._folder), "PATH": os.environ.get("PATH", "")}}
                settings["cwd"] = self._folder
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=self._log,
                stderr=self._log,
                pass_fds=[number, *numbers],
                start_new_session=True,
                **settings,
            )
        self._control.settimeout(_START_S)
        try:
            hello = _receive(self._control)
        except (OSError, ValueError):
            hello = None
        if hello is None:
            words = self._last_words()
            self.close()
            raise SandboxError(f"the sandbox did not start:\n{words}")
        self._control.settimeout(None)
        self._reusable = bool(hello["nested"]) or not self.isolated

    def _bubblewrap(self, opened: contextlib.ExitStack, run: list[str]) -> tuple[list[str], list[int]]:
        """The command that runs ``run`` inside, and the open files that it names."""
        numbers: list[int] = []
        binds: list[str] = []
        user = _unprivileged()
        stage = self._stage() if user is not None else ""

        def bind(path: Path, place: str | None = None) -> list[str]:
            # See exercises_enter: what only root can reach is bound to a place that everybody can.
            binds.append(str(path))
            source = f"{stage}/{len(binds) - 1}" if stage else str(path)
            return ["--ro-bind", source, place or str(path)]

        def data(text: str, place: str) -> list[str]:
            reader, writer = os.pipe()
            os.write(writer, text.encode())
            os.close(writer)
            opened.callback(os.close, reader)
            numbers.append(reader)
            return ["--ro-bind-data", str(reader), place]

        command = [
            bubblewrap_once(),
            "--unshare-all",
            "--die-with-parent",
            "--new-session",
            "--as-pid-1",
        ]
        command += ["--hostname", "sandbox", "--uid", "1000", "--gid", "1000", "--clearenv"]
        for name, value in _environment("/tmp").items():
            command += ["--setenv", name, value]
        command += bind(Path("/usr"))
        for name in ("bin", "sbin", "lib", "lib32", "lib64", "libx32"):
            path = Path("/", name)
            if path.is_symlink():
                command += ["--symlink", os.readlink(path), str(path)]
            elif path.is_dir():
                command += bind(path)
        for name in ("ld.so.cache", "localtime", "alternatives"):
            if Path("/etc", name).exists():
                command += bind(Path("/etc", name).resolve(), f"/etc/{name}")
        command += data("student:x:1000:1000::/tmp:/bin/sh\n", "/etc/passwd")
        command += data("student:x:1000:\n", "/etc/group")
        command += data("127.0.0.1 localhost sandbox\n::1 localhost\n", "/etc/hosts")
        for folder in self.python.folders:
            if not folder.is_relative_to("/usr"):
                command += bind(folder)
        for name in ("exercises_kernel.py", "exercises_guard.py"):
            command += bind(HERE / name, f"/exercises/{name}")
        size = str(self.limits.disk_bytes)
        command += [
            "--proc",
            "/proc",
            "--dev",
            "/dev",
            "--size",
            size,
            "--tmpfs",
            "/dev/shm",
            "--remount-ro",
            "/dev",
        ]
        command += ["--size", size, "--tmpfs", "/tmp", "--chdir", "/tmp", "--remount-ro", "/", "--", *run]
        if user is None:
            return command, numbers
        task = {"stage": stage, "binds": binds, "user": user, "command": command}
        return [sys.executable, "-I", str(HERE / "exercises_enter.py"), json.dumps(task)], numbers

    def _stage(self) -> str:
        """A folder that nothing in the sandbox needs: in a mount namespace of ours, other things will lie there."""
        for name in ("/mnt", "/media", "/srv", "/opt"):
            if Path(name).is_dir() and not any(
                one.is_relative_to(name) for one in [HERE, *self.python.folders]
            ):
                return name
        self._folder = tempfile.mkdtemp(prefix="exercises-")
        return self._folder

    def close(self, gently: bool = False) -> None:
        """End everything that runs in it; gently, if no submission is running."""
        if self._control is not None:
            self._control.close()
            self._control = None
        if self._process is not None:
            if gently:
                # The warm process ends by itself when we hang up.
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._process.wait(_GRACE_S)
            # bwrap's end is the end of its process namespace.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.kill()
            self._process.wait()
            self._process = None
        if self._log is not None:
            self._log.close()
            self._log = None
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None

    def _last_words(self) -> str:
        self._log.seek(0)
        text: bytes = self._log.read(100_000)
        return text.decode(errors="replace")[-2000:].strip() or "it said nothing"

    # ---- a submission ----

    @contextlib.contextmanager
    def session(self, student: str, files: dict[str, str], limit_s: float) -> Iterator[Session]:
        """A kernel for one submission.

        Args:
            student: whose it is.
            files: its other files, name to content in base 64.
            limit_s: seconds that it may take in all.
        """
        if self._process is None or self._process.poll() is not None or not self._reusable:
            self._start()
        assert self._process is not None
        assert self._control is not None
        lifeline, inner_lifeline = socket.socketpair()
        channel, inner_channel = socket.socketpair()
        key = secrets.token_bytes(32)
        request = {
            "student": student,
            "limits": self.limits.resource_limits(),
            "disk_bytes": self.limits.disk_bytes,
        }
        clean = False
        with lifeline, channel:
            with inner_lifeline, inner_channel:
                numbers = [inner_lifeline.fileno(), inner_channel.fileno()]
                socket.send_fds(self._control, [json.dumps(request).encode()], numbers)
            session = Session(channel, lifeline, key, self._process.pid, self.limits, limit_s)
            try:
                session.begin(files)
                yield session
                clean = True
            finally:
                # Whoever had to be stopped may not have stopped yet.
                if not clean or not self._reusable:
                    self.close()


_checked: str | None = None


def bubblewrap_once() -> str:
    """:func:`bubblewrap`, tried only once in a process."""
    global _checked
    _checked = _checked or bubblewrap()
    return _checked


def _environment(home: str) -> dict[str, str]:
    """The whole environment of a submission: nothing of the teacher's."""
    return {
        "PATH": "/usr/local/bin:/usr/bin:/bin",
        "HOME": home,
        "USER": "student",
        "TMPDIR": home,
        "IPYTHONDIR": f"{home}/.ipython",
        "LANG": "C.UTF-8",
        "PYTHONDONTWRITEBYTECODE": "1",
        "MPLBACKEND": "module://matplotlib_inline.backend_inline",
        "MPLCONFIGDIR": f"{home}/.matplotlib",
        # Memory that is reserved counts; threads would have more of it than they use.
        "MALLOC_ARENA_MAX": "2",
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
    }


@dataclass
class Checked:
    """What a check cell came to.

    Attributes:
        value: its result, a number, or None.
        text: what it printed.
        error: the exception that ended it, as a notebook's output, or None.
    """

    value: float | None
    text: str
    error: dict[str, Any] | None


@dataclass
class Session:
    """A submission's kernel: send a cell, get its outputs, and be sure that it ends."""

    channel: socket.socket
    lifeline: socket.socket
    key: bytes
    pid: int
    limits: Limits
    limit_s: float
    _began: float = field(default_factory=time.monotonic)
    _buffer: bytearray = field(default_factory=bytearray)
    _received: int = 0
    _own_processes: int = 0
    _own_bytes: int = 0

    def __post_init__(self) -> None:
        self.channel.setblocking(False)

    def send(self, message: dict[str, Any]) -> None:
        """Send one message, however slowly it is read."""
        body = json.dumps(message).encode()
        left = memoryview(struct.pack(">I", len(body)) + body)
        while left:
            _, ready, _ = select.select([], [self.channel], [], _TICK_S)
            self._look_around()
            if ready:
                try:
                    left = left[self.channel.send(left) :]
                except (BrokenPipeError, ConnectionResetError):
                    raise KernelDiedError(
                        "the notebook ended its own kernel (exit, or out of memory)"
                    ) from None

    def begin(self, files: dict[str, str]) -> None:
        """Hand over files and key, before any cell.

        Raises:
            SandboxError: the kernel could not be set up.
        """
        self.send({"key": self.key.hex(), "files": files})
        while (message := self._message()) is None:
            self._read()
        if "ready" not in message:
            raise SandboxError(f"the kernel could not be set up:\n{message.get('broken')}")
        # What is there before the first cell is ours.
        self._own_processes, self._own_bytes = usage(self.pid)

    def run(self, source: str, kind: str, timeout_s: float) -> list[dict[str, Any]]:
        """Run a cell of the student's (``own``) or of the assignment's (``given``); returns its outputs."""
        self.send({"kind": kind, "source": source})
        outputs: list[dict[str, Any]] = []
        late = self._until("done", timeout_s, outputs)[1]
        if late and not any(one["output_type"] == "error" for one in outputs):
            outputs.append(_error("CellTimeoutError", "stopped at the time limit"))
        return outputs

    def check(self, name: str, source: str, timeout_s: float) -> Checked:
        """Run a check; only a result with a signature counts.

        Raises:
            TamperedError: something was changed that the check stands on, or the signature is wrong.
        """
        self.send({"kind": "quiet"})
        quiet, _ = self._until("done", timeout_s, [])
        if not quiet.get("quiet"):
            words = "a thread of the notebook is still running, and no check runs beside it"
            return Checked(None, "", _error("NoResult", words))
        nonce = secrets.token_bytes(16)
        proof = hashlib.blake2b(nonce, key=self.key).hexdigest()
        self.send({"kind": "check", "name": name, "source": source, "nonce": nonce.hex(), "proof": proof})
        answer, late = self._until("check", timeout_s, [])
        try:
            text, signature = answer["check"]
            right = hashlib.blake2b(nonce + text.encode(), key=self.key).hexdigest()
            genuine = secrets.compare_digest(right, signature)
        except (TypeError, ValueError, AttributeError):
            genuine = False
        if not genuine:
            raise TamperedError(f"{name}: the result of the check is forged")
        if text.startswith("!"):
            raise TamperedError(f"{name}: {_plain(text[1:])}")
        report = json.loads(text)
        if report["tampered"]:
            raise TamperedError(f"{name}: {_plain(str(report['tampered']))}")
        if late:
            return Checked(None, report["text"], _error("CellTimeoutError", "stopped at the time limit"))
        return Checked(report["value"], report["text"], report["error"])

    def _until(
        self, word: str, timeout_s: float, outputs: list[dict[str, Any]]
    ) -> tuple[dict[str, Any], bool]:
        """Collect outputs until a message with ``word`` comes; tells whether the cell had to be interrupted."""
        deadline, late = time.monotonic() + timeout_s, False
        while True:
            message = self._message()
            if message is not None:
                if word in message:
                    return message, late
                output = _sound(message.get("output"))
                if output is not None:
                    outputs.append(output)
                continue
            now = time.monotonic()
            if now > deadline + (_GRACE_S if late else 0):
                if late:
                    raise OutOfTimeError(f"a cell could not be stopped at its limit of {timeout_s:g} s")
                late = True
                with contextlib.suppress(OSError):
                    self.lifeline.send(b"i")
            self._read()

    def _message(self) -> dict[str, Any] | None:
        if len(self._buffer) < 4:
            return None
        (length,) = struct.unpack(">I", self._buffer[:4])
        if length > MOST_MESSAGE:
            raise TooMuchOutputError(f"an output of more than {MOST_MESSAGE / 1e6:g} MB")
        if len(self._buffer) < 4 + length:
            return None
        body = bytes(self._buffer[4 : 4 + length])
        del self._buffer[: 4 + length]
        try:
            message = json.loads(body)
        except (ValueError, RecursionError):
            message = None
        if not isinstance(message, dict):
            raise TamperedError("the kernel's messages are forged")
        return message

    def _read(self) -> None:
        ready, _, _ = select.select([self.channel], [], [], _TICK_S)
        self._look_around()
        if not ready:
            return
        try:
            data = self.channel.recv(1 << 16)
        except BlockingIOError:
            return
        except ConnectionResetError:
            data = b""
        if not data:
            raise KernelDiedError("the notebook ended its own kernel (exit, or out of memory)")
        self._received += len(data)
        if self._received > MOST_OUTPUT:
            raise TooMuchOutputError(f"more than {MOST_OUTPUT / 1e6:g} MB of output")
        self._buffer += data

    _looked: float = 0.0

    def _look_around(self) -> None:
        """Stop a submission that takes too long or too much."""
        now = time.monotonic()
        if now - self._began > self.limit_s:
            raise OutOfTimeError(f"stopped after {self.limit_s:g} s in all")
        if now - self._looked < _TICK_S:
            return
        self._looked = now
        processes, resident = usage(self.pid)
        if resident - self._own_bytes > self.limits.memory_bytes:
            raise OutOfMemoryError(f"more than {self.limits.memory_bytes / 2**30:g} GiB of memory")
        if processes - self._own_processes > self.limits.processes:
            raise TooManyProcessesError(f"more than {self.limits.processes} processes")


def usage(pid: int) -> tuple[int, int]:
    """Number of a process's descendants, and the resident memory of all of them and itself, bytes.

    Memory that two processes share since a fork counts for both.
    """
    page, found, resident, todo = os.sysconf("SC_PAGE_SIZE"), 0, 0, [pid]
    while todo:
        one = todo.pop()
        with contextlib.suppress(OSError, ValueError, IndexError):
            _, pages, of_files, *_ = map(int, Path(f"/proc/{one}/statm").read_text().split())
            resident += (pages - of_files) * page
            found += 1
            for thread in os.listdir(f"/proc/{one}/task"):
                todo += map(int, Path(f"/proc/{one}/task/{thread}/children").read_text().split())
    return max(found - 1, 0), resident


def _receive(channel: socket.socket) -> dict[str, Any] | None:
    """The greeting of the warm process, which has run nothing of a student's yet."""
    data = b""
    while len(data) < 4 or len(data) < 4 + struct.unpack(">I", data[:4])[0]:
        part = channel.recv(1 << 16)
        if not part:
            return None
        data += part
    return dict(json.loads(data[4:]))


_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")


def _plain(text: str) -> str:
    """Text from inside without control characters, of bearable length."""
    return _CONTROL.sub("", text)[:300]


def _error(name: str, words: str) -> dict[str, Any]:
    return {"output_type": "error", "ename": name, "evalue": words, "traceback": [f"{name}: {words}"]}


def _sound(output: Any) -> dict[str, Any] | None:
    """An output with the fields that a notebook's output has, and only these; None if it is something else."""
    if not isinstance(output, dict):
        return None
    kind = output.get("output_type")
    if kind == "stream":
        name = "stderr" if output.get("name") == "stderr" else "stdout"
        return {"output_type": kind, "name": name, "text": _CONTROL.sub("", str(output.get("text", "")))}
    if kind == "error":
        trace = output.get("traceback")
        return {
            "output_type": kind,
            "ename": _plain(str(output.get("ename", ""))),
            "evalue": _CONTROL.sub("", str(output.get("evalue", "")))[:2000],
            "traceback": [_CONTROL.sub("", str(line)) for line in trace] if isinstance(trace, list) else [],
        }
    data = output.get("data")
    if kind in ("execute_result", "display_data") and isinstance(data, dict):
        kept = {key: str(data[key]) for key in ("text/plain", "image/png") if key in data}
        return {"output_type": kind, "data": kept, "metadata": {}}
    return None
