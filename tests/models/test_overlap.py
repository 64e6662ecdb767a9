"""Buckets: between the bracket's ends, and equal to what one can work out by hand."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardlab.models.collectives import ring_allreduce_time_s
from shardlab.models.overlap import DDP_BUCKET_BYTES, bucketed_step
from shardlab.models.scaling import data_parallel


def test_default_bucket_is_25_mib():
    assert DDP_BUCKET_BYTES == 26_214_400


def test_one_bucket_hides_nothing():
    step = bucketed_step(8, 0.03, 0.07, 1e9, 10e9, 1e-5, bucket_bytes=1e9)
    assert len(step.buckets) == 1
    assert step.step_time_s == pytest.approx(0.1 + ring_allreduce_time_s(1e9, 8, 10e9, 1e-5))


def test_two_buckets_by_hand():
    # Two ranks send as much as they hold: 0.5 GB at 10 GB/s are 50 ms a bucket, ready at 80 and 130 ms.
    step = bucketed_step(2, 0.03, 0.1, 1e9, 10e9, bucket_bytes=0.5e9)
    times = [(bucket.ready_s, bucket.start_s, bucket.end_s) for bucket in step.buckets]
    assert times == [pytest.approx((0.08, 0.08, 0.13)), pytest.approx((0.13, 0.13, 0.18))]
    assert step.exposed_communication_s == pytest.approx(0.05)


def test_a_busy_link_delays_the_next_bucket():
    step = bucketed_step(2, 0.0, 0.1, 1e9, 5e9, bucket_bytes=0.5e9)
    assert step.buckets[1].start_s == pytest.approx(step.buckets[0].end_s)
    assert step.buckets[1].start_s > step.buckets[1].ready_s


def test_one_rank_sends_nothing():
    step = bucketed_step(1, 0.03, 0.07, 1e9, 10e9, 1e-5)
    assert step.step_time_s == pytest.approx(0.1)
    assert step.communication_s == 0


@given(
    ranks=st.integers(1, 512),
    forward=st.floats(0, 1),
    backward=st.floats(1e-3, 1),
    n_bytes=st.floats(1, 1e10),
    bandwidth=st.floats(1e8, 1e12),
    share=st.floats(0.01, 1),
)
def test_inside_the_bracket_and_all_bytes_sent(ranks, forward, backward, n_bytes, bandwidth, share):
    step = bucketed_step(ranks, forward, backward, n_bytes, bandwidth, bucket_bytes=share * n_bytes)
    low, high = data_parallel(ranks, forward + backward, n_bytes, bandwidth).step_time_bracket_s
    assert low * (1 - 1e-9) <= step.step_time_s <= high * (1 + 1e-9)
    assert math.fsum(bucket.n_bytes for bucket in step.buckets) == pytest.approx(n_bytes)
    for earlier, later in zip(step.buckets, step.buckets[1:], strict=False):
        assert earlier.ready_s <= earlier.start_s <= earlier.end_s <= later.start_s


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"n_ranks": 0}, "n_ranks must be a whole number of at least 1, not 0"),
        ({"backward_s": 0.0}, "backward_s must be a finite number above 0 seconds, not 0.0"),
        ({"bucket_bytes": 0}, "bucket_bytes must be a finite number above 0 bytes, not 0"),
        ({"bucket_bytes": 1.0}, "bucket_bytes must be at least n_bytes / 100000"),
        ({"bandwidth": float("nan")}, "bandwidth must be a finite number above 0 bytes/s, not nan"),
    ],
)
def test_bad_input_is_named(change, words):
    arguments = {"n_ranks": 8, "forward_s": 0.03, "backward_s": 0.07, "n_bytes": 1e9, "bandwidth": 10e9}
    with pytest.raises(ValueError, match=words.replace("(", r"\(")):
        bucketed_step(**{**arguments, **change})
