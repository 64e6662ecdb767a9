"""Where a class runs it: dev container, Binder, USB stick. The files fit their references, the Makefile and the locks."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
import urllib.request
import zipfile
from pathlib import Path

import pytest

from tests.jupyter_server import jupyter_lab

ROOT = Path(__file__).resolve().parents[1]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PYTHON = PYPROJECT["tool"]["mypy"]["python_version"]
MAKEFILE = (ROOT / "Makefile").read_text()
RUNNING = (ROOT / "book" / "instructor" / "running.md").read_text()
# Properties and types of https://containers.dev/implementors/json_reference/, for a container that is made of an image.
GENERAL = {
    "name": str,
    "image": str,
    "hostRequirements": dict,
    "containerEnv": dict,
    "remoteEnv": dict,
    "remoteUser": str,
    "features": dict,
    "forwardPorts": list,
    "postCreateCommand": (str, list, dict),
    "postStartCommand": (str, list, dict),
    "customizations": dict,
}


def make_targets(makefile: str = MAKEFILE) -> set[str]:
    """Everything that the Makefile can make, its variables filled in."""
    venv = re.search(r"^VENV := (\S+)$", makefile, re.MULTILINE)
    assert venv is not None
    return {
        name.replace("$(VENV)", venv[1])
        for name in re.findall(r"^([\w./$()-]+):(?!=)", makefile, re.MULTILINE)
    }


def dev_container() -> dict:
    """devcontainer.json, which may hold comments on lines of their own."""
    text = (ROOT / ".devcontainer" / "devcontainer.json").read_text()
    return json.loads("\n".join("" if line.lstrip().startswith("//") else line for line in text.splitlines()))


def commands(script: str) -> list[list[str]]:
    """A shell script's commands, without comments and settings of the shell."""
    lines = [line.strip() for line in script.splitlines()]
    return [shlex.split(line) for line in lines if line and not line.startswith(("#", "set "))]


def assert_only_make(wanted: list[list[str]]) -> None:
    """Every command is ``make`` with targets that there are, so that no installation is described twice."""
    assert wanted
    for command in wanted:
        assert command[0] == "make", command
        assert len(command) > 1
        assert set(command[1:]) <= make_targets(), command


# ---- dev container ----


def test_the_dev_container_has_only_properties_of_the_reference():
    found = dev_container()
    assert set(found) <= set(GENERAL)
    for name, value in found.items():
        assert isinstance(value, GENERAL[name]), name
    # "Required when using an image".
    assert found["image"]
    assert isinstance(found["hostRequirements"]["cpus"], int)
    assert re.fullmatch(r"\d+(tb|gb|mb|kb)", found["hostRequirements"]["memory"])
    assert all(isinstance(value, str) for value in found["containerEnv"].values())


def test_the_dev_container_runs_the_makefile_on_the_python_of_the_project():
    found = dev_container()
    assert_only_make(commands(found["postCreateCommand"]))
    assert re.search(r"/python:([\d.]+)-", found["image"])[1] == PYTHON
    assert f">={PYTHON}" == PYPROJECT["project"]["requires-python"]
    threads = re.search(r"export OMP_NUM_THREADS \?= (\d)", MAKEFILE)
    assert found["containerEnv"]["OMP_NUM_THREADS"] == threads[1]


def test_the_editor_uses_the_environment_that_make_sets_up():
    settings = dev_container()["customizations"]["vscode"]["settings"]
    interpreter = settings["python.defaultInterpreterPath"]
    assert f"{Path(interpreter).parts[0]}/.lab" in commands(dev_container()["postCreateCommand"])[0]


# ---- Binder ----


def test_binder_pins_the_python_of_the_project():
    assert (ROOT / "binder" / "runtime.txt").read_text().strip() == f"python-{PYTHON}"
    # repo2docker reads one of binder/ and .binder/, and then nothing at the root.
    assert not (ROOT / ".binder").exists()


def test_binder_installs_the_lock_and_this_package():
    lines = [
        line
        for line in (ROOT / "binder" / "requirements.txt").read_text().splitlines()
        if line and not line.startswith("#")
    ]
    locks = [line.removeprefix("-r ") for line in lines if line.startswith("-r ")]
    assert [(ROOT / "binder" / lock).resolve() for lock in locks] == [ROOT / "requirements" / "lab.txt"]
    assert lines[len(locks) :] == ["."]


def test_binder_runs_the_makefile_after_the_build():
    path = ROOT / "binder" / "postBuild"
    text = path.read_text()
    assert text.startswith("#!/bin/bash\n")
    assert re.search(r"^set -e", text, re.MULTILINE), "repo2docker would ignore an error"
    assert os.access(path, os.X_OK)
    assert_only_make(commands(text))


