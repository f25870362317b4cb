"""nights/evals: a result in the log format of inspect_ai (JSON EvalLog, version 2), so that its viewer opens it. Pure but for `write`.

Made without the package: a test loads it with the real one and compares scores and samples. One sample and epoch for a question and draw;
every metric is a score of its own, the headline first, each with its mean over all samples, as everywhere here: what failed counts.
"""

from __future__ import annotations

import json
import math
import os
import re
import secrets
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from contract.errors import UsageError
from nights.evals.samples import EvalResult, ResultHeader, Sample

ENDING: Final = ".json"
FORMAT: Final = 2
_SURROGATE: Final = re.compile("[\ud800-\udfff]")


def eval_log(result: EvalResult) -> dict[str, Any]:
    """The whole log."""
    header = result.header
    at = instant(header.at)
    metrics = metrics_of(header, result.samples)
    ids = list(dict.fromkeys(sample.id for sample in result.samples))
    answered = sum(sample.outcome != "failed" for sample in result.samples)
    usage = usage_of(sum(sample.tokens_in for sample in result.samples), sum(sample.tokens_out for sample in result.samples))
    return {
        "version": FORMAT,
        "status": "success",
        "eval": {
            "eval_id": header.result,
            "run_id": header.run or header.result,
            "created": at,
            "task": header.suite,
            "task_id": f"{header.suite}-{header.suite_digest[:16]}",
            "task_version": header.suite_digest[:16],
            "dataset": {"name": header.suite, "samples": len(ids), "sample_ids": ids, "shuffled": False},
            "model": header.model,
            "config": {"epochs": header.draws, "epochs_reducer": ["mean"]},
            "packages": {},
            "scorers": [{"name": metric, "metadata": {"scorer": header.scorers.get(metric, "")}} for metric in metrics],
            "headline_metric": {"score": header.headline, "metric": "mean"},
            "metadata": {
                "nightbatch": {
                    "result": header.result,
                    "stack": header.stack,
                    "run": header.run,
                    "judge_run": header.judge_run,
                    "suite_digest": header.suite_digest,
                    "dataset_digest": header.dataset_digest,
                    "made_with": header.made_with,
                    "metrics": header.metrics,
                    "counts": header.counts,
                    "usd_estimated": header.usd_estimated,
                    "details": header.details,
                }
            },
        },
        "plan": {"name": "nightbatch", "steps": [], "config": {}},
        "results": {
            "total_samples": len(result.samples),
            "completed_samples": answered,
            "logged_samples": len(result.samples),
            "scores": [score_of(metric, header, result.samples) for metric in metrics],
        },
        "stats": {"started_at": at, "completed_at": at, "model_usage": {header.model: usage}},
        "samples": [sample_of(sample, header, metrics) for sample in result.samples],
    }


def metrics_of(header: ResultHeader, samples: Sequence[Sample]) -> list[str]:
    """Metrics that samples have, the headline first; those of a whole result alone (pass@k) are in the metadata."""
    return list(dict.fromkeys([header.headline, *(metric for sample in samples for metric in sample.scores)]))


def score_of(metric: str, header: ResultHeader, samples: Sequence[Sample]) -> dict[str, Any]:
    """The mean of a metric."""
    values = [sample.scores[metric] for sample in samples if metric in sample.scores]
    return {
        "name": metric,
        "scorer": metric,
        "scored_samples": len(values),
        "unscored_samples": len(samples) - len(values),
        "params": {},
        "metrics": {"mean": {"name": "mean", "value": math.fsum(values) / len(values) if values else 0.0, "params": {}}},
        "metadata": {"scorer": header.scorers.get(metric, "")},
    }


def sample_of(sample: Sample, header: ResultHeader, metrics: Sequence[str]) -> dict[str, Any]:
    """One question's one draw."""
    stop = {"cut": "max_tokens", "failed": "unknown"}.get(sample.outcome, "stop")
    answer = sample.answer or ""
    reply = {"role": "assistant", "content": answer, "source": "generate", "model": header.model}
    target = sample.target
    made: dict[str, Any] = {
        "id": sample.id,
        "epoch": sample.draw + 1,
        "input": sample.input,
        "target": "" if target is None else target if isinstance(target, str) else list(target),
        "messages": [{"role": "user", "content": sample.input, "source": "input"}, *([reply] if sample.answer is not None else [])],
        "output": {
            "model": header.model,
            "choices": [] if sample.answer is None else [{"message": reply, "stop_reason": stop}],
            "completion": answer,
            "usage": usage_of(sample.tokens_in, sample.tokens_out),
        },
        "scores": {
            metric: {
                "value": sample.scores[metric],
                "answer": sample.parsed,
                "explanation": sample.explanation,
                "metadata": {"outcome": sample.outcome},
            }
            for metric in metrics
            if metric in sample.scores
        },
        "metadata": {"outcome": sample.outcome, "index": sample.index, **({} if sample.group is None else {"group": sample.group})},
        "model_usage": {header.model: usage_of(sample.tokens_in, sample.tokens_out)},
        "uuid": f"{header.result}-{sample.index}-{sample.draw}",
    }
    if sample.error is not None:
        made["error"] = {"message": sample.error, "traceback": sample.error, "traceback_ansi": sample.error}
    return made


def usage_of(tokens_in: int, tokens_out: int) -> dict[str, int]:
    """Tokens."""
    return {"input_tokens": tokens_in, "output_tokens": tokens_out, "total_tokens": tokens_in + tokens_out}


def instant(at: datetime) -> str:
    """As the format writes one."""
    return at.astimezone(UTC).isoformat(timespec="seconds")


def file_name(header: ResultHeader) -> str:
    """What inspect's viewer lists in a folder: `2026-11-30T02-15-00+00-00_arithmetic_20261130T021500Z1a2b3c4d.json`. It takes the parts
    apart at `_`, and an id at `-`."""
    return f"{instant(header.at).replace(':', '-')}_{header.suite.replace('_', '-')}_{header.result.replace('-', '')}{ENDING}"


def write(result: EvalResult, out: Path) -> Path:
    """Write the log, whole or not at all; into a folder under the name that the viewer knows. Returns the file. Raises UsageError."""
    path = out / file_name(result.header) if out.is_dir() or not out.suffix else out
    if path.suffix != ENDING:
        raise UsageError(
            "inspect_ai reads the format from the name.", where=f"--out {out}", fix="Name a file that ends in .json, or a folder."
        )
    # A lone surrogate is no text for a reader of JSON, and a replaced one is better than a log that nobody opens.
    text = _SURROGATE.sub("\ufffd", json.dumps(eval_log(result), ensure_ascii=False, allow_nan=False))
    draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        if not out.suffix:  # a folder, which may be made
            out.mkdir(exist_ok=True)
        draft.write_text(text, encoding="utf-8")
        os.replace(draft, path)
    except OSError as error:
        if path.parent.is_dir():
            draft.unlink(missing_ok=True)
        if not path.parent.is_dir():
            raise UsageError("no file can be written there.", where=f"--out {out}", fix="Name a file in a folder that exists.") from error
        raise
    return path
