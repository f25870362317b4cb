"""infra: the rules that a stack has to keep. Pure functions from settings (and prices) to findings; no Pulumi.

They run inside the program, before the first resource is declared, so that they hold in every `pulumi preview` and `pulumi up`, on every
backend, whoever runs it. A rule is mandatory (the program ends with one message that lists everything), advisory (a warning) or ignored,
as the stack file says under `rules.levels`; unless said, everything is mandatory, except that on `local` everything is advisory and a
single GPU pool is only advised against outside production.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from contract.errors import UsageError
from infra.settings import EndpointSettings, Level, Prices, Settings

LOCAL: Final = "local"


@dataclass(frozen=True)
class Finding:
    """A rule that a resource does not keep: which value, and how to mend it."""

    rule: str
    level: Level
    resource: str
    value: str
    mend: str

    def __str__(self) -> str:
        return f"{self.rule} ({self.level}): {self.resource}: {self.value}. {self.mend}"


@dataclass(frozen=True)
class Fault:
    """What a rule's function says; the level is added when the rules are run."""

    resource: str
    value: str
    mend: str


@dataclass(frozen=True)
class Rule:
    """A rule: its name in `rules.levels`, what it asks for in one clause, and the function that finds what does not keep it."""

    name: str
    about: str
    faults: Callable[[Settings, Prices], list[Fault]]

    def findings(self, settings: Settings, prices: Prices) -> list[Finding]:
        """What does not keep this rule on this stack."""
        level = level_of(self.name, settings)
        if level == "ignore":
            return []
        return [Finding(self.name, level, fault.resource, fault.value, fault.mend) for fault in self.faults(settings, prices)]


class RulesBroken(UsageError):
    """Mandatory rules are not kept; `findings` are all of them."""

    def __init__(self, settings: Settings, findings: Sequence[Finding]) -> None:
        lines = "".join(f"\n  {finding}" for finding in findings)
        super().__init__(
            f"{len(findings)} mandatory rule{'s are' if len(findings) > 1 else ' is'} not kept on stack '{settings.stack}':{lines}",
            where=settings.file,
            fix="\nNothing was changed. Levels are set under nightbatch:rules.levels (docs/infrastructure.md).",
        )
        self.findings = tuple(findings)


def level_of(rule: str, settings: Settings) -> Level:
    """How strictly a stack takes a rule."""
    if rule in settings.rules.levels:
        return settings.rules.levels[rule]
    if settings.stack == LOCAL or (rule == "gpu-pools" and not settings.production):
        return "advisory"
    return "mandatory"


def check(settings: Settings, prices: Prices) -> tuple[Finding, ...]:
    """All findings, mandatory ones first, in the rules' order."""
    found = [finding for rule in RULES for finding in rule.findings(settings, prices)]
    return tuple(sorted(found, key=lambda finding: finding.level != "mandatory"))