def test_every_lock_is_pinned_and_nothing_but_pip_is_asked_for():
    for name in ("lab", "torch", "grade"):
        for line in (ROOT / "requirements" / f"{name}.txt").read_text().splitlines():
            assert re.match(r"[\w.-]+==\S+", line), f"requirements/{name}.txt: {line}"
    for folder in (".devcontainer", "binder"):
        for path in (ROOT / folder).iterdir():
            assert not re.search(r"\b(conda|mamba|poetry|pipenv|uv pip)\b", path.read_text()), path


# ---- the page that says how ----


def test_the_page_names_only_targets_tools_and_files_that_are_there():
    blocks = "\n".join(re.findall(r"```bash\n(.*?)```", RUNNING, re.DOTALL))
    named = [line.split("#")[0].split() for line in blocks.splitlines()]
    targets = {command[1] for command in named if command[:1] == ["make"]}
    assert {"lab", "torch", "start", "usb", "release"} <= targets
    assert targets <= make_targets()
    for path in re.findall(r"(?<![\w/-])(?:requirements|tools|binder|\.devcontainer)/[\w.]+", RUNNING):
        assert (ROOT / path).exists(), path
    options = subprocess.run(
        [sys.executable, str(ROOT / "tools" / "usb_stick.py"), "--help"],
        capture_output=True,
        text=True,
        timeout=280,
    )
    for option in re.findall(r"usb_stick\.py (--\w+)", RUNNING):
        assert option in options.stdout


def test_a_hub_gives_each_student_what_a_codespace_has():
    wanted = dev_container()["hostRequirements"]
    words = {2: "two", 4: "four"}[wanted["cpus"]]
    assert f"give each student {words} cores and {wanted['memory'].upper().replace('GB', ' GB')}" in RUNNING


def test_every_way_in_the_table_has_its_section():
    for anchor in re.findall(r"^\| \[[^]]+\]\(#([\w-]+)\)", RUNNING, re.MULTILINE):
        assert f"({anchor})=" in RUNNING


# ---- the USB stick ----


