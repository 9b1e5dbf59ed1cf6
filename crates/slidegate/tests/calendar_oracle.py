"""The windows of calendars by Python's zoneinfo: lists the borders around a time and picks among them.

Reads lines `UNIT ZONE ANCHOR WEEK_START MICROSECONDS`, and prints when the window begins, when it ends, and when the next
one ends.
"""

import calendar
import datetime
import functools
import sys
import zoneinfo

MONTHS = {"month": 1, "quarter": 3, "year": 12}
# More than a window, before and after.
DAYS = {"hour": 2, "day": 4, "week": 21, "month": 95, "quarter": 290, "year": 1110}
EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.timezone.utc)
MICROSECOND = datetime.timedelta(microseconds=1)


@functools.lru_cache(maxsize=20000)
def local_borders(unit, anchor, week_start, here):
    """When the clock shows a border in the days around this one."""
    first, last = (here + datetime.timedelta(days=sign * DAYS[unit]) for sign in (-1, 1))
    if unit in MONTHS:
        return [
            datetime.datetime(year, month, min(anchor, calendar.monthrange(year, month)[1]))
            for year in range(first.year, last.year + 1)
            for month in range(1, 13, MONTHS[unit])
            if first.year * 12 + first.month <= year * 12 + month <= last.year * 12 + last.month
        ]
    days = (first + datetime.timedelta(days=number) for number in range((last - first).days + 1))
    return [
        datetime.datetime(day.year, day.month, day.day, hour)
        for day in days
        if unit != "week" or day.isoweekday() == week_start
        for hour in (range(24) if unit == "hour" else (0,))
    ]


def instant(border, zone):
    """When the clock shows a border, or the end of the gap that skips it."""
    first, second = ((border.replace(tzinfo=zone, fold=fold) - EPOCH) // MICROSECOND for fold in (0, 1))
    if second >= first:
        return first

    def offset(second):
        return (EPOCH + second * 10**6 * MICROSECOND).astimezone(zone).utcoffset()

    # The later time has the offset of before the gap; the gap begins between both.
    low, high = second // 10**6, first // 10**6
    after = offset(high)
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if offset(middle) == after else (middle + 1, high)
    return high * 10**6


for line in sys.stdin:
    unit, zone, anchor, week_start, now = line.split()
    zone, now = zoneinfo.ZoneInfo(zone), int(now)
    here = (EPOCH + now * MICROSECOND).astimezone(zone).date()
    if unit in MONTHS:
        # One list serves a month.
        here = here.replace(day=15)
    local = local_borders(unit, int(anchor), int(week_start), here)
    borders = sorted({instant(border, zone) for border in local})
    begin = max(border for border in borders if border <= now)
    end, next_end = [border for border in borders if border > now][:2]
    print(begin, end, next_end)
