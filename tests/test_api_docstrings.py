"""Docstrings as the API's pages can show them: one argument or field a line."""

import ast
import re
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[1] / "src/shardlab"
FILES = sorted([*(PACKAGE / "models").glob("*.py"), *PACKAGE.glob("*.py")])
NAMES = r"[a-z_0-9]+(?:, [a-z_0-9]+)*"


def documented(tree):
    """Every function and class with a docstring, and the names that it may describe."""
    for node in ast.walk(tree):
        if not isinstance(node, (ast.FunctionDef, ast.ClassDef)) or not ast.get_docstring(node):
            continue
        if isinstance(node, ast.FunctionDef):
            known = {each.arg for each in [*node.args.args, *node.args.kwonlyargs]}
        else:
            known = {each.target.id for each in node.body if isinstance(each, ast.AnnAssign)}
        yield node, known


def faults(source):
    """Lines that the pages would show wrongly."""
    found = []
    for node, known in documented(ast.parse(source)):
        inside = False
        for line in ast.get_docstring(node).splitlines():
            if line and not line.startswith(" "):
                inside = line in {"Args:", "Attributes:"}
            elif inside:
                second = re.findall(rf"[.;] (?=({NAMES}): )", line)
                # A lone letter with a full stop would become a list's number.
                if any(known.issuperset(names.split(", ")) for names in second) or re.match(
                    rf" +{NAMES}: [A-Za-z]\.(?: |$)", line
                ):
                    found.append((node.name, line.strip()))
    return found


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_each_argument_has_a_line_and_a_letter_is_no_number_of_a_list(file):
    assert faults(file.read_text("utf-8")) == []


def test_both_faults_are_seen():
    source = '''
def seconds(ranks, mean_s, sync_points=1):
    """Step. Not an argument: this.

    Args:
        ranks: N.
        mean_s: of one rank. Above 0.
            As measured. sync_points: of a step.

    Raises:
        ValueError: ranks: below 1. mean_s: below 0.
    """
'''
    assert faults(source) == [("seconds", "ranks: N."), ("seconds", "As measured. sync_points: of a step.")]