def advisory(findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """Those that only warn."""
    return tuple(finding for finding in findings if finding.level == "advisory")


def enforce(settings: Settings, findings: Sequence[Finding]) -> None:
    """Raises RulesBroken that lists every mandatory finding."""
    mandatory = [finding for finding in findings if finding.level == "mandatory"]
    if mandatory:
        raise RulesBroken(settings, mandatory)


def image_digest(settings: Settings, prices: Prices) -> list[Fault]:
    """An image is named by digest: a tag can be moved, and `latest` is."""
    faults = []
    for endpoint in settings.endpoints:
        if endpoint.image_digest is not None:
            continue
        last = endpoint.image.rpartition("/")[2]
        tag = last.partition(":")[2]
        why = "which names another image every day" if tag in ("", "latest") else "a tag, which can be moved"
        faults.append(
            Fault(
                _named(endpoint),
                f"image is {endpoint.image}{'' if tag else ' (latest)'}, {why}",
                f"Pin it: nightbatch image pin {endpoint.image} --stack {settings.stack} --endpoint {endpoint.name}",
            )
        )
    return faults


def worker_ceiling(settings: Settings, prices: Prices) -> list[Fault]:
    """All endpoints' peaks together stay under the stack's ceiling."""
    most = sum(endpoint.workers_peak for endpoint in settings.endpoints)
    ceiling = settings.rules.max_workers
    if ceiling is None:
        return [Fault("the stack", "rules.maxWorkers is not set", f"Set a ceiling; the endpoints' peaks are {most} together.")]
    if most > ceiling:
        parts = " + ".join(f"{endpoint.name} {endpoint.workers_peak}" for endpoint in settings.endpoints)
        return [
            Fault("the stack", f"{most} workers at most ({parts}), over rules.maxWorkers = {ceiling}", "Lower workers.peak or raise it.")
        ]
    return []


def cost_ceiling(settings: Settings, prices: Prices) -> list[Fault]:
    """With every worker of every endpoint running, the stack costs no more an hour than its ceiling."""
    faults = []
    for endpoint in settings.endpoints:
        for pool in prices.unknown(endpoint.gpu):
            faults.append(
                Fault(
                    _named(endpoint),
                    f"the price of GPU pool {pool} is not known",
                    f"Say it in dollars per GPU and hour: nightbatch:gpuPrices: {{{pool}: …}}, or set RUNPOD_API_KEY to ask the catalog.",
                )
            )
    ceiling = settings.rules.max_usd_per_hour
    cost = sum((prices.of_worker(endpoint.gpu) or 0.0) * endpoint.workers_peak for endpoint in settings.endpoints)
    if ceiling is None:
        faults.append(
            Fault("the stack", "rules.maxUsdPerHour is not set", f"Set a ceiling; all workers together cost ${cost:.2f} an hour.")
        )
    elif round(cost, 6) > ceiling:  # 5 x 1.116 + 5 x 1.224 is 11.7, whatever binary fractions say
        dearest = max(settings.endpoints, key=lambda e: (prices.of_worker(e.gpu) or 0.0) * e.workers_peak)
        faults.append(
            Fault(
                "the stack",
                f"${cost:.2f} an hour with all workers running, over rules.maxUsdPerHour = {ceiling:g}",
                f"Most of it is {dearest.name}: {dearest.workers_peak} workers at ${prices.of_worker(dearest.gpu) or 0.0:.2f}. "
                "Lower workers.peak, choose cheaper pools, or raise it.",
            )
        )
    return faults


def active_workers(settings: Settings, prices: Prices) -> list[Fault]:
    """Workers that are always on (workers.min) are for production: they are billed day and night."""
    if settings.production or settings.rules.allow_active_workers:
        return []
    faults = []
    for endpoint in settings.endpoints:
        if endpoint.workers_min > 0:
            price = prices.of_worker(endpoint.gpu)
            cost = "" if price is None else f", ${price * endpoint.workers_min * 24:.2f} a day"
            faults.append(
                Fault(
                    _named(endpoint),
                    f"workers.min is {endpoint.workers_min}: on day and night{cost}",
                    "Set it to 0, or allow it: nightbatch:rules: {allowActiveWorkers: true}.",
                )
            )
    return faults


def execution_timeout(settings: Settings, prices: Prices) -> list[Fault]:
    """A queue endpoint has an execution timeout: REST v2 sets none when it is left out, and a job that hangs is billed for days."""
    return [
        Fault(
            _named(endpoint), "executionTimeout is not set, and RunPod's own is none", "Set it in seconds, such as executionTimeout: 600."
        )
        for endpoint in settings.endpoints
        if endpoint.type == "QUEUE" and not endpoint.execution_timeout_s
    ]


def gpu_pools(settings: Settings, prices: Prices) -> list[Fault]:
    """More than one GPU pool: when the only one is taken, workers are throttled and the queue stands still."""
    return [
        Fault(_named(endpoint), f"{endpoint.gpu.pools[0]} is its only GPU pool", "Add a second choice to gpu.pools.")
        for endpoint in settings.endpoints
        if len(endpoint.gpu.pools) == 1
    ]


def volume_protection(settings: Settings, prices: Prices) -> list[Fault]:
    """Production volumes are protected: a deleted or replaced volume is lost data."""
    if not settings.production:
        return []
    return [
        Fault(f"volume {volume.name}", "protect is false", "Leave protect out (production protects) or set it to true.")
        for volume in settings.volumes
        if not volume.protect
    ]


RULES: Final = (
    Rule("image-digest", "images are pinned by digest", image_digest),
    Rule("worker-ceiling", "the stack's workers have a ceiling and keep it", worker_ceiling),
    Rule("cost-ceiling", "the stack's dollars an hour have a ceiling and keep it", cost_ceiling),
    Rule("active-workers", "no workers are always on outside production", active_workers),
    Rule("execution-timeout", "an execution timeout is set", execution_timeout),
    Rule("gpu-pools", "an endpoint has more than one GPU pool", gpu_pools),
    Rule("volume-protection", "production volumes are protected", volume_protection),
)
"""In the order of their findings."""


def _named(endpoint: EndpointSettings) -> str:
    return f"endpoint {endpoint.name}"
