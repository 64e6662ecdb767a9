"""Downloads from Moodle and Canvas, sorted into the folders that grading reads."""

from __future__ import annotations

import shutil
import unicodedata
import zipfile
from pathlib import Path

import pytest
from course_folder import RING, Course
from submission import REPOSITORY

NOTEBOOK = RING.notebook
MOODLE = "First name,Last name,ID number,Email address\n"


@pytest.fixture
def course(tmp_path) -> Course:
    """A course with one assignment and nothing handed in."""
    root = tmp_path / "course"
    shutil.copytree(REPOSITORY / "exercises" / "source" / RING.name, root / "source" / RING.name)
    return Course(root)


def zipped(tmp_path: Path, *files: tuple[str, str]) -> Path:
    """An archive with these files."""
    path = tmp_path / "download.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in files:
            archive.writestr(name, content)
    return path


def listed(tmp_path: Path, text: str) -> Path:
    """A platform's list of students."""
    path = tmp_path / "students.csv"
    path.write_text(text, encoding="utf-8")
    return path


def handed_in(course: Course) -> dict[str, str]:
    """Content of each notebook where grading looks for it, by student."""
    found = (course.root / "submitted").glob(f"*/{RING.name}/{NOTEBOOK}")
    return {path.parent.parent.name: path.read_text() for path in found}


def test_a_download_from_moodle_finds_its_students_by_name(course, tmp_path):
    download = zipped(
        tmp_path,
        (f"Ada Lovelace_4711_assignsubmission_file/{NOTEBOOK}", "ada"),
        # Older versions end the folder's name with a line, and a browser numbers what it loads twice.
        ("Jürgen Müller_4712_assignsubmission_file_/ring_allreduce (1).ipynb", "jürgen"),
        # Without folders; and names may be written the other way round, as in China.
        (f"王小明_4713_assignsubmission_file_{NOTEBOOK}", "wang"),
        ("Ada Lovelace_4711_assignsubmission_file/notes.txt", "no notebook"),
        (f"__MACOSX/Ada Lovelace_4711_assignsubmission_file/._{NOTEBOOK}", "litter"),
        (f"Ada Lovelace_4711_assignsubmission_file/.ipynb_checkpoints/{NOTEBOOK}", "litter"),
    )
    students = listed(
        tmp_path, f"{MOODLE}Ada,Lovelace,s1,ada@example.org\nJürgen,Müller,,jm@example.org\n小明,王,s3,\n"
    )
    done = course.run("collect", RING.name, download, "--students", students)
    assert done.returncode == 0, done.stderr
    assert handed_in(course) == {"s1": "ada", "jm@example.org": "jürgen", "s3": "wang"}
    assert "collected jm@example.org: Jürgen Müller_4712_assignsubmission_file_/ring_allreduce (1).ipynb" in (
        done.stdout
    )
    assert f"3 submissions in {course.root / 'submitted'}" in done.stdout


def test_the_grading_worksheet_of_moodle_tells_numbers_where_names_do_not(course, tmp_path):
    download = zipped(
        tmp_path,
        (f"Ann Lee_21_assignsubmission_file/{NOTEBOOK}", "one"),
        (f"Ann Lee_1_assignsubmission_file/{NOTEBOOK}", "the other"),
    )
    done = course.run("collect", RING.name, download)
    assert done.returncode == 1
    for number in (1, 21):
        assert (
            f"not collected: Ann Lee {number}: several students are called so; Moodle's grading"
            in done.stderr
        )
    assert handed_in(course) == {}
    students = listed(
        tmp_path,
        "Identifier,Full name,Email address,Status\n"
        "Participant 21,Ann Lee,lee@example.org,\nParticipant 1,Ann Lee,ann@example.org,\n",
    )
    done = course.run("collect", RING.name, download, "--students", students)
    assert done.returncode == 0, done.stderr
    assert handed_in(course) == {"lee@example.org": "one", "ann@example.org": "the other"}
    # Where marking is blind there are no names at all.
    blind = zipped(tmp_path, (f"Participant_7_assignsubmission_file/{NOTEBOOK}", "who?"))
    students = listed(tmp_path, "Identifier,Status\nParticipant 7,\nParticipant 77,\n")
    done = course.run("collect", RING.name, blind, "--students", students)
    assert done.returncode == 0, done.stderr
    assert handed_in(course)["Participant 7"] == "who?"


