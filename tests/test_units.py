"""Reading and writing units: GB against GiB, bits against bytes, and friendly refusals where they may be mixed."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardlab import units

UNTIMED = settings(deadline=None)


@pytest.mark.parametrize(
    ("text", "n_bytes"),
    [
        ("1 GB", 1e9),
        ("1 GiB", 2**30),
        ("25 MiB", 25 * 2**20),
        ("0.5kB", 500),
        ("3 KB", 3000),
        ("  7 B ", 7),
        ("1e3 MB", 1e9),
        ("1_000 B", 1000),
        ("2 TiB", 2**41),
    ],
)
def test_sizes(text, n_bytes):
    assert units.parse_bytes(text) == n_bytes


@pytest.mark.parametrize(
    ("text", "bytes_per_s"),
    [
        ("10 GB/s", 10e9),
        ("100 Gb/s", 12.5e9),
        ("100 Gbit/s", 12.5e9),
        ("100 Gbps", 12.5e9),
        ("12.5 GBps", 12.5e9),
        ("10 GBit/s", 1.25e9),
        ("1 GByte/s", 1e9),
        ("200 Mbit/s", 25e6),
        ("64 KiB/s", 65536),
        ("8x400 Gb/s", 400e9),
        ("8 × 100 Gb/s", 100e9),
        ("2x25GB/s", 50e9),
        ("9.4 Gbits/sec", 1.175e9),
    ],
)
def test_bandwidths(text, bytes_per_s):
    assert units.parse_bandwidth(text) == pytest.approx(bytes_per_s, rel=1e-12)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("10 us", 1e-5),
        ("10 µs", 1e-5),
        ("10 μs", 1e-5),
        ("275.1 ms", 0.2751),
        ("2 min", 120),
        ("1.5 h", 5400),
        ("3 ns", 3e-9),
    ],
)
def test_times(text, seconds):
    assert units.parse_time(text) == pytest.approx(seconds, rel=1e-12)


@pytest.mark.parametrize(
    ("text", "number"), [("110M", 110e6), ("7 B", 7e9), ("1.3e9", 1.3e9), ("4k", 4e3), ("1T", 1e12)]
)
def test_counts(text, number):
    assert units.parse_count(text) == number


@pytest.mark.parametrize("text", ["10 gb/s", "10 gbps", "10 GB", "10 Gb", "10gb/sec"])
def test_a_bandwidth_that_may_be_bits_or_bytes_shows_both(text):
    with pytest.raises(ValueError, match=r"^bandwidth ") as error:
        units.parse_bandwidth(text)
    message = str(error.value)
    assert "'10 Gb/s' is bits (1.25 GB/s)" in message
    assert "'10 GB/s' is bytes (80 Gb/s)" in message
    assert text in message


def test_bits_are_no_size_and_the_message_converts_them():
    with pytest.raises(ValueError, match=r"10 Gb is 1\.25 GB"):
        units.parse_bytes("10 Gb")
    with pytest.raises(ValueError, match="bits or bytes"):
        units.parse_bytes("10 gb")


def test_a_rate_is_no_size():
    with pytest.raises(ValueError, match="bandwidth, not a size"):
        units.parse_bytes("10 GB/s")


def test_transfers_per_second_are_explained():
    with pytest.raises(ValueError, match=r"GT/s counts transfers .* 31.5"):
        units.parse_bandwidth("16 GT/s")


@pytest.mark.parametrize(
    "parse", [units.parse_bytes, units.parse_bandwidth, units.parse_time, units.parse_count]
)
@pytest.mark.parametrize(
    "bad", ["", "fast", "1.2.3 GB/s", "5 parsecs", None, 3, 2.5, ["1 GB"], "1e999 B", "x8"]
)
def test_nonsense_is_refused_with_the_arguments_name(parse, bad):
    with pytest.raises(ValueError, match=r"^my link") as error:
        parse(bad, "my link")
    assert repr(bad) in str(error.value) or "inf" in str(error.value)


@pytest.mark.parametrize("parse", [units.parse_bytes, units.parse_bandwidth, units.parse_time])
def test_negative_amounts_are_refused(parse):
    text = {"parse_bytes": "-1 GB", "parse_bandwidth": "-1 GB/s", "parse_time": "-1 s"}[parse.__name__]
    with pytest.raises(ValueError, match="at least 0"):
        parse(text)


def test_who_counts_bits():
    assert units.written_in_bits("100 Gb/s")
    assert units.written_in_bits("8x100 Gbit/s")
    assert not units.written_in_bits("12.5 GB/s")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1e9, "1 GB"),
        (1.75e9, "1.75 GB"),
        (999.6e6, "999.6 MB"),
        (999.96e6, "1 GB"),
        (123456e12, "123456 TB"),
        (-2.5e6, "-2.5 MB"),
    ],
)
def test_format_bytes(value, text):
    assert units.format_bytes(value) == text


def test_formats_name_their_base():
    assert units.format_binary_bytes(1.5 * 2**30) == "1.5 GiB"
    assert units.format_bandwidth(10e9) == "10 GB/s"
    assert units.format_bit_rate(12.5e9) == "100 Gb/s"
    assert units.format_bit_rate(0.22e9) == "1.76 Gb/s"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.2751, "275.1 ms"),
        (1e-5, "10 µs"),
        (3.2e-10, "0.32 ns"),
        (90, "90 s"),
        (3600, "1 h"),
        (172800, "2 d"),
        (0, "0 s"),
    ],
)
def test_format_time(seconds, text):
    assert units.format_time(seconds) == text


@pytest.mark.parametrize(
    ("value", "digits", "text"),
    [
        (994, 2, "994"),
        (12.5, 2, "13"),
        (2.5, 1, "3"),
        (192.5, 3, "193"),
        (0.00012345, 3, "0.000123"),
        (123456.4, 4, "123456"),
    ],
)
def test_significant_digits_without_exponent_and_halves_up(value, digits, text):
    assert units.significant(value, digits) == text


@UNTIMED
@given(st.floats(min_value=1.0, max_value=1e14))
def test_sizes_read_back_what_was_written(value):
    assert units.parse_bytes(units.format_bytes(value, digits=6)) == pytest.approx(value, rel=1e-5)


@UNTIMED
@given(st.floats(min_value=1.0, max_value=1e14))
def test_bit_rates_read_back_what_was_written(value):
    assert units.parse_bandwidth(units.format_bit_rate(value, digits=6)) == pytest.approx(value, rel=1e-5)


@UNTIMED
@given(st.floats(min_value=1e-9, max_value=1e6))
def test_times_read_back_what_was_written(value):
    assert units.parse_time(units.format_time(value, digits=6)) == pytest.approx(value, rel=1e-5)
