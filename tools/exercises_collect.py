"""Sort a platform's download of submissions into ``submitted/STUDENT/ASSIGNMENT/NOTEBOOK.ipynb``.

Moodle's "Download all submissions" holds a folder for each student, ``Full Name_4711_assignsubmission_file``; with
"Download submissions in folders" off, each file's name begins so. The number belongs to this assignment: Moodle's
grading worksheet knows it ("Participant 4711"), elsewhere only the name tells who it is. Source:
mod/assign/classes/downloader.php of Moodle, ``load_submissionplugin_filelist``.

Canvas' "Download Submissions" holds files only, such as ``lovelaceada_LATE_101_56789_ring_allreduce-1.ipynb``: the
name in one word, perhaps a mark for lateness, the user's ID, the file's ID, and what the student called it, to which
Canvas adds a number from the second attempt on. Source: lib/content_zipper.rb of Canvas, ``get_filename``.

Any other archive or folder is taken as STUDENT/…/NOTEBOOK.ipynb.
"""

from __future__ import annotations

import contextlib
import re
import unicodedata
import zipfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from exercises_course import Course, ExercisesError
from exercises_intake import MOST_NOTEBOOK, is_student
from exercises_lms import Roster

_MOODLE = re.compile(r"(?:^|/)([^/]+)_(\d+)_assignsubmission_file(?:[_/]|$)")
_CANVAS = re.compile(r"[^/]*?_(?:LATE_)?(\d+)_\d+_[^/]+")
# What systems and browsers leave in archives.
_LITTER = re.compile(r"(^|/)(__MACOSX|\.[^/]*)(/|$)")


@dataclass(frozen=True)
class Person:
    """Somebody who handed in, as the platform says it: a name or an ID, and Moodle's number for this assignment."""

    name: str
    number: str = ""
    platform: str = ""

    def folders(self, roster: Roster | None) -> list[str]:
        """The folders of all students who may be meant; without a list, one called as the platform calls them."""
        if roster is None:
            return [self.name]
        if self.platform == "moodle":
            return roster.with_number(self.number) or roster.named(self.name)
        # Canvas' own ID might also be somebody's number elsewhere.
        return roster.with_id(self.name, ("ID",) if self.platform == "canvas" else None)


@dataclass(frozen=True)
class Found:
    """A notebook in the download: its path there, and its content."""

    path: str
    data: bytes


def _name(entry: zipfile.ZipInfo) -> str:
    """An entry's path. A Mac writes UTF-8 and doesn't say so, and then Python reads the letters of old PCs."""
    if not entry.flag_bits & 0x800:
        with contextlib.suppress(UnicodeError):
            return entry.filename.encode("cp437").decode("utf-8")
    return entry.filename


def _files(download: Path) -> Iterator[tuple[str, bytes | None]]:
    """Path and content of every file in a ZIP or a folder; no content where it is no notebook, or too large for one."""
    if download.is_dir():
        for path in sorted(download.rglob("*")):
            inside = path.relative_to(download).as_posix()
            if path.is_file() and not path.is_symlink() and not _LITTER.search(inside):
                wanted = path.suffix == ".ipynb" and path.stat().st_size <= MOST_NOTEBOOK
                yield inside, path.read_bytes() if wanted else None
        return
    try:
        with zipfile.ZipFile(download) as archive:
            for entry in sorted(archive.infolist(), key=lambda one: one.filename):
                name = _name(entry)
                if entry.is_dir() or _LITTER.search(name):
                    continue
                if not name.endswith(".ipynb"):
                    yield name, None
                else:
                    # What an entry says of its size may be a lie: never read more.
                    with archive.open(entry) as file:
                        data = file.read(MOST_NOTEBOOK + 1)
                    yield name, data if len(data) <= MOST_NOTEBOOK else None
    except (OSError, zipfile.BadZipFile, RuntimeError, NotImplementedError) as error:
        raise ExercisesError(f"{download} must be a ZIP file or a folder that can be read: {error}") from None


def _who(path: str) -> Person:
    """The student that a path names; no name where it names none."""
    path = unicodedata.normalize("NFC", path)
    moodle = _MOODLE.search(path)
    if moodle:
        return Person(moodle[1].strip(), moodle[2], "moodle")
    canvas = _CANVAS.fullmatch(PurePosixPath(path).name)
    if canvas:
        return Person(canvas[1], platform="canvas")
    return Person(PurePosixPath(path).parts[0] if "/" in path else "")


def _chosen(notebook: str, found: list[Found]) -> Found | str:
    """The one of a student's notebooks that is meant, or why none is."""
    exact = [one for one in found if PurePosixPath(one.path).name == notebook]
    if len(exact) == 1:
        return exact[0]
    if len(found) == 1:
        return found[0]
    names = ", ".join(one.path for one in found)
    return f"{len(found)} notebooks, and which one is meant is not plain: {names}"


def collect(
    course: Course, assignment: str, download: Path, roster: Roster | None, replace: bool
) -> tuple[list[str], list[str]]:
    """Put the notebooks of a download where grading looks for them.

    Args:
        course: whose folder ``submitted`` they go to.
        assignment: the one that was handed in.
        download: a ZIP, or a folder that it was unpacked to.
        roster: who is who; without it Moodle's full name and Canvas' user ID name the folder.
        replace: whether a notebook that is there already, and is another one, makes way.

    Returns:
        What was done, and what was not, a line for each.

    Raises:
        ExercisesError: the download can't be read, or there is no notebook in it.
    """
    wanted = f"{course.notebooks(assignment)[0]}.ipynb"
    done, complaints = [], []
    people: dict[Person, list[Found]] = {}
    others: dict[Person, list[str]] = {}
    for path, data in _files(download):
        person = _who(path)
        if not path.endswith(".ipynb"):
            others.setdefault(person, []).append(PurePosixPath(path).name)
        elif data is None:
            complaints.append(f"{path}: a notebook may have {MOST_NOTEBOOK / 1e6:g} MB")
        elif not person.name:
            complaints.append(f"{path}: whose it is, neither a folder nor its name tells")
        else:
            people.setdefault(person, []).append(Found(path, data))
    for person, names in others.items():
        # Where it isn't a platform that says so, a folder need not be a student's.
        if person.platform and person not in people:
            complaints.append(f"{person.name}: handed in no notebook, but {', '.join(names)}")
    if not people and not complaints:
        raise ExercisesError(f"there is no notebook in {download}")
    folders = {person: person.folders(roster) for person in people}
    used = Counter(names[0] for names in folders.values() if len(names) == 1)
    for person, found in people.items():
        names = folders[person]
        if not names:
            complaints.append(f"{person.name}: not among the students")
        elif len(names) > 1 or used[names[0]] > 1:
            complaints.append(
                f"{person.name} {person.number}".strip() + ": several students are called so; "
                "Moodle's grading worksheet, given as --students, tells them apart"
            )
        elif not is_student(names[0]):
            complaints.append(
                f"{person.name}: {names[0]!r} can't be the name of a folder here; put it in by hand"
            )
        else:
            one = _chosen(wanted, found)
            if isinstance(one, str):
                complaints.append(f"{person.name}: {one}")
                continue
            target = course.root / "submitted" / names[0] / assignment / wanted
            same = target.exists() and target.read_bytes() == one.data
            if target.exists() and not same and not replace:
                complaints.append(
                    f"{names[0]}: another version is there already; --replace takes the new one"
                )
                continue
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(one.data)
            done.append(f"{names[0]}: {'unchanged' if same else one.path}")
    return done, complaints
