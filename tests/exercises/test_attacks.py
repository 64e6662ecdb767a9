"""Submissions that attack the grader: each costs its author the marks, and nobody else anything.

They are graded beside an honest one that keeps its full marks: the one that must be given up at its time limit with a
short limit, all others with limits that even a busy machine does not need.
"""

from __future__ import annotations

import csv
import re
import shutil
import socket
import threading
import uuid
from dataclasses import dataclass
from pathlib import Path

import nbformat
import pytest
from course_folder import RING, Course
from descendants import after_patience, watched
from submission import REPOSITORY, changed

REFERENCE, FULL = RING.reference, sum(RING.full)
MARK = f"exercises-attack-{uuid.uuid4().hex}"
SHORT_LIMIT_S, LIMIT_S = 5, 120
SLEEP = "sleep 31415"

# Every line that students must not see, and that no given code has too.
SECRET = {
    line.strip()
    for cell in RING.cells().values()
    for region in re.findall(r"### BEGIN HIDDEN TESTS\n(.*?)### END", cell.source, flags=re.DOTALL)
    for line in region.splitlines()
    if len(line.strip()) > 20
}
SECRET -= {line.strip() for source in REFERENCE.values() for line in source.splitlines()}
HIDDEN = max(SECRET, key=len)

FLOOD_THE_SOCKET = """
import os
for number in range(3, 64):
    try:
        os.set_blocking(number, True)
        for _ in range(1000):
            os.write(number, b"\\x00\\x00\\xff\\xff" + b"x" * 65535)
    except OSError:
        pass
"""

FORK_BOMB = """
import os, time
while True:
    try:
        if os.fork() == 0:
            time.sleep(60)
            os._exit(0)
    except BlockingIOError:
        time.sleep(0.1)
"""

READ_EVERYTHING = f"""
import builtins, inspect, linecache, sys, traceback
from pathlib import Path
root = {str(REPOSITORY)!r}
for place in ("exercises/source/03_ring_allreduce/ring_allreduce.ipynb", "exercises", "tests", "tools", ".git"):
    print(place, Path(root, place).exists())
for place in ("/root/.bashrc", "/home", "/proc/1/root/etc/shadow"):
    try:
        print(place, Path(place).exists())
    except OSError:
        print(place, "forbidden")
print(Path("/etc/passwd").read_text())
print(In, Out, _ih)
print(linecache.cache)
print(list(get_ipython().history_manager.get_range()))
frame = sys._getframe()
while frame:
    print(frame.f_locals)
    frame = frame.f_back
get_ipython().events.register("pre_run_cell", lambda info: print("SEEN", info.raw_cell))
get_ipython().ast_transformers.append(type("Spy", (), {{"visit": lambda self, node: print("TREE", __import__("ast").unparse(node)) or node}})())
"""

LOOK_AROUND_IN_A_CHECK = (
    REFERENCE["task-2-code"]
    + """
_ring, seen = ring_reduce_scatter, []
def ring_reduce_scatter(net, chunks):
    import inspect, linecache, sys
    frame = sys._getframe()
    while frame:
        seen.append(str(frame.f_locals))
        seen.append("".join(linecache.getlines(frame.f_code.co_filename)))
        try:
            seen.append(inspect.getsource(frame.f_code))
        except (OSError, TypeError):
            pass
        frame = frame.f_back
    return _ring(net, chunks)
"""
)

WRITE_EVERYWHERE = f"""
import os
from pathlib import Path
targets = ["/", "/etc", "/usr", "/dev", "/exercises", "/proc", "/root", "/home", "/var", {str(REPOSITORY)!r},
           {str(REPOSITORY)!r} + "/src/shardlab", {str(REPOSITORY)!r} + "/exercises", "/work", "/mnt", "/tmp/.."]
for place in targets:
    try:
        Path(place, {MARK!r}).write_text("mine")
        print("WROTE", place)
    except OSError as error:
        pass
for program in ("mount -t tmpfs none /mnt", "unshare -U true", "chmod u+s /tmp/work", "nsenter -t 1 -m true"):
    print(program, os.system(program + " 2>/dev/null") == 0)
"""

