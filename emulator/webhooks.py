"""emulator: webhooks, as RunPod sends them.

May touch: HTTP to the URLs that jobs name, and the state file. From send-requests and a live observation (July 2026): POST with JSON and a
`traceparent`, user-agent `Go-http-client/2.0`, no signature; the body is the whole job with its `input` and `webhook`; success is a 2xx
answer, otherwise two more attempts; a webhook that never succeeds changes nothing for the job.
"""

from __future__ import annotations

import asyncio
import io
import logging
import secrets
from collections.abc import Iterable, Sequence

import aiohttp
import msgspec

from emulator.clock import Clock
from emulator.faults import Message, Seam
from emulator.jobs import Job, webhook_body
from emulator.state import State, Webhook

log = logging.getLogger("nightbatch.emulator")

ATTEMPT_TIMEOUT_S = 10.0
"""Real seconds that a receiver has to answer; RunPod does not say how long it waits."""
AT_ONCE = 50


class WebhookSender:
    """Sends webhooks in the background, each attempt at its time. What is not yet delivered survives a restart."""

    def __init__(self, state: State, clock: Clock, seam: Seam, retries_s: Sequence[float], states: Iterable[str]) -> None:
        self._state = state
        self._clock = clock
        self._seam = seam
        self._retries_s = tuple(retries_s)
        self._states = frozenset(states)
        self._tasks: set[asyncio.Task[None]] = set()
        self._slots = asyncio.Semaphore(AT_ONCE)
        self._session: aiohttp.ClientSession | None = None
        self.delivered = 0
        self.given_up = 0

    async def start(self) -> None:
        """Go on with those that an earlier process had not delivered."""
        self._session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=ATTEMPT_TIMEOUT_S), auto_decompress=False)
        for webhook in self._state.webhooks():
            self._follow(webhook)

    def job_finished(self, job: Job) -> None:
        """A job has reached a terminal state."""
        if job.webhook is None or job.status.value not in self._states:
            return
        webhook = Webhook(
            id=secrets.token_hex(8),
            job=job.id,
            endpoint=job.endpoint,
            url=job.webhook,
            body=webhook_body(job),
            attempt=1,
            due_at=self._clock.time(),
        )
        self._state.webhook_saved(webhook)
        self._follow(webhook)

    async def drained(self) -> None:
        """Return when no webhook is pending. For tests; bounded by the attempts and their waits."""
        while self._tasks:
            await asyncio.wait(set(self._tasks))

    async def close(self) -> None:
        """Stop sending; what is pending stays in the state."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._session is not None:
            await self._session.close()

    def _follow(self, webhook: Webhook) -> None:
        task = asyncio.get_running_loop().create_task(self._deliver(webhook))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _deliver(self, webhook: Webhook) -> None:
        while True:
            await self._clock.sleep(webhook.due_at - self._clock.time())
            async with self._slots:
                delivered = await self._attempt(webhook)
            if delivered or webhook.attempt > len(self._retries_s):
                break
            wait_s = self._retries_s[webhook.attempt - 1]
            webhook = msgspec.structs.replace(webhook, attempt=webhook.attempt + 1, due_at=self._clock.time() + wait_s)
            self._state.webhook_saved(webhook)
        if delivered:
            self.delivered += 1
        else:
            self.given_up += 1
            log.warning("webhook of job %s given up after %d attempts", webhook.job, webhook.attempt)
        self._state.webhook_deleted(webhook.id)

    async def _attempt(self, webhook: Webhook) -> bool:
        copies = 1
        if self._seam.active:
            action = await self._seam.passing(Message("webhook", webhook.endpoint, "webhook", job=webhook.job, attempt=webhook.attempt))
            if action.drop:
                return False
            if action.answer is not None:
                return 200 <= action.answer < 300
            copies = action.copies
        return all([await self._post(webhook) for _ in range(copies)])

    async def _post(self, webhook: Webhook) -> bool:
        assert self._session is not None
        headers = {
            "content-type": "application/json",
            "user-agent": "Go-http-client/2.0",
            "traceparent": f"00-{secrets.token_hex(16)}-{secrets.token_hex(8)}-01",
        }
        try:
            async with self._session.post(webhook.url, data=io.BytesIO(webhook.body), headers=headers) as answer:
                await answer.read()
                return 200 <= answer.status < 300
        except (aiohttp.ClientError, TimeoutError, ValueError, OSError) as error:
            # the URL carries the receiver's token: name the job and the kind of failure, never the URL
            log.info("webhook of job %s, attempt %d: %s", webhook.job, webhook.attempt, type(error).__name__)
            return False
