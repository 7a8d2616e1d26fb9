"""units: sizes, durations, numbers, masks, lists of CPUs; nothing is guessed, every bad text is refused."""

import random

import pytest

from mxqlib import units


@pytest.mark.parametrize("text, size_b", [
    ("1", 1 << 20), ("1K", 1024), ("1k", 1024), ("512M", 512 << 20), ("2G", 2 << 30), ("1t", 1 << 40), ("007", 7 << 20),
])
def test_sizes(text, size_b):
    assert units.size(text) == size_b


@pytest.mark.parametrize("text", ["", "K", "0", "0K", "-1", "+1", "1.5G", "1 G", " 1", "1_0", "1KK", "1B", "1P", "٣",
                                  "²",
                                  "9" * 19 + "T", "9" * 30, "1\n"])
def test_sizes_that_are_none(text):
    with pytest.raises(ValueError):
        units.size(text)


@pytest.mark.parametrize("text, seconds", [
    ("1", 60), ("90", 5400), ("1s", 1), ("1d12h", 129600), ("1y", 31536000), ("2w", 1209600), ("1h1h", 7200),
    ("36:00:00", 129600), ("0:00:01", 1), ("1-00:00:00", 86400), ("1-02:03:04", 93784), ("1m30s", 90),
])
def test_durations(text, seconds):
    assert units.duration(text) == seconds


@pytest.mark.parametrize("text", ["", "s", "0", "0s", "-1", "1.5h", "1d12", "h1", "1:2", "1:60:00", "1:00:60",
                                  "1:2:3:4",
                                  "x-1:00:00", "-1:00:00", "1 h", "1D", "1_0s", "99999999999999y", "+5", "٣m"])
def test_durations_that_are_none(text):
    with pytest.raises(ValueError):
        units.duration(text)


def test_a_duration_of_nothing_where_it_makes_sense():
    assert units.duration("0s", 0) == 0
    assert units.duration("0", 0) == 0


@pytest.mark.parametrize("text, least, most, value", [("0", 0, 9, 0), ("9", 0, 9, 9), ("-3", -5, 5, -3),
                                                      ("08", 0, 9, 8)])
def test_numbers(text, least, most, value):
    assert units.number(text, least, most) == value


@pytest.mark.parametrize("text", ["", "-1", "10", "+1", "1.0", "1e3", " 1", "0x1", "--1", "-", "½", "1_0"])
def test_numbers_that_are_none(text):
    with pytest.raises(ValueError):
        units.number(text, 0, 9)


@pytest.mark.parametrize("text, mask", [("0", 0), ("22", 0o22), ("022", 0o22), ("0777", 0o777), ("00027", 0o27)])
def test_masks(text, mask):
    assert units.mask(text) == mask


@pytest.mark.parametrize("text", ["", "8", "1000", "-1", "0o22", "022 ", "000022", "٠"])
def test_masks_that_are_none(text):
    with pytest.raises(ValueError):
        units.mask(text)


@pytest.mark.parametrize("text, cpus", [("0", [0]), ("0,2-3", [0, 2, 3]), ("3,1", [1, 3]), ("1-1", [1]),
                                        ("0-2,1", [0, 1, 2])])
def test_lists_of_cpus(text, cpus):
    assert units.cpus(text) == cpus


@pytest.mark.parametrize("text", ["", ",", "1,", "2-1", "-1", "1-", "0-99999", "a", "1-2-3", "1 2"])
def test_lists_of_cpus_that_are_none(text):
    with pytest.raises(ValueError):
        units.cpus(text)


@pytest.mark.parametrize("text", ["make", "a b", "über", "\udcff", "-", "日本"])
def test_labels(text):
    assert units.label(text) == text


@pytest.mark.parametrize("text", ["", "a\nb", "\t", "\x7f", "a\x9bb", "\x00", "\x85"])
def test_labels_that_would_break_a_table_or_a_mail(text):
    with pytest.raises(ValueError):
        units.label(text)


def test_what_is_shown_can_be_given_back():
    seed = 20261130
    chance = random.Random(seed)
    for _ in range(2000):
        seconds = chance.randrange(1, 10 ** chance.randrange(1, 10))
        assert units.duration(units.show_duration(seconds)) == seconds, seed
        size_b = chance.randrange(1, 1 << 20) << chance.choice((10, 20, 30))
        assert units.size(units.show_size(size_b)) >= size_b, seed
    assert [units.show_size(n) for n in (None, 0, 1, 1024, 1536, 1 << 20, 3 << 30)] == [
        "-", "0K", "1K", "1K", "2K", "1M", "3G"]
    assert [units.show_duration(n) for n in (None, 0, 0.9, 61, 129600)] == ["-", "0s", "0s", "1m1s", "1d12h"]
