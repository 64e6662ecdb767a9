"""How the tests of the site are dealt to two workers."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.groups import scheduler

# Their tests share what takes long to set up: a small book, an edition, an order of answers.
TOGETHER = {"test_experiments", "test_instructor", "test_review"}


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """One group for each of those files, and every other test by itself: pages take from one second to ten."""
    return scheduler(config, log, group_of)


def group_of(nodeid: str) -> str:
    file = Path(nodeid.partition("::")[0]).stem
    return file if file in TOGETHER else nodeid
