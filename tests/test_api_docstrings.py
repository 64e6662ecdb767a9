"""Docstrings as the API's pages show them: one argument a line."""

import inspect

from shardlab.sphinx_book import _one_argument_a_line


def seconds(ranks, mean_s, sync_points=1):
    """Step. Not an argument: this.

    Args:
        ranks: N. sync_points: k.
        mean_s: of one rank, seconds. Above 0.
            As measured. sync_points: of a step.

    Raises:
        ValueError: ranks: below 1. mean_s: below 0.
    """


def shown(function):
    lines = inspect.getdoc(function).splitlines()
    _one_argument_a_line(None, "function", "seconds", function, None, lines)
    return lines


def test_each_argument_gets_a_line_and_a_letter_is_no_number_of_a_list():
    assert shown(seconds) == [
        "Step. Not an argument: this.",
        "",
        "Args:",
        r"    ranks: \N.",
        r"    sync_points: \k.",
        "    mean_s: of one rank, seconds. Above 0.",
        "        As measured.",
        "    sync_points: of a step.",
        "",
        "Raises:",
        "    ValueError: ranks: below 1. mean_s: below 0.",
    ]
