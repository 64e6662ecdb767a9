"""Sphinx extension for the pages for teachers: plans, goals and tables, written from the notebooks at build time.

::

    ```{syllabus} 6
    ```
    ```{course-goals}
    ```
    ```{course-assignments}
    ```
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from docutils import nodes
from docutils.statemachine import StringList
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from shardlab import __version__
from shardlab.classroom.course import (
    CourseBook,
    assignments_table,
    goals_page,
    read_course,
    syllabus,
)

_PAGES = "book/instructor/"


class _CourseDirective(SphinxDirective):  # type: ignore[misc]
    """Parses the Markdown that a function makes of the course."""

    def markdown(self, book: CourseBook) -> str:
        """What stands in the place of the directive."""
        raise NotImplementedError

    def run(self) -> list[nodes.Node]:
        try:
            text = self.markdown(read_course(Path(self.config.course_root or self.env.srcdir)))
        except ValueError as error:
            raise self.error(str(error)) from None
        found = nodes.Element()
        self.state.nested_parse(StringList(text.splitlines(), source="course"), self.content_offset, found)
        return list(found.children)


class SyllabusDirective(_CourseDirective):
    """``{syllabus} 6`` writes the plan for six weeks."""

    required_arguments = 1

    def markdown(self, book: CourseBook) -> str:
        weeks = self.arguments[0]
        return syllabus(book, int(weeks) if weeks.isdigit() else 0)


class GoalsDirective(_CourseDirective):
    """``{course-goals}`` writes every chapter's goals with what checks them."""

    def markdown(self, book: CourseBook) -> str:
        return goals_page(book)


class AssignmentsDirective(_CourseDirective):
    """``{course-assignments}`` writes the assignments with marks and minutes."""

    def markdown(self, book: CourseBook) -> str:
        return assignments_table(book)


def _read_again(app: Sphinx, env: Any, added: set[str], changed: set[str], removed: set[str]) -> list[str]:
    """These pages depend on every notebook, also on one that is new: they are cheap enough to read each time."""
    return [name for name in env.found_docs if name.startswith(_PAGES)]


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the directives."""
    app.add_config_value("course_root", "", "env")
    app.add_directive("syllabus", SyllabusDirective)
    app.add_directive("course-goals", GoalsDirective)
    app.add_directive("course-assignments", AssignmentsDirective)
    app.connect("env-get-outdated", _read_again)
    return {"version": __version__, "parallel_read_safe": True, "parallel_write_safe": True}