FILL_THE_DISK = """
written = 0
for place in ("/tmp/work", "/tmp", "/dev/shm", "/dev", "/"):
    for number in range(100):
        try:
            with open(f"{place}/full{number}", "wb") as file:
                for _ in range(64):
                    written += file.write(bytes(1 << 20))
        except OSError:
            break
print("WRITTEN", written >> 20)
"""

LEAVE_PROCESSES = f"""
import os, subprocess
subprocess.Popen({SLEEP.split()!r}, start_new_session=True)
if os.fork() == 0:
    os.setsid()
    if os.fork():
        os._exit(0)
    os.execvp("sleep", {SLEEP.split()!r})
try:
    os.kill(os.getppid(), 9)
except OSError:
    pass
for number in range(1, 50):
    if number != os.getpid():
        try:
            os.kill(number, 15)
        except OSError:
            pass
"""

RESTORED = """
honest = Checklist.total
def total(self):
    Checklist.total = honest
    return 6.0
def ring_reduce_scatter(net, chunks):
    Checklist.total = total
    return chunks
"""

FORGED = """
def forge(function):
    def forged(net, chunks):
        import os, socket
        import exercises_kernel as kernel
        for number in range(3, 40):
            try:
                kernel.send(socket.socket(fileno=os.dup(number)), {"check": ['{"value": 6.0}', "00"]})
            except OSError:
                pass
        return function(net, chunks)
    return forged
"""

A_LATER_PATCH = """
import threading, time
def later():
    while True:
        try:
            while True:
                Checklist.total = lambda self: 6.0
                time.sleep(0.01)
        except BaseException:
            pass
threading.Thread(target=later, daemon=True).start()
"""

AT_THE_END = """
import atexit
class Later:
    def __del__(self):
        Checklist.total = lambda self: 6.0
class Evil:
    pass
cycle = Evil()
cycle.self, cycle.later = cycle, Later()
atexit.register(lambda: setattr(Checklist, "total", lambda self: 6.0))
del cycle
def ring_reduce_scatter(net, chunks):
    import gc
    gc.collect()
    return chunks
"""

FAKE_NUMBERS = """
import sys
def ring_reduce_scatter(net, chunks):
    print("6.0", file=sys.__stdout__)
    get_ipython().displayhook(6.0)
    display(6.0)
    sys.displayhook(6.0)
    return chunks
print(6.0)
class Checklist:
    def __init__(self, *_, **__): pass
    def add(self, *_): pass
    def total(self): return 6.0
get_ipython().displayhook.write_format_data = lambda *_: print("6.0")
get_ipython().display_formatter.format = lambda *_: ({"text/plain": "6.0"}, {})
get_ipython().run_cell = lambda *_, **__: print("6.0")
"""


@dataclass(frozen=True)
class Attack:
    """Cells that a student handed in, the marks that remain, and what the report says."""

    cells: dict[str, str]
    total: int = 0
    error: str = ""


def also(cell: str, source: str) -> dict[str, str]:
    """The reference with something more in one cell."""
    return {**REFERENCE, cell: f"{source}\n{REFERENCE[cell]}"}


MARKS = dict(zip(("1", "2", "3", "4", "5"), RING.full, strict=False))

