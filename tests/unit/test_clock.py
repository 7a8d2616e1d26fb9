"""clock: dates as records hold them, there and back."""

import calendar
import random
import time

import pytest

from mxqlib import clock


def test_a_date_comes_back_as_the_same_time():
    seed = 1
    chance = random.Random(seed)
    for _ in range(5000):
        when_s = chance.randrange(0, 4102444800)
        date = clock.iso(when_s)
        assert clock.epoch_s(date) == when_s, (seed, date)
        assert calendar.timegm(time.strptime(date, "%Y-%m-%dT%H:%M:%S.000000Z")) == when_s


@pytest.mark.parametrize("when_s, date", [
    (0, "1970-01-01T00:00:00.000000Z"), (951782400, "2000-02-29T00:00:00.000000Z"),
    (1796060727.123456, "2026-11-30T17:45:27.123456Z"), (0.5, "1970-01-01T00:00:00.500000Z"),
])
def test_dates(when_s, date):
    assert clock.iso(when_s) == date
    assert abs(clock.epoch_s(date) - when_s) < 1e-6


def test_now_is_now_in_utc():
    assert abs(clock.epoch_s(clock.iso()) - time.time()) < 5


def test_dates_sort_as_their_texts_do():
    assert clock.iso(1.000001) < clock.iso(1.000002) < clock.iso(10) < clock.iso(1e9)


@pytest.mark.parametrize("text", ["", "2026-11-30", "2026-11-30 17:45:27.123456Z", "2026-11-30T17:45:27.123456+",
                                  "2026-11-30T17:45:27Z", "xxxx-11-30T17:45:27.123456Z"])
def test_what_is_no_date(text):
    with pytest.raises(ValueError):
        clock.epoch_s(text)


def test_the_clock_of_limits_does_not_go_back():
    first = clock.boot_s()
    assert clock.boot_s() >= first > 0
