# Two commands: `make demo` and `make test`. Each does all the set-up by itself.
SHELL := /bin/bash
PY := .venv/bin/python
RATCHET := .venv/bin/ratchet

.PHONY: demo test lint verify setup engine lock clean help stack-up stack-down

help:
	@echo "make demo    the whole loop on this machine: set-up, real vLLM, report (about half an hour)"
	@echo "make test    set-up, linters, types, contracts, all tests of CI"
	@echo "make verify  what takes longer: demos, a noisy machine, kill drills, deployments, benches (resumable)"
	@echo "make lock    write requirements/*.txt anew from pyproject.toml"
	@echo "make clean   stop the stack and remove what was built here"

setup:
	@infra/setup.sh main

engine: setup
	@infra/setup.sh engine

demo: engine
	@$(RATCHET) demo $(ARGS)

lint: setup
	.venv/bin/ruff check .
	.venv/bin/mypy
	.venv/bin/lint-imports

test: setup
	@$(MAKE) --no-print-directory -j2 -Oline engine lint # one waits for downloads, the other computes
	$(PY) -m pytest tests -q --durations=12 $(ARGS)

verify: engine
	$(PY) -m tests.verify $(ARGS)

stack-up: setup
	$(RATCHET) stack up

stack-down: setup
	$(RATCHET) stack down

lock: setup
	.venv/bin/uv pip compile -q pyproject.toml --group dev --universal --python-version 3.11 --generate-hashes \
	  --no-emit-index-url --no-emit-find-links -o requirements/main.txt

clean:
	-@[ -x $(RATCHET) ] && $(RATCHET) stack down
	rm -rf .venv .ratchet .mypy_cache .ruff_cache .pytest_cache .hypothesis