ATTACKS = {
    # Costs a task.
    "prints_gigabytes": Attack(
        changed(REFERENCE, task_1_answer="for _ in range(20_000):\n    print('x' * 100_000)\n"),
        FULL - MARKS["1"],
    ),
    "exits": Attack(
        changed(REFERENCE, task_1_answer="import sys\nsys.exit(0)"), FULL - MARKS["1"], "task-1-answer"
    ),
    "fakes_a_number": Attack({"task-2-code": FAKE_NUMBERS}),
    # Costs everything.
    "ignores_interrupts": Attack(
        also(
            "task-1-answer",
            "import signal, time\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\ntime.sleep(600)",
        ),
        0,
        f"a cell could not be stopped at its limit of {SHORT_LIMIT_S} s",
    ),
    "floods_the_socket": Attack(also("task-1-answer", FLOOD_THE_SOCKET), 0, "Error: "),
    "fork_bomb": Attack(also("task-1-answer", FORK_BOMB), 0, "more than "),
    "eats_memory": Attack(
        also("task-1-answer", "eaten = []\nwhile True:\n    eaten.append(b'x' * 20_000_000)"),
        0,
        "GiB of memory",
    ),
    "kills_its_kernel": Attack(
        also("task-1-answer", "import os\nos.kill(os.getpid(), 9)"), 0, "ended its own kernel"
    ),
    "prints_hidden_checks": Attack(
        also("task-1-answer", f"print(repr(bytes.fromhex({HIDDEN.encode().hex()!r}).decode()))"),
        0,
        "LeakedError",
    ),
    "searches_memory": Attack(
        also("task-1-answer", "import gc\ntry:\n    gc.get_objects()\nexcept PermissionError:\n    pass"),
        0,
        "gc.get_objects",
    ),
    "reads_memory": Attack(
        also("task-1-answer", "try:\n    open('/proc/self/mem', 'rb')\nexcept OSError:\n    pass"),
        0,
        "/proc/self/mem",
    ),
    "patches_total": Attack(
        also("task-2-code", "Checklist.total = lambda self: 6"), 0, "Checklist.total was replaced"
    ),
    "patches_checks": Attack(
        also("task-2-code", "ring_checks.try_reduce_scatter = None"),
        0,
        "ring_checks.try_reduce_scatter was replaced",
    ),
    "patches_code": Attack(
        also("task-2-code", "def total(self):\n    return 6.0\nChecklist.total.__code__ = total.__code__"),
        0,
        "Checklist.total.__code__ was replaced",
    ),
    "patches_builtins": Attack(
        also("task-2-code", "import builtins\nbuiltins.sum = lambda *_: 6.0"), 0, "builtins.sum was replaced"
    ),
    "patches_the_library": Attack(
        also("task-2-code", "import contextlib\ncontextlib.redirect_stdout = None"),
        0,
        "redirect_stdout was replaced",
    ),
    "swaps_a_module": Attack(
        also("task-2-code", "import sys, types\nsys.modules['shardlab.classroom'] = types.ModuleType('x')"),
        0,
        "the module shardlab.classroom was replaced",
    ),
    "patches_and_restores": Attack(
        {**changed(REFERENCE, task_2_code=RESTORED), "task-2-try": ""},
        0,
        "Checklist was changed, and changed back",
    ),
    "patches_when_collected": Attack(
        changed(REFERENCE, task_2_code=AT_THE_END), 0, "Checklist.total was replaced"
    ),
    "adds_an_audit_hook": Attack(
        also(
            "task-2-code", "import sys\ntry:\n    sys.addaudithook(print)\nexcept PermissionError:\n    pass"
        ),
        0,
        "added an audit hook",
    ),
    "sets_a_trace": Attack(
        also("task-2-code", "import sys\nsys.settrace(lambda *_: None)"),
        0,
        "a trace or profile function is set",
    ),
    "sets_a_timer": Attack(
        also(
            "task-2-code",
            "import signal\nsignal.signal(signal.SIGALRM, lambda *_: None)\nsignal.setitimer(signal.ITIMER_REAL, 30)",
        ),
        0,
        "a timer is set",
    ),
    "forges_a_result": Attack(
        {**REFERENCE, "task-2-try": f"{FORGED}\nring_reduce_scatter = forge(ring_reduce_scatter)"},
        0,
        "forged",
    ),
    "changes_its_numbers": Attack(
        also("task-1-answer", "object.__setattr__(numbers, 'n_ranks', 1)"),
        0,
        "numbers was changed from within",
    ),
    "is_somebody_else": Attack(
        also("task-1-answer", "import os\nos.environ['SHARDLAB_STUDENT'] = 'honest'"),
        0,
        "SHARDLAB_STUDENT was changed",
    ),
    # The thread never ends, so no check runs beside it.
    "patches_from_a_thread": Attack(also("task-1-answer", A_LATER_PATCH), 0, ""),
    # Gets nothing out of it, and loses nothing: it is the reference.
    "looks_around": Attack(also("task-6-answer", ""), FULL),
    "writes_everywhere": Attack(also("task-1-answer", WRITE_EVERYWHERE), FULL),
    "fills_the_disk": Attack(also("task-1-answer", FILL_THE_DISK), FULL),
    "leaves_processes": Attack(also("task-1-answer", LEAVE_PROCESSES), FULL),
}


