"""A lab with four ranks fits a small machine: 2 GB for all its processes together."""

import threading
from pathlib import Path

import pytest

from shardlab import labs

MOST_BYTES = 2e9


def proportional_bytes(family):
    """Memory of all processes of the test, shared pages counted once."""
    total = 0
    for process in family.living():
        try:
            rollup = Path(f"/proc/{process.split()[0]}/smaps_rollup").read_text()
        except OSError:
            continue  # ended while we looked
        total += sum(1024 * int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Pss:"))
    return total


@pytest.mark.torch
@pytest.mark.parametrize("name", ["ddp", "zero"])
def test_four_ranks_fit_two_gigabytes(name, family):
    readings, ended = [], threading.Event()

    def sample():
        while not ended.wait(0.2):
            readings.append(proportional_bytes(family))

    sampler = threading.Thread(target=sample)
    sampler.start()
    try:
        labs.LABS[[lab.name for lab in labs.LABS].index(name)].function(ranks=4, limit_s=600, show=False)
    finally:
        ended.set()
        sampler.join()
    # torch alone takes some hundred MB: less means that nothing was seen.
    assert 2e8 < max(readings) < MOST_BYTES
    print(f"{name}: {max(readings) / 1e9:.2f} GB")
