# `make demo` and `make test` install what they need by themselves; everything installed is kept outside this folder.
.DEFAULT_GOAL := help
.PHONY: help demo test test-fast lint types lock bench docs clean
.NOTPARALLEL:
MAKEFLAGS += --no-print-directory

help: ## what there is to make
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1|\2/p' Makefile | awk -F'|' '{ printf "%-18s %s\n", $$1, $$2 }'

demo: ## embed 2,400 rows and generate for 208 with real vLLM on this machine, then verify every row
	@scripts/demo

test: ## everything that is checked: style, types, all tests
	@scripts/check

test-fast: ## style, types and the tests that take seconds
	@scripts/check --fast

lint: ## style only
	@scripts/check --only lint

types: ## types only
	@scripts/check --only types

lock: ## resolve the client's lock files again from pyproject.toml
	@scripts/lock

bench: ## measure throughput against vllm run-batch and write benchmarks/results
	@scripts/bench

docs: ## write docs/cli.md from the command line's own help
	@scripts/docs

clean: ## remove caches and outputs in this folder, and environments of other locks
	@scripts/clean