@pytest.fixture(scope="module")
def listener():
    """A service on the host's loopback, and how many called it."""
    calls: list[object] = []
    server = socket.create_server(("127.0.0.1", 0))
    server.settimeout(0.2)
    over = threading.Event()

    def accept() -> None:
        while not over.is_set():
            try:
                calls.append(server.accept())
            except TimeoutError:
                continue

    thread = threading.Thread(target=accept)
    thread.start()
    yield server.getsockname()[1], calls
    over.set()
    thread.join()
    server.close()


@pytest.fixture(scope="module")
def graded(tmp_path_factory, listener) -> tuple[Course, list[str]]:
    """The course after grading all attacks together with an honest submission, and the processes that are left."""
    root = tmp_path_factory.mktemp("attacked")
    shutil.copytree(REPOSITORY / "exercises" / "source" / RING.name, root / "source" / RING.name)
    course = Course(root)
    assert course.run("release", RING.name).returncode == 0
    course.hand_in("honest", REFERENCE)
    for student, attack in ATTACKS.items():
        course.hand_in(student, attack.cells)
    spy = {**also("task-1-answer", READ_EVERYTHING), "task-2-code": LOOK_AROUND_IN_A_CHECK}
    course.hand_in(
        "looks_around", {**spy, "task-3-code": f"print(seen, In, dir())\n{REFERENCE['task-3-code']}"}
    )
    port = listener[0]
    call = f"""
import socket
for host in ("127.0.0.1", "::1", "10.0.2.2", "8.8.8.8"):
    try:
        socket.create_connection((host, {port}), timeout=1)
        print("REACHED", host)
    except OSError:
        pass
"""
    course.hand_in("calls_out", also("task-1-answer", call))
    _edit_notebooks(course)
    _odd_files(course)
    limits = ("--submission-timeout", LIMIT_S, "--memory-gib", 1, "--jobs", 2)
    with watched() as living:
        resists = ("--student", "ignores_interrupts", "--cell-timeout", SHORT_LIMIT_S)
        for options in (resists, ("--cell-timeout", 60)):
            done = course.run("grade", *limits, *options, limit_s=1500)
            assert done.returncode == 0, done.stdout + done.stderr
            seconds = re.findall(r"\(([\d.]+) s\)$", done.stdout, flags=re.MULTILINE)
            assert seconds
            # Nobody holds the run up: the limit, and what it takes to start and to write everything down.
            assert max(map(float, seconds)) < LIMIT_S + 60
        left = after_patience(living)
    return course, left


@pytest.fixture(scope="module")
def course(graded) -> Course:
    """The course after grading."""
    return graded[0]


