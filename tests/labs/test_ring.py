"""The ring lab: equal sums, bytes by rank and by step, times with a fit and where it fails."""

import dataclasses
import importlib

import pytest

from shardlab import labs
from shardlab.labs.run import Outcome
from shardlab.labs.sent import allowed_gap_bytes
from shardlab.models.collectives import ring_allreduce_sent_bytes, simulate_ring_allreduce

# The module: shardlab.labs.ring is the lab, and hides it.
ring_module = importlib.import_module("shardlab.labs.ring")
RingRun, sent_bytes, through_root_bytes = (
    ring_module.RingRun,
    ring_module.sent_bytes,
    ring_module.through_root_bytes,
)

SIZES = [2**14, 2**17, 2**20, 2**22]


@pytest.fixture(scope="module")
def measured():
    """One run of the lab for all tests that look at a result."""
    return labs.ring(ranks=4, sizes=SIZES, repeats=3, limit_s=600, show=False)


@pytest.fixture(scope="module")
def recorded():
    return labs.ring.load_recording()


# ---- measured here ----


@pytest.mark.torch
def test_every_allreduce_equals_one_process(measured):
    assert {row.ranks for row in measured.equality} == {1, 2, 4}
    assert len(measured.equality) == 3 * 3 * 3
    for row in measured.equality:
        assert row.integer_gap == 0
        assert row.float_gap <= row.ranks * 2**-24
        assert row.same_bits
    # On one rank there is nothing to round; on four it shows.
    assert {row.float_gap for row in measured.equality if row.ranks == 1} == {0.0}
    assert max(row.float_gap for row in measured.equality if row.ranks == 4) > 0


@pytest.mark.torch
def test_the_program_sends_what_the_simulation_sends(measured):
    for row in measured.equality:
        if row.method == "ring" and row.elements < 2000:
            simulated = simulate_ring_allreduce([[0.0] * row.elements] * row.ranks)
            assert list(row.payload_bytes) == simulated.sent_bytes


@pytest.mark.torch
def test_bytes_on_the_wire_are_the_textbooks(measured):
    for size in SIZES:
        for ranks, factor in ((1, 0), (2, 1), (4, 1.5)):
            for method in ("ring", "library"):
                row = measured.wire_row(ranks, size, method)
                assert row.predicted_bytes == (factor * size,) * ranks
            root = measured.wire_row(ranks, size, "root")
            assert root.predicted_bytes == ((ranks - 1) * size, *(size,) * (ranks - 1))
            assert root.payload_bytes == root.predicted_bytes
            assert measured.wire_row(ranks, size).payload_bytes == (factor * size,) * ranks
    if measured.reading is not None:
        large = measured.wire_row(4, SIZES[-1])
        assert list(large.kernel_bytes) == pytest.approx([1.5 * SIZES[-1]] * 4, rel=0.002)
        # The naive way's rank 0 sends twice what a rank of the ring does; the total is the same.
        root = measured.wire_row(4, SIZES[-1], "root")
        assert max(root.kernel_bytes) / max(large.kernel_bytes) == pytest.approx(2, rel=0.002)
        assert sum(root.kernel_bytes) == pytest.approx(sum(large.kernel_bytes), rel=0.002)


@pytest.mark.torch
def test_the_ring_step_by_step(measured):
    assert [row.phase for row in measured.steps] == ["reduce-scatter"] * 3 + ["all-gather"] * 3
    elements = 2**18 + 2
    for row in measured.steps:
        assert sorted(row.chunks) == [0, 1, 2, 3]
        assert sum(row.payload_bytes) == 4 * elements
        assert len(set(row.payload_bytes)) == 2
    by_rank = [sum(sent) for sent in zip(*[row.payload_bytes for row in measured.steps], strict=True)]
    assert by_rank == list(sent_bytes("ring", elements, 4))


@pytest.mark.torch
def test_predictions_come_from_some_sizes_on_two_ranks(measured):
    assert {*measured.links, *measured.unfitted} == {"ring", "library"}
    # Usually both; a machine that is busy enough leaves none.
    for method, link in measured.links.items():
        roles = [measured.time_row(2, size, method).role for size in SIZES]
        assert roles == ["fitted", "held out", "fitted", "fitted"]
        assert {measured.time_row(4, size, method).role for size in SIZES} == {"other N"}
        assert [(s.n_bytes, s.n_ranks) for s in link.samples] == [(s, 2) for s in (2**14, 2**20, 2**22)]
        for row in measured.times:
            if row.method == method:
                assert row.predicted_s == link.time_s(row.n_bytes, row.ranks)
                assert row.miss == row.predicted_s / row.seconds - 1
    assert measured.time_row(4, SIZES[0], "root").predicted_s is None


