"""emulator: what endpoints have cost, by the hour, and the answer of GET /v2/billing/serverless. Pure over rows.

May touch: the standard library and msgspec. Amounts come from the meters of workers, which end rounded up to whole seconds; disk and fees
are not counted (their rules are not published in enough detail). Hours without a cost have no record.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, Literal

import msgspec

from emulator.control.problem import conflict, invalid
from emulator.control.records import rfc3339

BucketSize = Literal["hour", "day", "week", "month", "year"]
_SIZES: Final[tuple[BucketSize, ...]] = ("hour", "day", "week", "month", "year")
LAST_N_MOST: Final = 10_000
"""A guess: the OpenAPI file states no maximum."""


class HourCost(msgspec.Struct, frozen=True):
    """Dollars of one endpoint in one hour (`hour`: hours since the epoch)."""

    endpoint: str
    hour: int
    gpu: float = 0.0
    cpu: float = 0.0

    @property
    def key(self) -> str:
        return f"{self.endpoint}/{self.hour}"


class Usage:
    """The account's costs. `spent` gives back the rows that changed, to be kept."""

    def __init__(self, rows: Iterable[HourCost] = ()) -> None:
        self._rows = {row.key: row for row in rows}

    def spent(self, endpoint: str, compute: Literal["GPU", "CPU"], begin: float, end: float, usd: float) -> list[HourCost]:
        """`usd` were spent evenly from `begin` to `end`."""
        changed = []
        for hour, share in _hours(begin, end):
            row = self._rows.get(f"{endpoint}/{hour}") or HourCost(endpoint, hour)
            part = usd * share
            row = msgspec.structs.replace(row, gpu=row.gpu + part) if compute == "GPU" else msgspec.structs.replace(row, cpu=row.cpu + part)
            self._rows[row.key] = row
            changed.append(row)
        return changed

    def serverless(self, query: Mapping[str, str], now: float) -> dict[str, Any]:
        """The body of GET /v2/billing/serverless. Raises Problem 400 or 422 for a query that cannot be."""
        size = query.get("bucketSize", "day")
        if size not in _SIZES:
            raise invalid(f"bucketSize: must be one of {', '.join(_SIZES)}")
        begin, end = _window(query, size, now)
        only = query.get("serverlessId")
        sums: dict[tuple[datetime.datetime, str], list[float]] = {}
        for row in self._rows.values():
            instant = datetime.datetime.fromtimestamp(row.hour * 3600, datetime.UTC)
            if begin <= instant < end and only in (None, row.endpoint):
                amounts = sums.setdefault((_floor(instant, size), row.endpoint), [0.0, 0.0])
                amounts[0] += row.gpu
                amounts[1] += row.cpu
        records = [
            {"startTime": _text(start), "endTime": _text(_next(start, size)), "serverlessId": endpoint, **_amounts(gpu, cpu)}
            for (start, endpoint), (gpu, cpu) in sorted(sums.items())
        ]
        return {
            "records": records,
            "metadata": {
                "query": {"startTime": _text(begin), "endTime": _text(end), "bucketSize": size, "serverlessId": only},
                "recordCount": len(records),
                "uniqueServerlessCount": len({record["serverlessId"] for record in records}),
                "totals": _amounts(sum(gpu for gpu, _ in sums.values()), sum(cpu for _, cpu in sums.values())),
            },
        }


def _amounts(gpu: float, cpu: float) -> dict[str, float]:
    gpu, cpu = round(gpu, 9), round(cpu, 9)
    return {"totalAmount": round(gpu + cpu, 9), "gpuAmount": gpu, "cpuAmount": cpu, "diskAmount": 0.0, "feeAmount": 0.0}


def _hours(begin: float, end: float) -> Iterator[tuple[int, float]]:
    """The hours from `begin` to `end`, each with its share of the time."""
    first, last = int(begin // 3600), int(end // 3600)
    if end <= begin or first == last:
        yield last, 1.0
        return
    for hour in range(first, last + 1):
        seconds = min(end, (hour + 1) * 3600) - max(begin, hour * 3600)
        if seconds > 0:
            yield hour, seconds / (end - begin)


def _window(query: Mapping[str, str], size: BucketSize, now: float) -> tuple[datetime.datetime, datetime.datetime]:
    present = datetime.datetime.fromtimestamp(now, datetime.UTC)
    text = query.get("lastN")
    if text is not None:
        if not (text.isascii() and text.isdigit() and 1 <= len(text) <= 6 and 1 <= int(text) <= LAST_N_MOST):
            raise invalid(f"lastN: must be a whole number from 1 to {LAST_N_MOST}")
        if "startTime" in query or "endTime" in query:
            raise conflict("lastN and startTime/endTime are mutually exclusive")
        begin = _floor(present, size)
        end = _next(begin, size)
        for _ in range(int(text) - 1):
            if begin.year <= 2:
                break
            begin = _floor(begin - datetime.timedelta(hours=1), size)
        return begin, end
    errors: list[str] = []
    start = _instant(query, "startTime", present - datetime.timedelta(days=30), errors)
    stop = _instant(query, "endTime", present, errors)
    if errors:
        raise invalid(*errors)
    if start >= stop:
        raise conflict("startTime must be before endTime")
    end = _floor(stop, size)
    return _floor(start, size), end if end == stop else _next(end, size)


def _instant(query: Mapping[str, str], name: str, default: datetime.datetime, errors: list[str]) -> datetime.datetime:
    text = query.get(name)
    if text is None:
        return default
    try:
        found = parse_rfc3339(text)
    except ValueError:
        errors.append(f"{name}: {text!r} is not an RFC 3339 time")
        return default
    return found


def parse_rfc3339(text: str) -> datetime.datetime:
    """An instant with a time zone, in UTC. Raises ValueError; also outside the years 2 to 9998, where buckets would leave the calendar."""
    found = datetime.datetime.fromisoformat(text)
    if found.tzinfo is None or "T" not in text.upper() or not 2 <= found.year <= 9998:
        raise ValueError(text)
    return found.astimezone(datetime.UTC)


def _floor(instant: datetime.datetime, size: BucketSize) -> datetime.datetime:
    hour = instant.replace(minute=0, second=0, microsecond=0)
    if size == "hour":
        return hour
    day = hour.replace(hour=0)
    if size == "week":
        return day - datetime.timedelta(days=day.weekday())
    if size == "month":
        return day.replace(day=1)
    return day.replace(month=1, day=1) if size == "year" else day


def _next(start: datetime.datetime, size: BucketSize) -> datetime.datetime:
    if size == "hour":
        return start + datetime.timedelta(hours=1)
    if size in ("day", "week"):
        return start + datetime.timedelta(days=1 if size == "day" else 7)
    return _floor(start + datetime.timedelta(days=32 if size == "month" else 366), size)


def _text(instant: datetime.datetime) -> str:
    return rfc3339(instant.timestamp())