def _edit_notebooks(course: Course) -> None:
    """Submissions whose cells and metadata were edited; none of their tasks is solved."""

    def edit(student: str, change) -> None:
        path = course.hand_in(student, {})
        notebook = nbformat.read(path, as_version=4)
        cells = {cell.id: cell for cell in notebook.cells}
        change(notebook, cells)
        path.write_text(nbformat.writes(notebook))

    result = nbformat.v4.new_output("execute_result", {"text/plain": "6.0"}, execution_count=1)

    def mark_as_run(notebook, cells) -> None:
        cell = cells["task-2-check"]
        cell.outputs, cell.execution_count = [result], 7
        cell.metadata["tags"] = ["skip-execution"]

    def edit_check(notebook, cells) -> None:
        cells["task-2-check"].source = "6.0"

    def delete_check(notebook, cells) -> None:
        notebook.cells.remove(cells["task-2-check"])

    def more_points(notebook, cells) -> None:
        cells["task-2-check"].metadata["nbgrader"]["points"] = 1000
        cells["task-2-check"].metadata["nbgrader"]["locked"] = False

    def own_check(notebook, cells) -> None:
        cell = nbformat.v4.new_code_cell("6.0")
        cell.metadata["nbgrader"] = {**cells["task-2-check"].metadata["nbgrader"], "grade_id": "task-2-mine"}
        notebook.cells.append(cell)

    def same_name(notebook, cells) -> None:
        cell = nbformat.v4.new_code_cell("6.0")
        cell.metadata["nbgrader"] = dict(cells["task-2-check"].metadata["nbgrader"])
        notebook.cells.append(cell)

    def check_as_text(notebook, cells) -> None:
        cells["task-2-check"].cell_type = "markdown"
        del cells["task-2-check"]["outputs"], cells["task-2-check"]["execution_count"]

    for change in (mark_as_run, edit_check, delete_check, more_points, own_check, same_name, check_as_text):
        edit(f"edit_{change.__name__}", change)
    # The same by an honest student, out of carelessness.
    path = course.hand_in("careless", REFERENCE)
    notebook = nbformat.read(path, as_version=4)
    cells = {cell.id: cell for cell in notebook.cells}
    notebook.cells = [
        cell for cell in notebook.cells if cell.id not in ("imports", "task-3-check", "task-6-table")
    ]
    notebook.cells.append(nbformat.from_dict({**cells["task-2-code"], "id": "copied"}))
    path.write_text(nbformat.writes(notebook))


def _odd_files(course: Course) -> None:
    """Submissions whose files are not what they seem."""
    honest = course.root / "submitted" / "honest" / RING.name / RING.notebook

    def folder(student: str) -> Path:
        path = course.root / "submitted" / student / RING.name
        path.mkdir(parents=True)
        return path

    with (folder("huge") / RING.notebook).open("wb") as file:
        file.truncate(200_000_000)
    (folder("link_to_passwd") / RING.notebook).symlink_to("/etc/passwd")
    (folder("link_to_honest") / RING.notebook).symlink_to(honest)
    linked = course.root / "submitted" / "linked_folder"
    linked.mkdir()
    (linked / RING.name).symlink_to(honest.parent)
    course.hand_in("link_beside", REFERENCE)
    (course.root / "submitted" / "link_beside" / RING.name / "data.csv").symlink_to("/etc/passwd")
    path = course.hand_in("odd_names", also("task-1-answer", "import os\nprint(sorted(os.listdir()))"))
    for name in ("..ipynb", "..\\..\\evil.py", "...", "-rf", "a\nb", "=1+1.txt"):
        (path.parent / name).write_text("{}")
    course.hand_in(
        "injects",
        changed(
            REFERENCE,
            task_1_answer="print('<script>alert(1)</script>')\n"
            "from IPython.display import HTML\ndisplay(HTML('<script>alert(2)</script>'))\n"
            + REFERENCE["task-1-answer"],
            task_6_answer='=HYPERLINK("http://evil.example")\n<script>alert(3)</script>'
            "<img src=x onerror=alert(4)>\n[a](javascript:alert(5))",
        ),
    )


pytestmark = pytest.mark.timeout(1800)


def test_the_honest_submission_keeps_its_marks(course):
    assert course.marks("honest") == RING.full
    assert course.rows()["honest"]["error"] == ""


@pytest.mark.parametrize("student", ATTACKS)
def test_an_attack_costs_its_author(course, student):
    attack, row = ATTACKS[student], course.rows()[student]
    assert int(row["total"]) == attack.total, row
    assert attack.error in row["error"]
    if attack.total == 0 and attack.error:
        assert row["to_mark"] == "0"
    if attack.total == FULL:
        assert row["error"] == ""


def test_a_thread_that_will_not_end_leaves_no_check(course):
    assert "no check runs beside it" in course.rows()["patches_from_a_thread"]["error"]


