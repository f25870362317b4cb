"""nights: what a run's results were made with: from its plan, and from what a worker wrote into a commit. Touches the store."""

from __future__ import annotations

from contract.errors import ContractError
from contract.keys import RunKeys, RunUri
from contract.models import Commit, PartCommit, Plan, decode, encode
from contract.store import Store


def facts_of(plan: Plan) -> dict[str, str]:
    """What a plan says of it; what it does not know is left out."""
    infra, task = plan.infra, plan.task
    found = {
        "model": infra.model,
        "revision": task.revision,
        "endpoint": infra.endpoint,
        "image": infra.image,
        "gpu": f"{infra.gpu_count} x {infra.gpu}" if infra.gpu_count > 1 else infra.gpu,
        "usd_per_second": f"{infra.usd_per_second:g}",
        "params": encode(task.params).decode() if task.params else None,
    }
    return {name: value for name, value in found.items() if value is not None}


async def facts_of_run(store: Store, plan: Plan) -> dict[str, str]:
    """The same, with what the worker that made one of its commits says: image, vLLM, torch, dtype."""
    facts = facts_of(plan)
    keys: RunKeys = RunUri.parse(plan.run).keys
    async for info in store.list(keys.commits_prefix()):
        try:
            commit: Commit = decode((await store.get(info.key)).data, Commit, where=info.key)
        except ContractError:
            continue
        if isinstance(commit, PartCommit):
            facts.update({name: commit.versions[name] for name in ("vllm", "torch", "dtype") if name in commit.versions})
            if commit.image:
                facts["image"] = commit.image
            break
    return facts
