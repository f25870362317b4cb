"""benchmarks/peers: workers that Nightbatch is compared with. They run in the worker's environment and import nothing of Nightbatch."""
