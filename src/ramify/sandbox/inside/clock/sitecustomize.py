"""Inside a sandbox with a pinned clock: Python's wall clock starts where RAMIFY_CLOCK says.

It advances by 1 us a reading and by what is slept, so a program that sleeps the same reads the same times in every run. The time
and datetime modules are covered. Other programs, file times and calls that go round these modules (ctypes) are not.
"""

from __future__ import annotations

import datetime
import os
import time
from typing import Any, Self

_now = int(float(os.environ["RAMIFY_CLOCK"]) * 1e9)
_sleep, _gmtime, _localtime, _ctime, _strftime = time.sleep, time.gmtime, time.localtime, time.ctime, time.strftime
_clock_gettime, _clock_gettime_ns = time.clock_gettime, time.clock_gettime_ns


def time_ns() -> int:
    """Nanoseconds since 1970 by the pinned clock."""
    global _now
    _now += 1000
    return _now


def _time() -> float:
    return time_ns() / 1e9


def _slept(seconds: float) -> None:
    global _now
    _sleep(seconds)
    _now += int(seconds * 1e9)


class _Meta(type(datetime.datetime)):  # type: ignore[misc]
    """isinstance and issubclass treat the pinned classes as the real ones."""

    def __instancecheck__(cls, value: Any) -> bool:
        return isinstance(value, cls.__mro__[1])

    def __subclasscheck__(cls, other: type) -> bool:
        return issubclass(other, cls.__mro__[1])


class _Datetime(datetime.datetime, metaclass=_Meta):
    @classmethod
    def now(cls, tz: datetime.tzinfo | None = None) -> Self:
        return cls.fromtimestamp(_time(), tz)

    @classmethod
    def utcnow(cls) -> Self:
        return cls.fromtimestamp(_time(), datetime.UTC).replace(tzinfo=None)

    @classmethod
    def today(cls) -> Self:
        return cls.now()


class _Date(datetime.date, metaclass=_Meta):
    @classmethod
    def today(cls) -> Self:
        return cls.fromtimestamp(_time())


time.time_ns, time.time, time.sleep = time_ns, _time, _slept  # type: ignore[assignment]
time.gmtime = lambda seconds=None: _gmtime(_time() if seconds is None else seconds)
time.localtime = lambda seconds=None: _localtime(_time() if seconds is None else seconds)
time.ctime = lambda seconds=None: _ctime(_time() if seconds is None else seconds)
time.strftime = lambda form, when=None: _strftime(form, time.localtime() if when is None else when)
time.clock_gettime_ns = lambda clock: time_ns() if clock == time.CLOCK_REALTIME else _clock_gettime_ns(clock)
time.clock_gettime = lambda clock: _time() if clock == time.CLOCK_REALTIME else _clock_gettime(clock)
_Datetime.__name__ = _Datetime.__qualname__ = "datetime"
_Date.__name__ = _Date.__qualname__ = "date"
datetime.datetime, datetime.date = _Datetime, _Date  # type: ignore[misc]