def tiny_wheel(folder: Path, name: str, code: str) -> None:
    """The least wheel that pip installs."""
    info = f"{name}-1.0.dist-info"
    with zipfile.ZipFile(folder / f"{name}-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr(f"{name}.py", code)
        wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        wheel.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr(f"{info}/RECORD", "")


@pytest.fixture
def stick(tmp_path) -> Path:
    """A stick with the real installer, and with wheels that a test can afford; PyTorch is left out."""
    folder = tmp_path / "stick"
    for name in ("wheels", "notebooks", "exercises/01_one"):
        (folder / name).mkdir(parents=True)
    for name in ("shardlab", "needed"):
        tiny_wheel(folder / "wheels", name, f"NAME = {name!r}\n")
    (folder / "lab.txt").write_text("needed==1.0\n")
    (folder / "torch.txt").write_text("torch==1.0\n")
    (folder / "notebooks" / "01.ipynb").write_text("{}")
    (folder / "exercises" / "01_one" / "one.ipynb").write_text("{}")
    (folder / "install.py").write_text((ROOT / "tools" / "usb_install.py").read_text())
    return folder


def run(*command: object) -> subprocess.CompletedProcess[str]:
    """Run a command with every package index out of reach."""
    nowhere = dict.fromkeys(("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL"), "http://127.0.0.1:9/")
    return subprocess.run(
        [str(part) for part in command],
        capture_output=True,
        text=True,
        timeout=280,
        env={**os.environ, **nowhere},
    )


def test_a_stick_installs_without_a_network_and_keeps_work(stick, tmp_path):
    home = tmp_path / "home"
    python = home / ".venv" / "bin" / "python"
    done = run(sys.executable, stick / "install.py", home)
    assert done.returncode == 0, done.stderr
    assert run(python, "-c", "import needed, shardlab; print(needed.NAME)").stdout == "needed\n"
    assert f"--ServerApp.root_dir={home}" in done.stdout
    mine = home / "exercises" / "work" / "01_one" / "one.ipynb"
    assert mine.read_text() == "{}"
    assert (home / "notebooks" / "01.ipynb").exists()
    # Once more, with PyTorch on the stick: it is added, and work stays as it is.
    mine.write_text("my work")
    tiny_wheel(stick / "wheels", "torch", "NAME = 'torch'\n")
    assert run(sys.executable, stick / "install.py", home).returncode == 0
    assert run(python, "-c", "import torch; print(torch.NAME)").stdout == "torch\n"
    assert mine.read_text() == "my work"
    # A stick from another kind of computer lacks a wheel.
    (stick / "lab.txt").write_text("needed==2.0\n")
    done = run(sys.executable, stick / "install.py", home)
    assert done.returncode == 1
    assert "The wheels on a stick are for one system, processor and Python" in done.stderr


def test_a_stick_needs_the_site_and_the_release(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    import usb_stick

    monkeypatch.setattr(usb_stick, "ROOT", tmp_path)
    with pytest.raises(SystemExit, match="is missing: make usb builds it first"):
        usb_stick.copy_book(tmp_path / "stick")


# ---- a contributor's machine ----


def test_the_packages_that_ci_installs_are_those_that_contributing_names():
    installed = set(
        " ".join(re.findall(r"packages\+=\(([^)]*)\)", (ROOT / ".ci" / "run").read_text())).split()
    )
    contributing = (ROOT / "CONTRIBUTING.md").read_text()
    table = re.findall(r"^\| [^|]+ \| ([^|]+) \| [^|]+ \|$", contributing, re.MULTILINE)
    assert installed == {name for cell in table[1:] for name in cell.split(", ") if set(name) - {"-"}}
    for name in ("Node.js", "Chromium", "iproute2", "bubblewrap", "Slurm", "shellcheck"):
        assert name in (ROOT / "README.md").read_text(), name


@pytest.fixture
def tools(monkeypatch):
    """Lets a test import from the folder with tools."""
    monkeypatch.syspath_prepend(str(ROOT / "tools"))


def test_an_environment_that_was_interrupted_is_finished_and_one_that_was_moved_is_made_anew(
    tools, tmp_path, monkeypatch, capsys
):
    import setup_venv

    made = []

    def create(words, command, log):
        venv = Path(command[-1])
        made.append(venv.exists() and sorted(path.name for path in venv.iterdir()))
        (venv / "bin").mkdir(exist_ok=True)
        (venv / "bin" / "python").unlink(missing_ok=True)
        # Runs `-c "import pip"` of a whole environment.
        (venv / "bin" / "python").symlink_to(sys.executable)

    monkeypatch.setattr(setup_venv, "run", create)
    venv = tmp_path / "book" / ".venv"
    # Interrupted: there is a Python in it, and no pip.
    (venv / "bin").mkdir(parents=True)
    (venv / "bin" / "python").write_text("#!/bin/sh\nexit 1\n")
    (venv / "bin" / "python").chmod(0o755)
    setup_venv.make_venv(venv, tmp_path / "log")
    assert made == [["bin"]]
    setup_venv.make_venv(venv, tmp_path / "log")
    assert len(made) == 1, "a whole one stays as it is"
    (venv / "mine").touch()
    (tmp_path / "book").rename(tmp_path / "my book")
    venv = tmp_path / "my book" / ".venv"
    setup_venv.make_venv(venv, tmp_path / "log")
    assert made[1:] == [[]], "nothing of the old one stays"
    assert "made in another folder" in capsys.readouterr().err


def test_make_sets_up_anew_what_was_moved(tmp_path):
    (tmp_path / "Makefile").write_text(MAKEFILE)
    for name in ("requirements/book.txt", "pyproject.toml", ".venv/bin/python"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    (tmp_path / ".venv" / "bin" / "python").chmod(0o755)
    (tmp_path / ".venv" / ".book").touch()

    def asked() -> str:
        command = ["make", "--dry-run", "html"]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=280).stdout

    for here, anew in ((tmp_path.resolve(), False), (tmp_path / "elsewhere", True)):
        (tmp_path / ".venv" / ".place").write_text(f"{here}\n")
        assert ("setup_venv.py" in asked()) == anew
        assert (tmp_path / ".venv" / ".book").exists() != anew


def test_ctrl_c_in_an_installation_is_told_in_one_line(tools, tmp_path, monkeypatch, capsys):
    import setup_venv

    def interrupted(*arguments, **settings):
        raise KeyboardInterrupt

    monkeypatch.setattr(setup_venv.subprocess, "run", interrupted)
    with pytest.raises(SystemExit) as stopped:
        setup_venv.run("install x", ["pip"], tmp_path / "log")
    assert stopped.value.code == 130
    assert "install x: stopped. Run it again to go on." in capsys.readouterr().err


def test_an_installation_without_a_network_says_what_to_do(tools, tmp_path):
    import setup_venv

    pip = "echo 'WARNING: Retrying ... Failed to establish a new connection'; echo 'ERROR: none'; exit 1"
    with pytest.raises(SystemExit) as stopped:
        setup_venv.run("install x", ["sh", "-c", pip], tmp_path / "log")
    said = str(stopped.value)
    assert said.startswith(
        f"ERROR: none\n\ninstall x failed (the whole log: {tmp_path / 'log'}).\nThe package index"
    )
    assert "Is there a network" in said
    with pytest.raises(SystemExit) as stopped:
        setup_venv.run("install x", ["sh", "-c", "echo 'ERROR: none'; exit 1"], tmp_path / "log")
    assert str(stopped.value).endswith("log).")


@pytest.fixture
def fake_book(tools, tmp_path, monkeypatch):
    """Gives a function that builds a book with a jupyter-book of one's own."""
    import build_book

    def build(program: str, limit_s: float = 60) -> None:
        (tmp_path / "bin").mkdir(exist_ok=True)
        path = tmp_path / "bin" / "jupyter-book"
        path.write_text(program)
        path.chmod(0o755)
        monkeypatch.setattr(build_book.sys, "executable", str(tmp_path / "bin" / "python"))
        build_book.build_pages(tmp_path, "build it", tmp_path / "log", True, limit_s)

    return build


def test_a_build_that_fails_says_what_stopped_it(fake_book, tmp_path):
    (tmp_path / "_build" / "html").mkdir(parents=True)
    (tmp_path / "_build" / "html" / "index.html").touch()
    fake_book("#!/bin/sh\necho reading sources\n")
    with pytest.raises(SystemExit, match=r"^a.md:1: WARNING: no such label\n\nIt was not built cleanly"):
        fake_book(
            "#!/bin/sh\necho fine\nprintf 'a.md:1: \\033[31mWARNING: no such label\\033[0m\\n'\nexit 1\n"
        )
    with pytest.raises(SystemExit) as stopped:
        fake_book(
            "#!/bin/sh\nprintf '\\033[91mException occurred:\\033[0m\\n  File \"x.py\", line 3\\nNameError: x\\n'\n"
            "echo The full traceback has been saved; seq 50; exit 1\n"
        )
    assert str(stopped.value).startswith('  File "x.py", line 3\nNameError: x\n\nIt was not built cleanly')


def test_a_build_that_hangs_is_ended(fake_book):
    with pytest.raises(SystemExit, match="took more than 1 s and was ended"):
        fake_book("#!/bin/sh\nexec sleep 60\n", limit_s=1)


def test_a_build_in_a_folder_that_was_moved_says_so(fake_book):
    with pytest.raises(SystemExit, match="Was the folder moved since it was installed"):
        fake_book("#!/nowhere/.venv/bin/python\n")


def test_make_lab_asks_nothing_of_the_network_and_of_the_reader(tmp_path):
    """JupyterLab takes the settings of `make lab`: no news, no look for updates, no question about either."""
    recipe = re.search(r"^lab: .*\n((?:\t.*\n)+)", MAKEFILE, re.MULTILINE)[1].replace("\\\n", " ")
    words = shlex.split(
        recipe.replace("@$(PY)", sys.executable).replace("$(CURDIR)", str(ROOT)).replace("$(ARGS)", "")
    )
    with jupyter_lab(words, tmp_path / "jupyter") as address:
        asked = f"{address}/lab/api/settings/@jupyterlab/apputils-extension:notification"
        with urllib.request.urlopen(asked, timeout=120) as answer:
            settings = json.load(answer)["schema"]["properties"]
    assert settings["fetchNews"]["default"] == "false"
    assert settings["checkForUpdates"]["default"] is False


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="not a git repository")
def test_nothing_with_a_students_name_gets_into_the_repository():
    readme = (ROOT / "exercises" / "README.md").read_text()
    tree = next(block for block in re.findall(r"```\n(.*?)```", readme, re.DOTALL) if "gradebook.db" in block)
    folders = set(re.findall(r"^\w+/", tree, re.MULTILINE)) - {"source/"}
    names = folders | set(re.findall(r"\w+\.(?:csv|db)\b", tree))
    assert {"submitted/", "feedback/", "grades.csv", "moodle.csv", "canvas.csv", "gradebook.db"} <= names
    # A folder's line ends with a slash; what lies in it is what counts.
    paths = [f"exercises/{name}{'x' if name.endswith('/') else ''}" for name in [*names, "moodle.zip"]]
    done = subprocess.run(
        ["git", "check-ignore", *paths], cwd=ROOT, capture_output=True, text=True, timeout=280
    )
    assert sorted(done.stdout.split()) == sorted(paths)