@pytest.mark.parametrize(
    "change",
    ["mark_as_run", "edit_check", "delete_check", "more_points", "own_check", "same_name", "check_as_text"],
)
def test_an_edited_notebook_earns_nothing(course, change):
    row = course.rows()[f"edit_{change}"]
    assert (row["total"], row["max"], row["error"]) == ("0", "30", "")


def test_a_deleted_or_copied_cell_costs_nothing(course):
    assert course.marks("careless") == RING.full
    assert course.rows()["careless"]["error"] == ""


def test_no_hidden_check_comes_back(course):
    assert len(SECRET) > 20
    public = " ".join(cell.source for cell in nbformat.read(course.release(), as_version=4).cells)
    for student in ("looks_around", "honest"):
        said = course.output(student)
        assert not [line for line in SECRET if line in said and line not in public]
    said = course.output("looks_around")
    # It did look: its own cells were seen, and nothing of the teacher's is there to find.
    assert "SEEN" in said
    assert "exercises/source/03_ring_allreduce/ring_allreduce.ipynb False" in said
    assert "student:x:1000" in said
    assert "root:x:0" not in said


def test_nothing_is_written_outside(course):
    said = course.output("writes_everywhere")
    assert "WROTE" not in said
    assert said.count("False") >= 3
    assert "mount -t tmpfs none /mnt False" in said
    for place in ("/", "/etc", "/usr", "/dev", "/root", "/mnt", REPOSITORY, REPOSITORY / "exercises", "/tmp"):
        assert not Path(place, MARK).exists()


def test_a_full_disk_is_a_small_one(course):
    found = re.search(r"WRITTEN (\d+)", course.output("fills_the_disk"))
    assert found
    assert 64 <= int(found[1]) <= 520


def test_no_service_of_the_host_is_reached(course, listener):
    assert "REACHED" not in course.output("calls_out")
    assert course.marks("calls_out") == RING.full
    assert not listener[1]


def test_no_process_is_left(graded):
    assert graded[1] == []


def test_a_flood_leaves_the_gradebook_small(course):
    assert (course.root / "gradebook.db").stat().st_size < 3_000_000
    path = course.root / "autograded" / "prints_gigabytes" / RING.name / RING.notebook
    assert path.stat().st_size < 400_000
    assert "cut off after 100,000 characters" in course.output("prints_gigabytes")


@pytest.mark.parametrize(
    ("student", "words"),
    [
        ("huge", "has 200 MB; a notebook may have 10 MB"),
        ("link_to_passwd", "ring_allreduce.ipynb is a link"),
        ("link_to_honest", "ring_allreduce.ipynb is a link"),
        ("linked_folder", "03_ring_allreduce is a link"),
        ("link_beside", "data.csv is a link"),
    ],
)
def test_a_file_that_is_no_submission_is_never_read(course, student, words):
    row = course.rows()[student]
    assert row["total"] == "0"
    assert words in row["error"]
    assert not (course.root / "autograded" / student).exists()


def test_odd_names_do_no_harm(course):
    assert course.marks("odd_names") == RING.full
    assert "evil.py" in course.output("odd_names")
    assert not list(course.root.parent.glob("*evil*"))


def test_what_a_student_writes_runs_nowhere(course):
    assert course.marks("injects") == RING.full
    assert course.run("sheet").returncode == 0
    with (course.root / "to_mark.csv").open(newline="", encoding="utf-8-sig") as file:
        answer = next(row["answer"] for row in csv.DictReader(file) if row["student"] == "injects")
    assert answer.startswith("'=HYPERLINK")
    assert course.run("feedback", "--student", "injects").returncode == 0
    page = (course.root / "feedback" / "injects" / RING.name / "ring_allreduce.html").read_text()
    assert "default-src 'none'" in page[: page.index("</head>")]
    assert page.index("Content-Security-Policy") < page.index("<script") if "<script" in page else True
    for number in (1, 2, 3):
        assert f"<script>alert({number})" not in page
    assert not re.search(r"<img[^>]*onerror", page)
    assert 'href="javascript:' not in page
