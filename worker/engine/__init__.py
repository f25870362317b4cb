"""worker/engine: rows in, results out, as they finish. `base` is what the rest of the worker knows; only `vllm_core` imports vLLM."""
