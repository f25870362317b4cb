"""infra/review: what RunPod billed for one endpoint, hour by hour: GET /v2/billing/serverless of REST v2. Changes nothing, needs no pulumi.

The answer is judged before it is believed: whole hours, each once, of this endpoint and inside the window; amounts that are dollars.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Protocol

from contract.errors import InfrastructureError, UsageError

BILLING_DEADLINE_S: Final = 20.0
"""A report is made without the bill rather than late."""
HOUR: Final = timedelta(hours=1)
MOST_HOURS: Final = 31 * 24
"""That are asked for at once."""
MOST_USD: Final = 1e6
"""Of one endpoint in one hour: more is no bill of an endpoint."""
WHERE: Final = "GET /v2/billing/serverless"


class BillingRest(Protocol):
    """What this asks of REST v2. `infra.provider.client.RestClient` is it."""

    async def billing_serverless(
        self, *, endpoint_id: str | None = None, start: str | None = None, end: str | None = None, bucket_size: str | None = None
    ) -> dict[str, Any]: ...


@dataclass(frozen=True)
class HourBilled:
    """Dollars of one hour; `usd` is all of them."""

    began: datetime
    usd: float
    gpu: float
    cpu: float
    disk: float
    fee: float


async def billed_hours(rest: BillingRest, endpoint_id: str, began: datetime, ended: datetime) -> tuple[HourBilled, ...]:
    """The hours from that of `began` to that of `ended`, in order; one without a cost has no record. Raises InfrastructureError where
    RunPod does not say, UsageError for more than `MOST_HOURS`."""
    first, last = _hour_of(began), _hour_of(ended)
    count = (last - first) // HOUR + 1
    if count > MOST_HOURS:
        raise UsageError(f"{count:,} hours of billing are more than the {MOST_HOURS} that are asked for.", where=WHERE)
    if count < 1:
        raise ValueError("an end before its beginning")
    answer = await rest.billing_serverless(endpoint_id=endpoint_id, start=_text(first), end=_text(last + HOUR), bucket_size="hour")
    records = answer.get("records")
    if not isinstance(records, list) or len(records) > count:
        raise _unexpected(f"more than one record for each of {count:,} hours" if isinstance(records, list) else "no list of records")
    found: dict[datetime, HourBilled] = {}
    for record in records:
        hour = _record(record, endpoint_id)
        if not first <= hour.began <= last:
            raise _unexpected("an hour that was not asked for")
        if hour.began in found:
            raise _unexpected("an hour twice")
        found[hour.began] = hour
    return tuple(found[at] for at in sorted(found))


def _record(record: Any, endpoint_id: str) -> HourBilled:
    if not isinstance(record, Mapping):
        raise _unexpected("a record that is no object")
    if record.get("serverlessId") != endpoint_id:
        raise _unexpected("another endpoint's record")
    began, ended = _instant(record.get("startTime")), _instant(record.get("endTime"))
    if began != _hour_of(began) or ended - began != HOUR:
        raise _unexpected("a record that is not of one whole hour")
    return HourBilled(began, *(_usd(record, f"{name}Amount") for name in ("total", "gpu", "cpu", "disk", "fee")))


def _usd(record: Mapping[str, Any], name: str) -> float:
    value = record.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= MOST_USD or not math.isfinite(value):
        raise _unexpected(f"a {name} that is no amount of dollars")
    return float(value)


def _instant(text: Any) -> datetime:
    try:
        found = datetime.fromisoformat(text)
        if found.tzinfo is None:
            raise ValueError
        return found.astimezone(UTC)
    except (TypeError, ValueError, OverflowError):
        raise _unexpected("a time that is none") from None


def _hour_of(at: datetime) -> datetime:
    return at.astimezone(UTC).replace(minute=0, second=0, microsecond=0)


def _text(at: datetime) -> str:
    return at.isoformat().replace("+00:00", "Z")


def _unexpected(what: str) -> InfrastructureError:
    fix = "Look at the bill in RunPod's console."
    return InfrastructureError(f"RunPod's billing answered something unexpected: {what}.", where=WHERE, fix=fix)
