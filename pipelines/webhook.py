"""pipelines: the receiver of RunPod's webhooks. Opens one HTTP port, on loopback unless told otherwise.

A webhook is a hint: it wakes a look at the commit and at /status, and nothing more. RunPod signs nothing (send-requests.mdx), so the path
carries a token, HMAC-SHA256 of run, shard and attempt under a secret that only this process knows. Bodies are not read beyond what HTTP
needs and not stored: they repeat the job's input. Doubled, late and reordered webhooks are the same as one.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field

from aiohttp import web

from contract.errors import InfrastructureError

Wake = Callable[[str, int], None]
"""Called with shard and attempt."""


def token_for(secret: bytes, run_id: str, shard: str, attempt: int) -> str:
    """What only the client that sent the attempt can make."""
    return hmac.new(secret, f"{run_id}\0{shard}\0{attempt}".encode(), hashlib.sha256).hexdigest()


@dataclass
class WebhookReceiver:
    """Listens while it is open (`async with`). `public_url`: the base that RunPod reaches this port under; None: the port itself."""

    run_id: str
    wake: Wake
    public_url: str | None = None
    host: str = "127.0.0.1"
    port: int = 0
    secret: bytes = field(default_factory=lambda: secrets.token_bytes(32), repr=False)
    received: int = field(default=0, init=False)
    refused: int = field(default=0, init=False)
    _runner: web.AppRunner | None = field(default=None, init=False, repr=False)
    _base: str | None = field(default=None, init=False, repr=False)

    def url_for(self, shard: str, attempt: int) -> str | None:
        """Where RunPod shall post the end of this attempt's job; None while the receiver is closed."""
        if self._base is None:
            return None
        return f"{self._base}/hook/{self.run_id}/{shard}/{attempt}/{token_for(self.secret, self.run_id, shard, attempt)}"

    async def __aenter__(self) -> WebhookReceiver:
        app = web.Application(client_max_size=32 << 20)
        app.router.add_post("/hook/{run}/{shard}/{attempt}/{token}", self._receive)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
        await runner.setup()
        site = web.TCPSite(runner, self.host, self.port)
        try:
            await site.start()
        except OSError as error:
            await runner.cleanup()
            raise InfrastructureError(
                f"the webhook receiver cannot listen ({error.strerror}).", where=f"{self.host}:{self.port}", fix="Choose another port."
            ) from None
        self._runner = runner
        bound = runner.addresses[0]
        self._base = (self.public_url or f"http://{bound[0]}:{bound[1]}").rstrip("/")
        return self

    async def __aexit__(self, *_: object) -> None:
        self._base = None
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def _receive(self, request: web.Request) -> web.Response:
        run, shard, attempt, token = (request.match_info[name] for name in ("run", "shard", "attempt", "token"))
        number = int(attempt) if attempt.isascii() and attempt.isdigit() and len(attempt) < 20 else -1
        expected = token_for(self.secret, self.run_id, shard, number)
        if run != self.run_id or not hmac.compare_digest(token.encode(), expected.encode()):
            self.refused += 1
            return web.Response(status=404)
        self.received += 1
        self.wake(shard, number)
        return web.Response(status=200)