@pytest.mark.torch
def test_a_run_passes_its_own_checks_and_survives_json(measured):
    assert measured.failed_checks() == []
    assert RingRun.from_json(measured.to_json()) == measured


@pytest.mark.torch
@pytest.mark.filterwarnings("error")
def test_one_rank_spawned(family):
    alone = labs.ring(ranks=1, sizes=SIZES, repeats=1, limit_s=600, start="spawn", show=False)
    assert alone.failed_checks() == []
    assert alone.explanation() == ["With one rank there is nothing to send: run the lab with more ranks."]
    assert "steps" not in alone.make_tables()
    assert str(alone)
    family.assert_all_gone()


@pytest.mark.torch
def test_a_wrong_ring_is_found_out(monkeypatch):
    monkeypatch.setattr(ring_module, "WORKER", "broken_ring:worker")
    wrong = labs.ring(ranks=2, sizes=SIZES, repeats=1, limit_s=600, show=False)
    failed = "\n".join(wrong.failed_checks())
    assert "2 ranks, ring by hand, 1,009 elements: integers differ" in failed
    assert "2 ranks, ring by hand, 1,009 elements: floats are off by" in failed
    assert "2 ranks, ring by hand, 1,009 elements: the ranks send" in failed
    if wrong.reading is not None:
        assert "2 ranks, ring by hand, P = 16,384 B: rank 0 sends" in failed
    # Nobody else is blamed.
    assert "all_reduce" not in failed
    assert "through rank 0" not in failed


# ---- what can be said of any result ----


def test_the_words_carry_the_numbers(recorded):
    words = " ".join(recorded.explanation())
    assert "1.5 times the buffer, in 6 steps" in words
    assert "2 times as much as any rank of the ring" in words
    assert "144 B for each of the hand-written ring's sends and 288 B for each step of all_reduce" in words
    assert f"{recorded.worst_miss('other N'):+.0%}" in words
    assert f"{recorded.links['ring'].max_relative_error:.0%}" in words
    assert "3 times as much on 4 ranks as on 2" in words
    assert "4 ranks share 2 cores" in words


def test_without_a_reading_the_program_counts(recorded):
    blind = dataclasses.replace(
        recorded,
        reading=None,
        wire=tuple([dataclasses.replace(row, kernel_bytes=None) for row in recorded.wire]),
        steps=tuple([dataclasses.replace(row, kernel_bytes=None) for row in recorded.steps]),
    )
    assert blind.failed_checks() == []
    assert "Sent (program), B" in str(blind.table("wire"))
    assert "Sent (kernel)" not in str(blind)
    assert "can't be read here" in str(blind.table("wire"))
    assert "headers" not in " ".join(blind.explanation())


def _with_last(rows, **changes):
    return (*rows[:-1], dataclasses.replace(rows[-1], **changes))


def _with_ring(run, **changes):
    """The equality rows with the last of the ring's changed."""
    last = max(place for place, row in enumerate(run.equality) if row.method == "ring")
    rows = run.equality
    return (*rows[:last], dataclasses.replace(rows[last], **changes), *rows[last + 1 :])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda run: {"equality": _with_last(run.equality, integer_gap=1)}, "integers differ"),
        (lambda run: {"equality": _with_last(run.equality, float_gap=1e-6)}, "floats are off by 1.0e-06"),
        (lambda run: {"equality": _with_last(run.equality, float_gap=float("nan"))}, "floats are off by nan"),
        (lambda run: {"equality": _with_last(run.equality, same_bits=False)}, "don't hold the same bits"),
        (
            lambda run: {"equality": _with_ring(run, payload_bytes=(4, 4, 4, 4))},
            "the ranks send (4, 4, 4, 4)",
        ),
        (lambda run: {"steps": _with_last(run.steps, payload_bytes=(0,) * 4)}, "step 5: the ranks send"),
        (
            lambda run: {
                "steps": _with_last(run.steps, kernel_bytes=tuple(2 * n for n in run.steps[-1].payload_bytes))
            },
            "step 5: the kernel counts",
        ),
        (
            lambda run: {
                "wire": _with_last(
                    run.wire, kernel_bytes=(*run.wire[-1].kernel_bytes[:-1], 2 * run.wire[-1].n_bytes)
                )
            },
            "through rank 0, P = 8,388,608 B: rank 3 sends 16,777,216 bytes",
        ),
    ],
)
def test_checks_can_fail(recorded, change, message):
    failed = dataclasses.replace(recorded, **change(recorded)).failed_checks()
    assert failed
    assert message in failed[0]


