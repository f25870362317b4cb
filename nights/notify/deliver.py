"""nights/notify: every event of a night, to everybody who wants it, once. Touches the store and, through `channels`, the network.

Before a message leaves, a claim is written under `nights/_told/JOB/DATE/`; after it, what became of it. A claim without an end is of a
process that was killed between the two: whether it was told is not known, and it is not told again. A message that certainly did not
arrive is sent again by the next call. No failure here fails a night: it is said, and that is all.
"""

from __future__ import annotations

import asyncio
import hashlib
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

import aiohttp
import msgspec

from contract.errors import ContractError, StoreError
from contract.models import VERSION, Instant, Model, decode, encode
from contract.net import on_this_machine
from contract.store import Store, get_or_none, put_first
from nights.notify.channels import ATTEMPT_S, Channel, Sent, Sleep, identity, name_of, send
from nights.notify.messages import Failures, message_of
from nights.record import NightEvent, NightRecord, Records

SETTLE_S: Final = 0.5
"""After a claim on a last-writer store, before it is believed."""


class Told(Model, frozen=True, kw_only=True):
    """A claim, and what became of it. `by`: a random name, so that of two who claim at once one knows that it lost."""

    version: int = VERSION
    event: str
    channel: str
    by: str
    at: Instant
    state: Literal["sending", "sent", "not sent", "unknown"]
    why: str = ""
    tries: int = 1


@dataclass(frozen=True)
class Delivery:
    """What became of one event at one channel. `told_before`: an earlier call told it."""

    channel: str
    event: NightEvent
    state: Literal["sent", "not sent", "unknown"]
    why: str = ""
    told_before: bool = False

    @property
    def notice(self) -> str | None:
        """What a person should know of it; None where all is well."""
        if self.state == "sent" and not self.why:
            return None
        if self.state == "sent":
            return f"{self.channel} was told of {self.event.kind}, but {self.why}"
        words = "could not be told" if self.state == "not sent" else "may not have been told"
        return f"{self.channel} {words} of {self.event.kind}: {self.why or 'an earlier command ended while it was sent'}"


async def tell(
    record: NightRecord,
    channels: Sequence[Channel],
    store: Store,
    *,
    prefix: str = "",
    environ: Mapping[str, str],
    failures: Sequence[Failures] = (),
    sleep: Sleep = asyncio.sleep,
) -> tuple[Delivery, ...]:
    """Tell each channel of the record's events that it wants and has not heard. Raises nothing of the network's or the store's."""
    root = f"{Records(store, prefix).root()}_told/{record.job}/{record.date}/"
    pairs = [(channel, event) for channel in channels for event in wanted(record, channel)]
    each = [_one(record, event, channel, store, root, environ, failures, sleep) for channel, event in pairs]
    return tuple(await asyncio.gather(*each))


def wanted(record: NightRecord, channel: Channel) -> tuple[NightEvent, ...]:
    """The events that the channel wants."""
    return tuple(event for event in record.events if event.kind in channel.on)


async def _one(
    record: NightRecord,
    event: NightEvent,
    channel: Channel,
    store: Store,
    root: str,
    environ: Mapping[str, str],
    failures: Sequence[Failures],
    sleep: Sleep,
) -> Delivery:
    name = name_of(channel)
    key = root + hashlib.sha256(f"{event.key}\n{identity(channel)}".encode()).hexdigest()[:32] + ".json"
    try:
        claim, mine = await _claim(store, key, event, name)
    except StoreError as error:
        return Delivery(name, event, "not sent", f"the store does not say whether it was told ({error.what.rstrip('.')})")
    if not mine:
        state: Literal["sent", "not sent", "unknown"] = "unknown" if claim.state == "sending" else claim.state
        return Delivery(name, event, state, claim.why, told_before=True)
    message = message_of(record, event, failures, include_rows=channel.include_rows)
    found: Sent = await send(channel, message, environ, sleep=sleep)
    try:
        await store.put(key, encode(msgspec.structs.replace(claim, state=found.state, why=found.why)))
    except StoreError as error:
        return Delivery(name, event, found.state, f"that it was told could not be kept ({error.what.rstrip('.')})")
    return Delivery(name, event, found.state, found.why)


async def _claim(store: Store, key: str, event: NightEvent, name: str) -> tuple[Told, bool]:
    """The claim that stands, and whether it is this call's to tell."""
    mine = Told(event=event.key, channel=name, by=secrets.token_hex(8), at=store.now(), state="sending")
    data = encode(mine)
    standing = await put_first(store, key, data)
    if standing == data and await _stands(store, key, data):
        return mine, True
    standing = (await store.get(key)).data if standing == data else standing
    try:
        there: Told = decode(standing, Told, where=key)
    except ContractError:
        return msgspec.structs.replace(mine, state="unknown", why="an earlier note of it cannot be read"), False
    if there.state != "not sent":
        return there, False
    again = msgspec.structs.replace(mine, tries=there.tries + 1)
    if store.mode == "conditional":
        blob = await get_or_none(store, key)
        if blob is None or blob.data != standing:
            return there, False  # another call tells it now
        try:
            await store.put_if_match(key, encode(again), blob.etag)
        except StoreError:
            return there, False
    else:
        await store.put(key, encode(again))
        if not await _stands(store, key, encode(again)):
            return there, False
    return again, True


async def _stands(store: Store, key: str, data: bytes) -> bool:
    """On a last-writer store two that looked before either wrote both find their own claim; a moment later both find the same one."""
    if store.mode == "conditional":
        return True
    await asyncio.sleep(SETTLE_S)
    return (await store.get(key)).data == data


async def ping(url: str) -> str | None:
    """Tell a dead man's switch that the night is done; None, or why it could not be told, as a clause without the address."""
    try:
        timeout = aiohttp.ClientTimeout(total=ATTEMPT_S)
        async with (
            aiohttp.ClientSession(timeout=timeout, trust_env=not on_this_machine(url)) as session,
            session.get(url, allow_redirects=False, headers={"user-agent": "nightbatch"}) as answer,
        ):
            return None if 200 <= answer.status < 300 else f"it answered {answer.status}"
    except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
        return f"no answer ({type(error).__name__})"
