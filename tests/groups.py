"""Deals tests to workers in groups of one's own choice.

``--dist loadgroup`` is meant for that, but pytest-xdist 3.8 marks a test's group where pytest 9 does not look for it:
every test would be dealt by itself. ``--dist loadfile`` asks here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def scheduler(config: Any, log: Any, group_of: Callable[[str], str]) -> Any:
    """What ``pytest_xdist_make_scheduler`` returns: ``group_of`` names the group of a test by its node ID."""
    from xdist.scheduler import LoadFileScheduling

    class ByGroup(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return group_of(nodeid)

    return ByGroup(config, log) if config.getvalue("dist") == "loadfile" else None
