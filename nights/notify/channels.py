"""nights/notify: one message over one channel: a webhook, Slack or SMTP. Touches the network.

A webhook is signed as the Standard Webhooks specification says: `webhook-id`, `webhook-timestamp` and `webhook-signature: v1,BASE64` of
HMAC-SHA256 over `id.timestamp.body`, with the secret's bytes (after `whsec_`, base64). The id is the event's, so that a receiver that
hears of it twice can tell.

Whether a message arrived is told in three words: `sent`, `not sent`, `unknown`. What certainly did not arrive is tried again; what may have
arrived is tried again only over a webhook, whose id tells a repetition. Redirects are not followed: they would carry a secret address's
message to one that nobody named. Addresses and passwords come from the environment and stand in no text that is returned.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import hmac
import json
import os
import smtplib
import socket
import ssl
import threading
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from email.message import EmailMessage
from email.utils import format_datetime, make_msgid
from typing import Final, Literal
from urllib.parse import urlsplit

import aiohttp

from contract.net import on_this_machine
from nights.jobs.model import Email, Slack, Webhook
from nights.notify.messages import Message, json_body, slack_body

Channel = Webhook | Slack | Email
TRIES: Final = 3
PAUSES_S: Final = (2.0, 8.0)
"""Between tries; a receiver's Retry-After goes before, up to the longest of them."""
ATTEMPT_S: Final = 10.0
MAIL_S: Final = 20.0
"""A whole try by mail: its server may give a byte a second for ever."""
Sleep = Callable[[float], Awaitable[None]]


@dataclass(frozen=True)
class Sent:
    """What became of a message. `why`: one clause, with no address and no secret in it."""

    state: Literal["sent", "not sent", "unknown"]
    why: str = ""


class Unset(Exception):
    """A variable that a notifier names is not set."""


def name_of(channel: Channel) -> str:
    """The channel for people: without its address."""
    if isinstance(channel, Email):
        return f"e-mail to {', '.join(channel.to)}"
    if isinstance(channel, Slack):
        return f"Slack (${channel.url_env})"
    return f"webhook (${channel.url_env})" if channel.url_env else f"webhook at {urlsplit(channel.url or '').hostname}"


def identity(channel: Channel) -> str:
    """What tells one receiver from another, also where both have the same name for people. Not for people: it may hold an address."""
    return f"{channel.kind}\n{name_of(channel)}\n{(channel.url or '') if isinstance(channel, Webhook) else ''}"


async def send(channel: Channel, message: Message, environ: Mapping[str, str], *, sleep: Sleep = asyncio.sleep) -> Sent:
    """Send it, and try again where that cannot tell it twice."""
    try:
        attempt = _attempt(channel, message, environ)
    except Unset as error:
        return Sent("not sent", f"the variable {error} is not set")
    except ValueError as error:
        return Sent("not sent", str(error))
    except Exception as error:  # the library that makes mails knows addresses that it stumbles over
        return Sent("not sent", f"the message cannot be made ({type(error).__name__})")
    found = Sent("not sent")
    for number in range(TRIES):
        try:
            found, wait = await attempt()
        except Exception as error:  # whatever a receiver thinks of, it fails no night
            return Sent("unknown", f"it cannot be said what became of it ({type(error).__name__})")
        again = found.state == "not sent" or (found.state == "unknown" and isinstance(channel, Webhook))
        if not again or wait is None or number == TRIES - 1:
            break
        await sleep(min(max(wait, PAUSES_S[number]), PAUSES_S[-1]))
    return found


Attempt = Callable[[], Awaitable[tuple[Sent, float | None]]]
"""One try: what became of it, and after how many seconds another one makes sense (None: none does)."""


def _attempt(channel: Channel, message: Message, environ: Mapping[str, str]) -> Attempt:
    if isinstance(channel, Email):
        return _by_mail(channel, message, environ)
    if isinstance(channel, Slack):
        hook, text = _address(channel.url_env, None, environ), json.dumps(slack_body(message)).encode()
        return lambda: _post(hook, text, {}, environ)
    url = _address(channel.url_env, channel.url, environ)
    body = json.dumps(json_body(message), ensure_ascii=False).encode()
    secret = _variable(channel.secret_env, environ) if channel.secret_env else None
    key = None if secret is None else key_of(secret)

    def once() -> Awaitable[tuple[Sent, float | None]]:
        headers = {"webhook-id": message.id} if key is None else signed(key, message.id, int(time.time()), body)
        return _post(url, body, headers, environ)

    return once


def _variable(name: str, environ: Mapping[str, str]) -> str:
    value = environ.get(name, "").strip()
    if not value:
        raise Unset(name)
    return value


