"""worker: what runs on the GPU. Imports only `contract`; `worker.engine.vllm_core` is the only module that imports vLLM.

settings    the environment, read once                    models      names of small local models
engine      one thread that owns vLLM                     tasks       OpenAI bodies in, OpenAI bodies out
rows        a shard's rows, read and checked              parts       parts, pieces and errors, written in bounded memory
execution   the seven steps of PROTOCOL.md                handler     RunPod's job in, summary out
"""
