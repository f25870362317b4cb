"""benchmarks/peers: a worker that is used the way RunPod's stock vLLM worker is used: one row a job, 30 jobs at once.

Written after the handler and engine of runpod-workers/worker-vllm: the unmodified runpod SDK, an async generator as handler with
return_aggregate_stream, a concurrency of 30 (its MAX_CONCURRENCY), one AsyncLLM request a job, the chat template applied by the
tokenizer, results inside the job's output. In two things it is kinder than the stock worker: vLLM gives out only the final text
(FINAL_ONLY, the stock worker receives every step), and it has nothing to check or convert.

Environment: PEER_MODEL (a folder), PEER_ENGINE_ARGS (JSON for AsyncEngineArgs), MAX_CONCURRENCY; and RunPod's own variables.
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import AsyncIterator
from typing import Any


def main() -> None:
    """Load the engine, then take jobs for ever."""
    import runpod
    from vllm import SamplingParams
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.sampling_params import RequestOutputKind
    from vllm.v1.engine.async_llm import AsyncLLM

    engine = AsyncLLM.from_engine_args(AsyncEngineArgs(model=os.environ["PEER_MODEL"], **json.loads(os.environ["PEER_ENGINE_ARGS"])))
    concurrency = int(os.environ.get("MAX_CONCURRENCY", "30"))
    tokenizer: Any = engine.get_tokenizer()

    async def handler(job: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
        wanted = job["input"]
        prompt = wanted.get("prompt")
        if prompt is None:
            prompt = tokenizer.apply_chat_template(wanted["messages"], tokenize=False, add_generation_prompt=True)
        sampling = SamplingParams(**wanted["sampling_params"], output_kind=RequestOutputKind.FINAL_ONLY)
        async for output in engine.generate(prompt, sampling, uuid.uuid4().hex):
            yield {
                "choices": [{"tokens": [output.outputs[0].text]}],
                "usage": {"input": len(output.prompt_token_ids or ()), "output": len(output.outputs[0].token_ids)},
            }

    runpod.serverless.start({"handler": handler, "concurrency_modifier": lambda current: concurrency, "return_aggregate_stream": True})


if __name__ == "__main__":  # vLLM's engine process imports this module again
    main()