def test_a_download_from_canvas_finds_its_students_by_id(course, tmp_path):
    download = zipped(
        tmp_path,
        ("lovelaceada_101_9001_ring_allreduce.ipynb", "ada"),
        ("rossbob_LATE_102_9002_ring_allreduce-2.ipynb", "bob"),
        ("strangereve_103_9003_ring_allreduce.ipynb", "eve"),
    )
    # Bob's number elsewhere is Ada's in Canvas.
    students = listed(
        tmp_path,
        "Student,ID,SIS User ID,SIS Login ID,Section\n"
        '    Points Possible,,,,\n"Ross, Bob",102,101,bob,A\n"Lovelace, Ada",101,7,ada,A\n',
    )
    done = course.run("collect", RING.name, download, "--students", students)
    assert done.returncode == 1
    assert handed_in(course) == {"ada": "ada", "bob": "bob"}
    assert "not collected: 103: not among the students" in done.stderr


def test_without_a_list_the_platforms_names_are_taken(course, tmp_path):
    download = tmp_path / "unpacked"
    # A Mac unpacks ë as two characters.
    mac = unicodedata.normalize("NFD", "Zoë O'Brien")
    for path in (
        f"{mac}_1_assignsubmission_file/{NOTEBOOK}",
        "lovelaceada_101_9001_ring.ipynb",
        f"bob/deep/{NOTEBOOK}",
    ):
        (download / path).parent.mkdir(parents=True, exist_ok=True)
        (download / path).write_text(path)
    done = course.run("collect", RING.name, download)
    assert done.returncode == 0, done.stderr
    assert set(handed_in(course)) == {"Zoë O'Brien", "101", "bob"}


def test_an_archive_that_a_mac_packed_keeps_its_letters(course, tmp_path):
    download = zipped(tmp_path, (f"Juxxrgen_1_assignsubmission_file/{NOTEBOOK}", "packed anew"))
    # UTF-8, and no flag that says so.
    download.write_bytes(download.read_bytes().replace(b"uxxr", "u\u0308r".encode()))
    assert course.run("collect", RING.name, download).returncode == 0
    assert set(handed_in(course)) == {"J\u00fcrgen"}


def test_what_is_not_plain_is_named_and_left_to_the_teacher(course, tmp_path):
    download = zipped(
        tmp_path,
        (f"Ann Lee_1_assignsubmission_file/{NOTEBOOK}", "which Ann Lee?"),
        ("Bob Ross_2_assignsubmission_file/a.ipynb", "a"),
        ("Bob Ross_2_assignsubmission_file/b.ipynb", "b"),
        (f"../../evil/{NOTEBOOK}", "x"),
        (NOTEBOOK, "whose?"),
        (f"eve[1]/{NOTEBOOK}", "x"),
        (f"huge/{NOTEBOOK}", " " * 10_000_001),
    )
    students = listed(tmp_path, f"{MOODLE}Ann,Lee,s1,\nAnn,Lee,s2,\nBob,Ross,s3,\n")
    done = course.run("collect", RING.name, download, "--students", students)
    assert done.returncode == 1
    assert handed_in(course) == {}
    assert "Ann Lee 1: several students are called so" in done.stderr
    assert "Bob Ross: 2 notebooks, and which one is meant is not plain" in done.stderr
    assert f"{NOTEBOOK}: whose it is, neither a folder nor its name tells" in done.stderr
    assert f"huge/{NOTEBOOK}: a notebook may have 10 MB" in done.stderr
    again = course.run("collect", RING.name, download)
    assert "'eve[1]' can't be the name of a folder here" in again.stderr
    assert set(handed_in(course)) == {"Ann Lee"}
    assert not (tmp_path / "evil").exists()


def test_a_newer_version_takes_the_place_of_an_older_one_only_if_asked(course, tmp_path):
    name = f"Ada Lovelace_4711_assignsubmission_file/{NOTEBOOK}"
    assert course.run("collect", RING.name, zipped(tmp_path, (name, "old"))).returncode == 0
    done = course.run("collect", RING.name, zipped(tmp_path, (name, "old")))
    assert "collected Ada Lovelace: unchanged" in done.stdout
    done = course.run("collect", RING.name, zipped(tmp_path, (name, "new")))
    assert done.returncode == 1
    assert "Ada Lovelace: another version is there already; --replace takes the new one" in done.stderr
    assert handed_in(course) == {"Ada Lovelace": "old"}
    assert course.run("collect", RING.name, zipped(tmp_path, (name, "new")), "--replace").returncode == 0
    assert handed_in(course) == {"Ada Lovelace": "new"}


def test_a_download_that_is_none_is_an_error(course, tmp_path):
    text = tmp_path / "some.txt"
    text.write_text("hello")
    done = course.run("collect", RING.name, text)
    assert done.returncode == 1
    assert f"{text} must be a ZIP file or a folder that can be read" in done.stderr
    done = course.run("collect", RING.name, zipped(tmp_path, ("a/b.txt", "hello")))
    assert "there is no notebook in" in done.stderr
