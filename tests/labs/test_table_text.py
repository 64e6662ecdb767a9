"""Columns of text in a lab's tables, and sentences that count one rank as one."""

from __future__ import annotations

from dataclasses import replace

from shardlab import labs
from shardlab.labs.table import Table

PLACES = Table(
    caption="Places",
    columns=("Rank", "Steps", "Where it was"),
    rows=(("0", "2", "in the backward pass"), ("1", "12", "done")),
    text_columns=1,
)


def test_a_column_of_text_is_set_left_in_both_forms_and_wraps_on_a_page():
    assert str(PLACES).splitlines()[2:] == [
        "Rank  Steps  Where it was",
        "----  -----  --------------------",
        "0         2  in the backward pass",
        "1        12  done",
    ]
    html = PLACES._repr_html_()
    assert '<th scope="col" style="text-align:left">Where it was</th>' in html
    assert '<td style="text-align:left;white-space:normal;min-width:14em">done</td>' in html
    assert '<td style="text-align:right">12</td>' in html


def test_one_rank_is_done_and_one_waits():
    run = labs.data_order.load_recording()
    # The recorded run has four ranks, two of which wait.
    assert "ranks 1, 3 are done and ranks 0, 2 wait for them" in run._hang_words()
    two = replace(run, batches=(4, 2))
    assert "after 2 steps rank 1 is done and rank 0 waits for it" in two._hang_words()


def test_one_sample_is_left_out_without_a_number():
    words = labs.data_order.load_recording()._padding_words()
    assert "repeats the first 3 of the order (36, 49, 93)" in words
    assert "leaves out the last (22)" in words
