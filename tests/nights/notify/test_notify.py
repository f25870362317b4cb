"""Telling people: over real sockets on this machine, with receivers that fail on script."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import msgspec
import pytest
from aiohttp import web

from contract.errors import StoreUnavailable
from contract.memory import MemoryStore, Objects
from nights.jobs.model import Email, Slack, Webhook
from nights.notify import Delivery, Failures, message_of, ping, tell
from nights.notify.channels import Sent, _Line, key_of, mail_of, send, signed
from nights.notify.messages import json_body, slack_body
from nights.record import NightEvent, NightRecord
from tests.nights.kit import START
from tests.nights.receivers import Receiver, receiver

SECRET = "a-signing-secret-to-search-for"
ROW = "<script>row content</script> & @channel"


def event(kind: Any = "failure", cause: str = "input", sentence: str = "rows.jsonl: there is no such file.") -> NightEvent:
    return NightEvent(kind=kind, key=f"{kind}:{cause}", at=START, sentence=sentence)


def record(*events: NightEvent, **more: Any) -> NightRecord:
    given: dict[str, Any] = {
        "job": "docs", "date": "2026-03-10", "kind": "embed", "stack": "prod", "state": "failed", "exit_code": 2, "began": START,
        "ended": START + timedelta(minutes=5), "seconds": 300.0, "rows": 100, "sent": 10, "ok": 8, "failed": 2, "usd_planned": 0.5,
        "events": events or (event(),), "runs": ("s3://b/runs/docs-embed-1",), **more,
    }  # fmt: skip
    return NightRecord(**given)


FAILURES = (Failures("too_long", 2, ROW),)


def hook(**more: Any) -> Webhook:
    return Webhook.model_validate({"kind": "webhook", "url_env": "HOOK", "secret_env": "HOOK_SECRET", **more})


@dataclass
class Waits:
    """A sleep that only remembers."""

    seconds: list[float] = field(default_factory=list)

    async def __call__(self, seconds: float) -> None:
        self.seconds.append(seconds)


def environ(at: Receiver) -> dict[str, str]:
    return {"HOOK": at.url + "/hook", "HOOK_SECRET": SECRET, "SLACK": at.url + "/services/T0/B0/secret-path"}


async def told(found: Receiver, store: MemoryStore, *channels: Any, night: NightRecord | None = None, **more: Any) -> tuple[Delivery, ...]:
    given: dict[str, Any] = {"environ": environ(found), "sleep": Waits(), **more}
    return await tell(night or record(), channels or (hook(),), store, **given)


# --- once ----------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["conditional", "last-writer"])
async def test_an_event_is_told_once_however_often_the_night_is_called(mode: Any) -> None:
    store = MemoryStore(Objects(instant=START), mode=mode)
    async with receiver() as there:
        first = await told(there, store)
        again = await told(there, store)
    assert len(there.heard) == 1
    assert [one.state for one in (*first, *again)] == ["sent", "sent"]
    assert again[0].told_before


@pytest.mark.parametrize("mode", ["conditional", "last-writer"])
async def test_two_commands_at_once_tell_it_once(mode: Any) -> None:
    objects = Objects(instant=START)
    async with receiver() as there:
        await asyncio.gather(*(told(there, MemoryStore(objects, mode=mode)) for _ in range(4)))
    assert len(there.heard) == 1


async def test_two_commands_that_both_looked_before_either_claimed_tell_it_once_on_a_store_without_conditions() -> None:
    objects = Objects(instant=START)
    looked = asyncio.Barrier(2)
    firsts: set[int] = set()

    def client(number: int) -> MemoryStore:
        async def hook(op: str, key: str) -> None:
            if op == "put" and number not in firsts:
                firsts.add(number)
                await looked.wait()  # both found nothing
                await asyncio.sleep(0.05 * number)  # the first re-reads its own before the second writes

        return MemoryStore(objects, mode="last-writer", hook=hook)

    async with receiver() as there:
        found = await asyncio.gather(told(there, client(0)), told(there, client(1)))
    assert len(there.heard) == 1
    assert sorted(one.told_before for each in found for one in each) == [False, True]


async def test_another_cause_is_another_event_and_each_channel_hears_it() -> None:
    store = MemoryStore(Objects(instant=START), mode="conditional")
    async with receiver() as there:
        await told(there, store)
        await told(there, store, hook(), Slack(kind="slack", url_env="SLACK"), night=record(event(), event(cause="other")))
    assert len(there.heard) == 4


async def test_two_receivers_on_one_host_are_two() -> None:
    store = MemoryStore(Objects(instant=START), mode="conditional")
    async with receiver() as there:
        both = [Webhook.model_validate({"kind": "webhook", "url": f"{there.url}/{place}"}) for place in ("first", "second")]
        found = [await told(there, store, *both) for _ in range(2)]
    assert [[one.told_before for one in each] for each in found] == [[False, False], [True, True]]
    assert len(there.heard) == 2
    assert not [key for key, data in store.objects.data.items() if b"/first" in data]


async def test_what_did_not_arrive_is_told_by_the_next_command() -> None:
    store = MemoryStore(Objects(instant=START), mode="conditional")
    async with receiver(404, 200) as there:
        first = await told(there, store)
        again = await told(there, store)
    assert [one.state for one in (*first, *again)] == ["not sent", "sent"]
    assert first[0].notice == "webhook ($HOOK) could not be told of failure: answered 404"


async def test_after_a_kill_between_claim_and_answer_it_is_not_told_again_and_that_is_said() -> None:
    store = MemoryStore(Objects(instant=START), mode="conditional")
    async with receiver() as there:

        async def killed(url: str, *_: Any, **__: Any) -> Any:
            raise asyncio.CancelledError

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("nights.notify.channels._post", killed)
            with pytest.raises(asyncio.CancelledError):
                await told(there, store)
        again = await told(there, store)
    assert not there.heard
    assert again[0].state == "unknown"
    assert again[0].notice == "webhook ($HOOK) may not have been told of failure: an earlier command ended while it was sent"


async def test_a_store_that_is_away_tells_nothing_twice_and_fails_nothing() -> None:
    async def away(op: str, key: str) -> None:
        raise StoreUnavailable("the store does not answer.", where="s3://b")

    async with receiver() as there:
        found = await told(there, MemoryStore(Objects(instant=START), mode="conditional", hook=away))
    assert not there.heard
    assert found[0].state == "not sent"
    assert "the store does not answer" in (found[0].notice or "")


async def test_only_what_a_channel_wants_is_told() -> None:
    store = MemoryStore(Objects(instant=START), mode="conditional")
    done = record(event("success", "", "all rows done"), state="done")
    async with receiver() as there:
        await told(there, store, night=done)
        assert not there.heard
        await told(there, store, hook(on=["success"]), night=done)
    assert len(there.heard) == 1


# --- webhooks ------------------------------------------------------------------------------------------------------------------------


async def test_a_webhook_is_signed_as_standard_webhooks_says() -> None:
    async with receiver() as there:
        await told(there, MemoryStore(Objects(instant=START)))
    headers, body = there.heard[0]
    ident, at = headers["webhook-id"], headers["webhook-timestamp"]
    mac = hmac.new(SECRET.encode(), f"{ident}.{at}.".encode() + body, hashlib.sha256).digest()
    assert headers["webhook-signature"] == "v1," + base64.b64encode(mac).decode()
    assert ident == "docs/2026-03-10/failure:input"
    assert SECRET not in body.decode() + str(headers)


def test_the_specifications_own_example_gives_its_signature() -> None:
    key = key_of("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
    found = signed(key, "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, b'{"test": 2432232314}')
    assert found["webhook-signature"] == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


async def test_a_busy_receiver_is_asked_again_as_it_says_and_the_id_stays() -> None:
    waits = Waits()
    async with receiver(429, 500) as there:
        there.retry_after = "5"
        found = await told(there, MemoryStore(Objects(instant=START)), sleep=waits)
    assert found[0].state == "sent"
    assert waits.seconds == [5.0, 8.0]
    assert len({headers["webhook-id"] for headers, _ in there.heard}) == 1


async def test_tries_are_bounded_and_the_night_hears_why() -> None:
    async with receiver(*[500] * 10) as there:
        found = await told(there, MemoryStore(Objects(instant=START)))
    assert len(there.heard) == 3
    assert (found[0].state, found[0].why) == ("unknown", "answered 500")


async def test_a_redirect_is_not_followed() -> None:
    async with receiver(307) as there:
        found = await told(there, MemoryStore(Objects(instant=START)))
    assert len(there.heard) == 1
    assert (found[0].state, found[0].why) == ("not sent", "answered 307")


async def test_nobody_there_is_a_clause_without_the_address() -> None:
    async with receiver() as there:
        pass
    found = await told(there, MemoryStore(Objects(instant=START)))
    assert found[0].state == "not sent"
    assert there.url.removeprefix("http://") not in (found[0].notice or "")
    assert "no connection" in (found[0].notice or "")


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ("", "the variable HOOK is not set"),
        ("ftp://example.com/x", "the variable HOOK holds no http:// or https:// address"),
        ("https://[", "the variable HOOK holds no http:// or https:// address"),
        ("http://hooks.example.com/secret", "the address in HOOK is http://, which anybody between here and there can read; use https://"),
    ],
)
async def test_an_address_that_cannot_be_used_is_said_without_it(value: str, why: str) -> None:
    found = await tell(record(), (hook(),), MemoryStore(Objects(instant=START)), environ={"HOOK": value, "HOOK_SECRET": SECRET})
    assert (found[0].state, found[0].why) == ("not sent", why)


async def test_a_receiver_that_closes_the_line_may_have_heard_it() -> None:
    def cut(request: web.Request) -> None:
        assert request.transport is not None
        request.transport.close()

    async with receiver(cut, cut, cut) as there:
        found = await told(there, MemoryStore(Objects(instant=START)))
    assert found[0].state == "unknown"
    assert len(there.heard) == 3  # a webhook's id tells a repetition


# --- Slack ---------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [None, "ftp://here", "https://[::1"])
async def test_slack_without_an_address_is_a_notice(value: str | None) -> None:
    channel = Slack.model_validate({"kind": "slack", "url_env": "HOOK"})
    found = await send(channel, message_of(record(), event()), {"HOOK": value} if value else {}, sleep=Waits())
    assert found.state == "not sent"
    assert "HOOK" in found.why


def raw(answer: bytes) -> Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"}")
        writer.write(answer)
        with suppress(OSError):
            await writer.drain()
        writer.close()

    return serve


@pytest.mark.parametrize(
    ("answer", "state"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\n", "sent"),
        (b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 5\r\n\r\nhello", "sent"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + b"8000\r\n" + b"x" * 0x8000 + b"\r\n", "sent"),
        ("HTTP/1.1 503 x\r\nRetry-After: ²\r\nContent-Length: 0\r\n\r\n".encode(), "unknown"),
        (b"HTTP/1.1 503 x\r\nRetry-After: " + b"9" * 4000 + b"\r\nContent-Length: 0\r\n\r\n", "unknown"),
        (b"\xff\xfe\x00 nonsense\r\n\r\n", "unknown"),
    ],
)
async def test_what_a_receiver_answers_besides_its_status_changes_nothing(answer: bytes, state: str) -> None:
    server = await asyncio.start_server(raw(answer), "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
    waits = Waits()
    found = await send(hook(secret_env=None), message_of(record(), event()), {"HOOK": url}, sleep=waits)
    server.close()
    assert found.state == state
    assert all(seconds <= 8 for seconds in waits.seconds)


async def test_slack_gets_its_shape_and_nothing_in_it_is_markup() -> None:
    slack = Slack(kind="slack", url_env="SLACK", include_rows=True)
    async with receiver() as there:
        await told(there, MemoryStore(Objects(instant=START)), slack, failures=FAILURES)
    body = there.bodies[0]
    assert {block["type"] for block in body["blocks"]} == {"header", "section", "context"}
    texts = [block["text"] for block in body["blocks"] if "text" in block] + body["blocks"][-1]["elements"]
    assert all(text["type"] == "plain_text" for text in texts)
    assert "<" not in body["text"]
    assert len(body["blocks"][0]["text"]["text"]) <= 150


async def test_slack_is_not_told_twice_where_the_answer_was_lost() -> None:
    def cut(request: web.Request) -> None:
        assert request.transport is not None
        request.transport.close()

    async with receiver(cut) as there:
        found = await told(there, MemoryStore(Objects(instant=START)), Slack(kind="slack", url_env="SLACK"))
    assert found[0].state == "unknown"
    assert len(there.heard) == 1


# --- row content ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("with_rows", [False, True])
def test_row_content_is_in_no_message_unless_asked(with_rows: bool) -> None:
    message = message_of(record(), event(), FAILURES, include_rows=with_rows)
    mail = mail_of(
        Email.model_validate({"kind": "email", "host": "mail.example.com", "from": "a@example.com", "to": "b@example.com"}), message
    )
    shapes = [message.text, json.dumps(json_body(message)), json.dumps(slack_body(message)), mail.get_content()]
    assert all(("row content" in shape) == with_rows for shape in shapes)
    assert all("too_long" in shape for shape in shapes)


def test_control_characters_and_long_texts_are_tamed() -> None:
    odd = event(sentence="a\x1b[31m\r\nBcc: x" + "y" * 9000)
    message = message_of(record(), odd, (Failures("c", 1, "\x00" + "z" * 900),), include_rows=True)
    assert "\x1b" not in message.text
    assert "\n" not in message.sentence
    assert len(message.text) < 4000


# --- mail ----------------------------------------------------------------------------------------------------------------------------


@dataclass
class MailServer:
    """As much of SMTP as a sender needs. `say`: command -> answer instead of the usual one; `cut_after_data`: closes the line then."""

    say: dict[str, str] = field(default_factory=dict)
    cut_after_data: bool = False
    mails: list[str] = field(default_factory=list)
    commands: list[str] = field(default_factory=list)
    port: int = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"220 here\r\n")
        while line := (await reader.readline()).decode(errors="replace").strip():
            word = line.split()[0].upper()
            self.commands.append(line)
            if word == "DATA" and word not in self.say:
                writer.write(b"354 go on\r\n")
                text = await reader.readuntil(b"\r\n.\r\n")
                self.mails.append(text.decode())
                if self.cut_after_data:
                    break
                writer.write(b"250 taken\r\n")
            elif word in self.say:
                writer.write(self.say[word].encode() + b"\r\n")
            else:
                writer.write(b"221 bye\r\n" if word == "QUIT" else b"250 fine\r\n")
            await writer.drain()
        writer.close()


@asynccontextmanager
async def mail_server(**more: Any) -> AsyncIterator[MailServer]:
    found = MailServer(**more)
    server = await asyncio.start_server(found.serve, "127.0.0.1", 0)
    found.port = server.sockets[0].getsockname()[1]
    try:
        yield found
    finally:
        server.close()


def mail_to(there: MailServer, **more: Any) -> Email:
    given = {"kind": "email", "host": "127.0.0.1", "port": there.port, "security": "none", "from": "night@example.com"}
    return Email.model_validate({**given, "to": ["a@example.com"], **more})


async def test_a_mail_arrives_with_subject_sentence_and_numbers() -> None:
    async with mail_server() as there:
        found = await tell(record(), (mail_to(there),), MemoryStore(Objects(instant=START)), environ={})
    assert found[0].state == "sent"
    assert "Subject: [nightbatch] docs 2026-03-10: FAILED" in there.mails[0]
    assert "rows.jsonl: there is no such file." in there.mails[0]


async def test_a_mail_whose_answer_was_lost_is_not_sent_again() -> None:
    async with mail_server(cut_after_data=True) as there:
        found = await tell(record(), (mail_to(there),), MemoryStore(Objects(instant=START)), environ={}, sleep=Waits())
    assert found[0].state == "unknown"
    assert len(there.mails) == 1


async def test_a_mail_server_that_is_busy_is_asked_again_and_one_that_refuses_is_not() -> None:
    for answer, tries in (("451 later", 3), ("550 no", 1)):
        waits = Waits()
        async with mail_server(say={"DATA": answer}) as there:
            found = await tell(record(), (mail_to(there),), MemoryStore(Objects(instant=START)), environ={}, sleep=waits)
        assert found[0].state == "not sent"
        assert answer[:3] in found[0].why
        assert sum(line == "data" or line == "DATA" for line in there.commands) == tries


@pytest.mark.parametrize("farewell", ["421 busy", "500 what", "nonsense"])
async def test_a_mail_that_was_taken_is_not_sent_again_whatever_the_server_says_to_goodbye(farewell: str) -> None:
    async with mail_server(say={"QUIT": farewell}) as there:
        found = await send(mail_to(there), message_of(record(), event()), {}, sleep=Waits())
    assert (found.state, len(there.mails)) == ("sent", 1)


@pytest.mark.parametrize("drop", [b"2", b"220-wait\r\n"])
async def test_a_mail_server_that_drips_for_ever_is_left_and_gets_no_mail(drop: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nights.notify.channels.MAIL_S", 0.3)
    ended: list[bool] = []

    async def drip(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                writer.write(drop)
                await writer.drain()
                await asyncio.sleep(0.02)
        except OSError:
            ended.append(True)
        finally:
            writer.close()

    server = await asyncio.start_server(drip, "127.0.0.1", 0)
    channel = mail_to(MailServer(port=server.sockets[0].getsockname()[1]))
    found = await send(channel, message_of(record(), event()), {}, sleep=Waits())
    assert (found.state, found.why) == ("not sent", "no answer (timeout)")
    while len(ended) < 3:  # noqa: ASYNC110 (each try let go of its line)
        await asyncio.sleep(0.01)
    server.close()


async def test_a_try_whose_time_is_over_hands_nothing_over_any_more() -> None:
    line = _Line()
    assert line.cut() == Sent("not sent", "no answer (timeout)")
    with pytest.raises(TimeoutError):
        line.hand_over()
    line = _Line()
    line.hand_over()
    assert line.cut().state == "unknown"
    line.taken = True
    assert line.cut().state == "sent"


@pytest.mark.parametrize("more", [{"host": "a..b"}, {"username_env": "U", "password_env": "P"}, {"to": ['"']}, {"to": ["a@["]}])
async def test_what_no_mail_can_carry_is_said_and_fails_nothing(more: dict[str, Any]) -> None:
    async with mail_server(say={"EHLO": "250-here\r\n250 AUTH PLAIN LOGIN"}) as there:
        found = await send(mail_to(there, **more), message_of(record(), event()), {"U": "ü", "P": "ß"}, sleep=Waits())
    assert found.state == "not sent"
    assert not there.mails


async def test_a_server_without_starttls_gets_no_password() -> None:
    async with mail_server() as there:
        channel = mail_to(there, security="starttls", username_env="U", password_env="P")
        found = await tell(record(), (channel,), MemoryStore(Objects(instant=START)), environ={"U": "user", "P": SECRET}, sleep=Waits())
    assert found[0].state == "not sent"
    assert SECRET not in str(there.commands) + str(found)


# --- the dead man's switch -----------------------------------------------------------------------------------------------------------


async def test_a_ping_says_why_it_could_not_be_told_without_the_address() -> None:
    async with receiver(200, 404) as there:
        assert await ping(there.url + "/secret-path") is None
        assert await ping(there.url + "/secret-path") == "it answered 404"
    why = await ping(there.url + "/secret-path")
    assert why is not None
    assert "secret-path" not in why


async def test_every_delivery_carries_the_same_facts(caplog: pytest.LogCaptureFixture) -> None:
    async with receiver() as there:
        await told(there, MemoryStore(Objects(instant=START)), failures=FAILURES)
    body = there.bodies[0]
    assert (body["event"], body["job"], body["state"], body["exit_code"]) == ("failure", "docs", "failed", 2)
    assert body["numbers"]["failed"] == 2
    assert body["failures"] == [{"code": "too_long", "rows": 2}]
    assert msgspec.json.decode(there.heard[0][1]) == body


async def test_sending_without_a_store_is_one_message() -> None:
    async with receiver() as there:
        found = await send(hook(), message_of(record(), event()), environ(there))
    assert found.state == "sent"
