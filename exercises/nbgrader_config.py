"""nbgrader's settings for this course: read by tools/exercises.py, and by nbgrader itself when it runs in this folder."""

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "tools"))

from exercises_execute import ExecuteSubmission, RestoreCells  # noqa: E402
from nbconvert.preprocessors import ClearMetadataPreprocessor, CSSHTMLHeaderPreprocessor  # noqa: E402
from nbgrader.preprocessors import (  # noqa: E402
    AssignLatePenalties,
    CheckCellMetadata,
    ClearHiddenTests,
    ClearOutput,
    DeduplicateIds,
    GetGrades,
    IgnorePattern,
    LimitOutput,
    OverwriteCells,
    OverwriteKernelspec,
    SaveAutoGrades,
)

c = get_config()  # noqa: F821

c.CourseDirectory.root = str(HERE)

c.ClearSolutions.code_stub = {
    "python": '# YOUR CODE HERE: write it, and delete the next line\nraise NotImplementedError("not written yet")'
}
c.ClearSolutions.text_stub = "YOUR ANSWER HERE"

# A check cell that a student deleted would otherwise be worth nothing and say nothing.
c.OverwriteCells.add_missing_cells = True

# Seconds that one cell may take; seconds of a whole submission.
c.ExecuteSubmission.timeout = 60
c.ExecuteSubmission.submission_timeout = 300
c.Autograde.sanitize_preprocessors = [
    ClearOutput,
    RestoreCells,
    DeduplicateIds,
    OverwriteKernelspec,
    OverwriteCells,
    CheckCellMetadata,
]
c.Autograde.autograde_preprocessors = [
    ExecuteSubmission,
    IgnorePattern,
    ClearMetadataPreprocessor,
    LimitOutput,
    SaveAutoGrades,
    AssignLatePenalties,
    CheckCellMetadata,
]

# The feedback goes to the student: without the hidden tests, which hold solutions.
c.GenerateFeedback.preprocessors = [GetGrades, ClearHiddenTests, CSSHTMLHeaderPreprocessor]
