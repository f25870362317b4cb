"""benchmarks: measures Nightbatch against what a person would use instead, and against its own limits. `make bench` runs all of them.

    harness     medians, targets, machine facts, foreign load, the table, results/NAME.json
    rows        the rows that are measured, from examples/
    runbatch    `vllm run-batch` on a file, timed by its own log           peers/    workers to compare with
    house       the whole pipeline: emulator, unmodified SDK worker, real S3 server, real vLLM

What is measured and how fair it is: docs/benchmarks.md.
"""
