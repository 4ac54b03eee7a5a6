# Every target sets up .venv by itself: with uv when there is one, else with the newest Python >= 3.11 on PATH.

BIN := .venv/bin
STAMP := .venv/.installed

.DEFAULT_GOAL := help
.PHONY: help venv demo test lint bench bench-full chaos format clean

help: ## Show this help
	@echo "toolbus: make <target>"
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  \1|\2/p' $(firstword $(MAKEFILE_LIST)) | awk -F'|' '{ printf "%-10s %s\n", $$1, $$2 }'

venv: $(STAMP) ## Set up .venv with everything for development

demo: $(STAMP) ## Start a server, workers and an agent, and check what they do (under 30 s)
	@$(BIN)/toolbus demo

test: $(STAMP) ## Run the tests (without chaos and benchmarks)
	@echo "== tests"
	@$(BIN)/python -m pytest -n 3 -q

lint: $(STAMP) ## Check style and types
	@echo "== ruff check"
	@$(BIN)/ruff check --quiet .
	@echo "== ruff format --check"
	@$(BIN)/ruff format --check --quiet .
	@echo "== mypy"
	@$(BIN)/mypy --no-error-summary
	@echo "== lint-imports"
	@$(BIN)/lint-imports --no-cache >/dev/null || $(BIN)/lint-imports --no-cache

bench: $(STAMP) ## Measure against peers, side by side (about five minutes)
	@$(BIN)/python -m benchmarks run --quick

bench-full: $(STAMP) ## Measure every peer and every workload (hours)
	@$(BIN)/python -m benchmarks run --full

chaos: $(STAMP) ## Break things for five minutes and check that nothing is lost
	@$(BIN)/python -m tests.chaos --minutes 5

format: $(STAMP) ## Format the code and mend what can be mended
	@$(BIN)/ruff check --fix --quiet . || true
	@$(BIN)/ruff format .

clean: ## Remove .venv, caches and build results
	@rm -rf .venv dist build .mypy_cache .ruff_cache .pytest_cache .hypothesis
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Only redone when pyproject.toml changes.
$(STAMP): pyproject.toml
	@set -e; \
	found=; \
	for python in python3.13 python3.12 python3.11 python3; do \
	  if $$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then found=$$python; break; fi; \
	done; \
	if command -v uv >/dev/null 2>&1; then \
	  if [ ! -x $(BIN)/python ]; then echo "== .venv (uv)"; uv venv --quiet --python "$${found:->=3.11}" .venv; fi; \
	  echo "== installing toolbus and its tools for development"; \
	  uv pip install --quiet --python $(BIN)/python -e '.[dev]'; \
	else \
	  if [ -z "$$found" ]; then echo "toolbus needs Python >= 3.11 on PATH (or uv)." >&2; exit 1; fi; \
	  if [ ! -x $(BIN)/pip ]; then echo "== .venv ($$($$found --version))"; $$found -m venv .venv; fi; \
	  echo "== installing toolbus and its tools for development (about a minute)"; \
	  $(BIN)/pip install --quiet --disable-pip-version-check -e '.[dev]'; \
	fi
	@touch $@