def _address(variable: str | None, plain: str | None, environ: Mapping[str, str]) -> str:
    url = _variable(variable, environ) if variable is not None else plain or ""
    try:
        parts = urlsplit(url)
        good = parts.scheme in ("https", "http") and parts.hostname and parts.port != 0
    except ValueError:
        good = False
    if not good:
        raise ValueError(f"the variable {variable} holds no http:// or https:// address" if variable else "its address is none")
    if variable is not None and urlsplit(url).scheme == "http" and not on_this_machine(url):
        raise ValueError(f"the address in {variable} is http://, which anybody between here and there can read; use https://")
    return url


# --- HTTP ----------------------------------------------------------------------------------------------------------------------------


def key_of(secret: str) -> bytes:
    """The signing key: what follows `whsec_`, as base64, or the text itself."""
    if secret.startswith("whsec_"):
        try:
            return base64.b64decode(secret.removeprefix("whsec_"), validate=True)
        except binascii.Error:
            raise ValueError("its secret begins with whsec_ and is no base64 after it") from None
    return secret.encode()


def signed(key: bytes, ident: str, timestamp: int, body: bytes) -> dict[str, str]:
    """The headers that prove who sent it, and when."""
    mac = hmac.new(key, f"{ident}.{timestamp}.".encode() + body, hashlib.sha256).digest()
    signature = f"v1,{base64.b64encode(mac).decode()}"
    return {"webhook-id": ident, "webhook-timestamp": str(timestamp), "webhook-signature": signature}


async def _post(url: str, body: bytes, headers: Mapping[str, str], environ: Mapping[str, str]) -> tuple[Sent, float | None]:
    timeout = aiohttp.ClientTimeout(total=ATTEMPT_S)
    proxied = not on_this_machine(url)
    try:
        async with (
            aiohttp.ClientSession(timeout=timeout, trust_env=proxied) as session,
            session.post(
                url, data=body, allow_redirects=False, headers={"content-type": "application/json", "user-agent": "nightbatch", **headers}
            ) as answer,
        ):
            # The body is nobody's business: one that never ends, or is no gzip, is of an answer that was given.
            return _judged(answer.status, answer.headers.get("Retry-After"))
    except aiohttp.InvalidURL:
        return Sent("not sent", "its address is none"), None
    except (aiohttp.ClientConnectorError, socket.gaierror) as error:
        return Sent("not sent", f"no connection ({_plainly(error)})"), 0.0
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        return Sent("unknown", f"no answer ({_plainly(error)})"), 0.0


def _judged(status: int, retry_after: str | None) -> tuple[Sent, float | None]:
    if 200 <= status < 300:
        return Sent("sent"), None
    wait = float(retry_after) if retry_after and retry_after.isascii() and retry_after.isdigit() else 0.0
    if status in (408, 425, 429):
        return Sent("not sent", f"answered {status}"), wait
    if status >= 500:
        return Sent("unknown", f"answered {status}"), wait
    return Sent("not sent", f"answered {status}"), None


def _plainly(error: BaseException) -> str:
    """The kind of error, without an address in it."""
    cause = getattr(error, "os_error", None) or error
    if isinstance(cause, TimeoutError):
        return "timeout"
    if isinstance(cause, ssl.SSLError):
        return "TLS"
    if isinstance(cause, socket.gaierror):
        return "no such host"
    number = getattr(cause, "errno", None)
    text = os.strerror(number) if isinstance(number, int) else getattr(cause, "strerror", None)  # asyncio's own texts hold the address
    return text.lower() if isinstance(text, str) and text else type(cause).__name__


# --- mail ----------------------------------------------------------------------------------------------------------------------------


def mail_of(channel: Email, message: Message) -> EmailMessage:
    """The mail itself; the library refuses line breaks in headers."""
    mail = EmailMessage()
    mail["From"] = channel.sender
    mail["To"] = ", ".join(channel.to)
    mail["Subject"] = f"[nightbatch] {message.title}"
    mail["Date"] = format_datetime(message.at)
    mail["Message-ID"] = make_msgid(hashlib.sha256(message.id.encode()).hexdigest()[:24], domain="nightbatch.invalid")
    mail["Auto-Submitted"] = "auto-generated"
    mail.set_content(message.text)
    return mail


def _by_mail(channel: Email, message: Message, environ: Mapping[str, str]) -> Attempt:
    user = _variable(channel.username_env, environ) if channel.username_env else None
    password = _variable(channel.password_env, environ) if channel.password_env else None
    mail = mail_of(channel, message)
    port = channel.port or {"starttls": 587, "tls": 465, "none": 25}[channel.security]

    async def once() -> tuple[Sent, float | None]:
        line = _Line()
        return await _in_time(line, lambda: _mail_once(channel, port, mail, user, password, line))

    return once