def test_times_are_never_a_failed_check(recorded):
    slow = tuple([dataclasses.replace(row, seconds=row.seconds * 9) for row in recorded.times])
    assert dataclasses.replace(recorded, times=slow).failed_checks() == []


def test_a_send_too_many_is_beyond_what_headers_explain():
    # One chunk of the smallest size sent twice on four ranks.
    size = 2**14
    assert allowed_gap_bytes(ring_allreduce_sent_bytes(size, 2), 2) < size / 2
    assert allowed_gap_bytes(2**20, 6) < 2**18


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("elements", [1, 5, 1009])
def test_predicted_bytes_by_rank(ranks, elements):
    simulated = simulate_ring_allreduce([[0.0] * elements] * ranks)
    assert list(sent_bytes("ring", elements, ranks)) == simulated.sent_bytes
    assert through_root_bytes(12, ranks) == ((ranks - 1) * 12, *(12,) * (ranks - 1))


def test_rows_that_do_not_exist(recorded):
    with pytest.raises(ValueError, match="wire must be asked for one of"):
        recorded.wire_row(3, 2**14)
    with pytest.raises(ValueError, match="times must be asked for one of"):
        recorded.time_row(2, 5)
    with pytest.raises(ValueError, match="role must be one of"):
        recorded.worst_miss("guessed")
    with pytest.raises(ValueError, match="text must be the JSON of a complete ring lab"):
        RingRun.from_json('{"lab": "ddp", "complete": true}')


def test_the_picture_names_its_axes_and_lines(recorded):
    pytest.importorskip("matplotlib")
    for dark in (False, True):
        axes = recorded.plot(dark=dark).axes[0]
        assert "bytes" in axes.get_xlabel()
        assert "ms" in axes.get_ylabel()
        solid = [line for line in axes.lines if line.get_linestyle() == "-"]
        assert [list(line.get_ydata()) for line in solid] == [
            [1e3 * recorded.time_row(ranks, size).seconds for size in recorded.settings["sizes"]]
            for ranks in (2, 4)
        ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"ranks": 0}, "ranks must be a whole number from 1 to 64, not 0"),
        ({"repeats": 0}, "repeats must be a whole number of at least 1, not 0"),
        ({"sizes": "1 MB"}, "sizes must be a list of buffer sizes in bytes, not '1 MB'"),
        ({"sizes": 4}, "sizes must be a list of buffer sizes in bytes, not 4"),
        ({"sizes": [4, 8, 16]}, "sizes must hold at least 4 sizes, all different, not [4, 8, 16]"),
        ({"sizes": [4, 8, 16, 16]}, "sizes must hold at least 4 sizes, all different"),
        ({"sizes": [4, 8, 16, 18]}, "sizes must be multiples of 4 bytes, not 18"),
        ({"sizes": [0, 8, 16, 20]}, "each of sizes must be a whole number from 4"),
        ({"limit_s": -1}, "limit_s must be a finite number above 0 seconds, not -1"),
        ({"start": "now"}, "start must be one of"),
    ],
)
def test_bad_input_names_the_argument(arguments, message):
    with pytest.raises(ValueError, match="must") as caught:
        labs.ring(**arguments)
    assert message in str(caught.value)


def test_times_that_fit_nothing_leave_the_bytes(monkeypatch):
    times = [
        {"ranks": 2, "n_bytes": size, "method": method, "seconds": 0.001}
        for size in SIZES
        for method in ("ring", "library", "root")
    ]
    wire = [
        {"ranks": 2, "n_bytes": size, "method": method, "payload_bytes": None, "kernel_bytes": [size, size]}
        for size in SIZES
        for method in ("ring", "library", "root")
    ]
    measured = {"times": times, "wire": wire, "equality": [], "steps": [], "step_elements": 4}
    machine = {"backend": "gloo", "reading": "ss", "threads": 1}
    outcome = Outcome(results=[{**measured, **machine}, None], elapsed_s=1.0, start="fork")
    monkeypatch.setattr(ring_module, "run", lambda *_, **__: outcome)
    flat = labs.ring(ranks=2, sizes=SIZES)
    assert flat.failed_checks() == []
    assert not flat.links
    words = " ".join(flat.explanation())
    assert "No prediction for ring by hand: samples must show a time that grows with the size" in words
    assert "fitted on" not in str(flat.table("times"))
    assert {row.role for row in flat.times} == {"not predicted"}
    assert RingRun.from_json(flat.to_json()) == flat


def test_the_code_to_read_fits_a_page():
    text = str(labs.ring.source())
    assert text.startswith("def ring_allreduce(")
    assert "batch_isend_irecv" in text
    assert max(len(line) for line in text.splitlines()) <= 80
    assert len(text.splitlines()) <= 45
