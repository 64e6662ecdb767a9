"""Students who handed in something, and no notebook: the teacher hears of them."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest
from course_folder import RING, Course
from submission import REPOSITORY

SOURCE = REPOSITORY / "exercises" / "source" / RING.name


@pytest.fixture
def course(tmp_path) -> Course:
    """A course with one assignment and nothing handed in."""
    place = tmp_path / "course" / "source" / RING.name
    place.mkdir(parents=True)
    (place / RING.notebook).write_bytes((SOURCE / RING.notebook).read_bytes())
    return Course(tmp_path / "course")


FILES = (
    f"Ada Lovelace_4711_assignsubmission_file/{RING.notebook}",
    "Ada Lovelace_4711_assignsubmission_file/notes.txt",
    "Bob_4712_assignsubmission_file/ring allreduce.pdf",
    "Bob_4712_assignsubmission_file/homework.zip",
    "Bob_4712_assignsubmission_file/.DS_Store",
    "read me.txt",
    "material/slides.pdf",
)
SAID = "not collected: Bob: handed in no notebook, but homework.zip, ring allreduce.pdf"


@pytest.mark.parametrize("unpacked", [False, True])
def test_whoever_handed_in_no_notebook_is_named(course, tmp_path, unpacked):
    archive = tmp_path / "download.zip"
    with zipfile.ZipFile(archive, "w") as download:
        for name in FILES:
            download.writestr(name, name)
    place: Path = archive
    if unpacked:
        place = tmp_path / "unpacked"
        with zipfile.ZipFile(archive) as download:
            download.extractall(place)

    done = course.run("collect", RING.name, place)

    assert done.returncode == 1
    assert done.stderr.splitlines() == [SAID]
    assert "collected Ada Lovelace: " in done.stdout
    assert "1 submissions in " in done.stdout


def test_a_download_of_other_files_alone_names_everybody(course, tmp_path):
    archive = tmp_path / "download.zip"
    with zipfile.ZipFile(archive, "w") as download:
        download.writestr("lovelaceada_LATE_101_56789_report.pdf", "x")

    done = course.run("collect", RING.name, archive)

    assert done.returncode == 1
    report = "lovelaceada_LATE_101_56789_report.pdf"
    assert done.stderr.splitlines() == [f"not collected: 101: handed in no notebook, but {report}"]