def _mail_once(
    channel: Email, port: int, mail: EmailMessage, user: str | None, password: str | None, line: _Line
) -> tuple[Sent, float | None]:
    try:
        server = _connected(channel, port, line)
        try:
            if user is not None:
                server.login(user, password or "")
            line.hand_over()
            refused = server.send_message(mail)
            line.taken = True
            with suppress(smtplib.SMTPException, OSError):  # it has the mail; what it says to goodbye is no answer to it
                server.quit()
        finally:
            server.close()
    except smtplib.SMTPAuthenticationError:
        return Sent("not sent", "the mail server refuses user or password"), None
    except smtplib.SMTPRecipientsRefused:
        return Sent("not sent", "the mail server refuses every recipient"), None
    except smtplib.SMTPNotSupportedError as error:
        return Sent("not sent", f"the mail server cannot do what is asked ({error})"), None
    except smtplib.SMTPResponseException as error:
        return Sent("not sent", f"the mail server answered {error.smtp_code}"), 0.0 if 400 <= error.smtp_code < 500 else None
    except (smtplib.SMTPException, OSError) as error:
        state: Literal["unknown", "not sent"] = "unknown" if line.handed_over else "not sent"
        return Sent(state, f"no {'answer' if line.handed_over else 'connection'} ({_plainly(error)})"), 0.0
    except ValueError as error:  # a host that is none, a password that SMTP cannot carry
        state = "unknown" if line.handed_over else "not sent"
        return Sent(state, f"host, user or password cannot be written in SMTP ({type(error).__name__})"), None
    if refused:
        return Sent("sent", f"the mail server refused {len(refused)} of {len(channel.to)} recipients"), None
    return Sent("sent"), None


@dataclass
class _Line:
    """A mail on its way in a thread, seen from outside: what is known of it when its time is over."""

    server: smtplib.SMTP | None = None
    handed_over: bool = False
    taken: bool = False
    over: bool = False
    lock: threading.Lock = field(default_factory=threading.Lock)

    def hand_over(self) -> None:
        """From here on it may arrive. Raises TimeoutError where its time is over: it must not then."""
        with self.lock:
            if self.over:
                raise TimeoutError
            self.handed_over = True

    def cut(self) -> Sent:
        """Its time is over. The thread ends with its connection."""
        with self.lock:
            self.over = True
        sock = self.server.sock if self.server is not None else None
        if sock is not None:
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        if self.taken:
            return Sent("sent")
        return Sent("unknown" if self.handed_over else "not sent", "no answer (timeout)")


async def _in_time(line: _Line, work: Callable[[], tuple[Sent, float | None]]) -> tuple[Sent, float | None]:
    """The library waits for each answer by itself, however slowly it drips, and has no end for all of them. Each mail has a thread of its
    own, which nothing waits for: not the night, not its other mails, not the end of the process."""
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[tuple[Sent, float | None]] = loop.create_future()

    def tell(found: tuple[Sent, float | None]) -> None:
        if not ended.done():
            ended.set_result(found)

    def run() -> None:
        try:
            found = work()
        except Exception as error:
            found = Sent("unknown" if line.handed_over else "not sent", f"it failed ({type(error).__name__})"), None
        with suppress(RuntimeError):  # the night is over
            loop.call_soon_threadsafe(tell, found)

    threading.Thread(target=run, name="mail", daemon=True).start()
    try:
        return await asyncio.wait_for(ended, MAIL_S)
    except TimeoutError:
        return line.cut(), 0.0
    except asyncio.CancelledError:
        line.cut()
        raise


class _Server(smtplib.SMTP):
    """One that is known from outside before it is connected."""

    def __init__(self, line: _Line, host: str, port: int) -> None:
        line.server = self
        super().__init__(host, port, timeout=ATTEMPT_S)


class _TlsServer(smtplib.SMTP_SSL):
    def __init__(self, line: _Line, host: str, port: int) -> None:
        line.server = self
        super().__init__(host, port, timeout=ATTEMPT_S, context=ssl.create_default_context())


def _connected(channel: Email, port: int, line: _Line) -> smtplib.SMTP:
    if channel.security == "tls":
        return _TlsServer(line, channel.host, port)
    server = _Server(line, channel.host, port)
    try:
        if channel.security == "starttls":
            server.starttls(context=ssl.create_default_context())
    except BaseException:
        server.close()
        raise
    return server
