# Every target sets up .venv by itself: with uv when there is one, else with the newest Python >= 3.11 on PATH.
# Another one is chosen with `make PYTHON=python3.14 test`.

BIN := .venv/bin
STAMP := .venv/.installed
DEMO_STAMP := .venv/.installed-demo
RELEASE_STAMP := .venv/.installed-release
PYTHON := python3.13 python3.12 python3.11 python3

# What make mutants changes: names of functions, whose files are under [tool.mutmut] in pyproject.toml. It tries every tenth mutant of a
# function for each of these digits, with which their numbers end; 0123456789 tries all, for hours.
MUTANTS := toolbus.bus.*
MUTANTS_ENDING := 05
MUTANTS_WITHIN := 1740

# What the image can do; other tools come with images made from it.
IMAGE_EXTRAS := gateway mcp otel uvloop workers
# Everything, with the packages that are adapted to.
ALL_EXTRAS := all openai anthropic openai-agents langchain langgraph pydantic-ai

# The date of every file of a release, so that it can be made again bit by bit; the image has the same.
EPOCH := 1577836800

# The tests start hundreds of processes: without compiled modules each would compile toolbus and its packages again.
unexport PYTHONDONTWRITEBYTECODE

# A plugin that comes with langchain-core takes a second to import in each process of pytest.
PYTEST := $(BIN)/python -m pytest -p no:langsmith_plugin -n 4 --dist loadgroup -q

.DEFAULT_GOAL := help
.PHONY: help venv demo test test-slow test-long test-image test-all coverage lint mutants bench bench-full bench-history mcp-conformance simulate simulate-near planted chaos chaos-alerts chaos-platform format constraints dist release-check release-notes sbom licences clean docs docs-serve bench-autoscaling try-compose

help: ## Show this help
	@echo "toolbus: make <target>"
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  \1|\2/p' $(firstword $(MAKEFILE_LIST)) | awk -F'|' '{ printf "%-15s %s\n", $$1, $$2 }'

venv: $(STAMP) ## Set up .venv with everything for development

demo: $(DEMO_STAMP) ## Start a server, workers and an agent, and check what they do (under 30 s)
	@$(BIN)/toolbus demo

test: $(STAMP) ## Run the tests that every change needs (under five minutes on two cores)
	@echo "== tests"
	@$(PYTEST) -m "not slow"

test-slow: $(STAMP) ## Run the tests whose fixtures take their time: fault matrices, stories, clusters, releases
	@echo "== slow tests"
	@$(PYTEST) -m slow

test-long: $(STAMP) ## Run all tests, with ten times as many made-up examples
	@echo "== all tests, long profile"
	@TOOLBUS_TEST_PROFILE=long $(PYTEST) --timeout 900

test-image: $(STAMP) ## Build the image and try it (needs docker; minutes)
	@TOOLBUS_TEST_IMAGE=1 $(PYTEST) -n 0 tests/deploy/test_image.py

try-compose: ## Start everything with docker compose, call a tool, find the call in Grafana, and stop (needs docker)
	@python3 deploy/compose/try.py

test-all: test-long test-image chaos chaos-platform ## Run the long tests, those of the image, then chaos (nightly)

coverage: $(STAMP) ## Run the tests and show which lines of toolbus they miss
	@echo "== tests with coverage"
	@$(PYTEST) --cov=toolbus --cov-report=term:skip-covered

lint: $(STAMP) ## Check style and types
	@echo "== ruff check"
	@$(BIN)/ruff check --quiet .
	@echo "== ruff format --check"
	@$(BIN)/ruff format --check --quiet .
	@echo "== mypy"
	@$(BIN)/mypy --no-error-summary
	@echo "== lint-imports"
	@$(BIN)/lint-imports --no-cache >/dev/null || $(BIN)/lint-imports --no-cache

mutants: $(STAMP) ## Change the bus's core in small ways, and list the changes that no fast test notices (half an hour on two cores)
	@$(BIN)/mutmut --version >/dev/null 2>&1 || \
	  if command -v uv >/dev/null 2>&1; then uv pip install --quiet --python $(BIN)/python -e '.[mutants]'; \
	  else $(BIN)/pip install --quiet --disable-pip-version-check -e '.[mutants]'; fi
	@echo "== mutants whose numbers end in one of $(MUTANTS_ENDING), for at most $(MUTANTS_WITHIN) s"
	@TOOLBUS_TEST_PROFILE=mutants timeout $(MUTANTS_WITHIN) $(BIN)/mutmut run $(foreach each,$(MUTANTS),'$(each)__mutmut_*[$(MUTANTS_ENDING)]') || test $$? -eq 124
	@$(BIN)/mutmut results --all true | awk -F ': ' '$$1 ~ /[$(MUTANTS_ENDING)]$$/ { found[$$2]++; tried += $$2 != "not checked" } \
	  $$2 !~ /killed|timeout|not checked/ { print } \
	  END { for (each in found) print "== " found[each], each; if (tried) print "== " 100 * (found["killed"] + found["timeout"]) / tried " % killed" }'

bench: $(STAMP) ## Measure against peers, side by side (about five minutes)
	@$(BIN)/python -m benchmarks run --quick

bench-full: $(STAMP) ## Measure every peer and every workload (hours)
	@$(BIN)/python -m benchmarks run --full

bench-history: $(STAMP) ## Measure ratios to peers, and add them to benchmarks/history.svg (four minutes, nightly)
	@$(BIN)/python -m benchmarks history

docs: $(STAMP) ## Build the documentation site into build/site; a warning or a broken link is an error
	@$(BIN)/python -m website build

docs-serve: $(STAMP) ## Build the site and serve it on http://127.0.0.1:8000
	@$(BIN)/python -m website serve

bench-autoscaling: $(STAMP) ## Scale real workers by the formulas of KEDA and HPA (three minutes)
	@$(BIN)/python -m benchmarks.autoscaling

mcp-conformance: $(STAMP) ## Fetch the MCP project's own programs, which tests use then, and run its conformance suite
	@$(BIN)/python -m tests.mcp.node

simulate: $(STAMP) ## Simulate schedules for SECONDS (60), from a random seed or FIRST; SEED=… runs one and prints its timeline, NEAR=FILE takes its neighbours
	@$(BIN)/python -m tests.simulation $(if $(NEAR),--near $(NEAR)) $(if $(SEED),--seed $(SEED),--seconds $(or $(SECONDS),60) $(if $(FIRST),--first $(FIRST)))

simulate-near: $(STAMP) ## Simulate neighbours of the schedules that have found something, for SECONDS (60)
	@$(BIN)/python -m tests.simulation --near tests/simulation/found --seconds $(or $(SECONDS),60) $(if $(FIRST),--first $(FIRST))

planted: $(STAMP) ## Break the product in each known way, and search simulated schedules for it, for SECONDS (300) each (hours)
	@$(BIN)/python -m tests.simulation.planted --seconds $(or $(SECONDS),300)

chaos: $(STAMP) ## Break things for five minutes and check that nothing is lost
	@$(BIN)/python -m tests.chaos --minutes 5

chaos-alerts: $(STAMP) ## Break things for MINUTES (60) beside a real Prometheus, and list which alerts fire without a cause
	@$(BIN)/python -m tests.outages --minutes $(or $(MINUTES),60)

chaos-platform: $(STAMP) ## Kill hosts and programs of recorded tools under load (at most ten minutes)
	@timeout 600 $(BIN)/python -m tests.chaos.platform --kills 50

format: $(STAMP) ## Format the code and mend what can be mended
	@$(BIN)/ruff check --fix --quiet . || true
	@$(BIN)/ruff format .

constraints: $(RELEASE_STAMP) ## Pin the packages of the image, of every extra and of a release again, with their hashes
	@$(call pin,deploy/constraints-all.txt,$(ALL_EXTRAS),pyproject.toml)
	@$(call pin,deploy/constraints-core.txt,,-c deploy/constraints-all.txt pyproject.toml)
	@$(call pin,deploy/constraints.txt,$(IMAGE_EXTRAS),-c deploy/constraints-all.txt pyproject.toml)
	@echo 'hatchling>=1.27' | $(call pin,deploy/build-constraints.txt,,-)
	@sed -n 's/^release = //p' pyproject.toml | tr -d '[]"' | tr ',' '\n' | $(call pin,deploy/release-constraints.txt,,-)

dist: $(RELEASE_STAMP) ## Build the sdist and the wheel, the same bytes each time
	@rm -rf dist
	@SOURCE_DATE_EPOCH=$(EPOCH) $(BIN)/uv build --quiet --python $(BIN)/python \
	  --build-constraints deploy/build-constraints.txt --require-build-hashes -o dist .
	@rm -f dist/.gitignore

release-check: dist ## Build, and check what would be released; TAG=v1.2.3 also checks the tag and the changelog
	@$(BIN)/twine check --strict dist/*
	@$(BIN)/check-wheel-contents dist/*.whl
	@$(BIN)/python -m tests.release check $(TAG)

release-notes: $(RELEASE_STAMP) ## Write the changelog's section of TAG to build/notes.md
	@$(BIN)/python -m tests.release notes $(TAG)

sbom: $(RELEASE_STAMP) ## Write what the packages and the image consist of, as CycloneDX, to build/sbom
	@$(BIN)/python -m tests.release sbom

licences: $(STAMP) ## Write THIRD_PARTY_LICENSES.md from the packages that are installed
	@$(BIN)/python -m tests.release licences

clean: ## Remove .venv, caches and build results
	@rm -rf .venv dist build mutants .mypy_cache .ruff_cache .pytest_cache .hypothesis
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

# A release is made by packages whose hashes are listed; who develops has newer ones of them.
$(RELEASE_STAMP): deploy/release-constraints.txt
	@set -e; $(find_python); \
	if [ ! -x $(BIN)/python ]; then $${found:-python3} -m venv .venv; fi; \
	if [ -f $(STAMP) ]; then true; \
	elif [ -x $(BIN)/pip ]; then $(BIN)/pip install --quiet --disable-pip-version-check --require-hashes -r $<; \
	else uv pip install --quiet --python $(BIN)/python --require-hashes -r $<; fi
	@touch $@

# Each is only redone when pyproject.toml changes. The demo needs little of what development needs.
$(DEMO_STAMP): pyproject.toml
	@$(call install,what the demo needs,demo)
	@touch $@

$(STAMP): pyproject.toml
	@$(call install,toolbus and its tools for development,dev)
	@touch $(DEMO_STAMP) $(RELEASE_STAMP) $@

# Set found to the first of the Pythons that is new enough, or to nothing.
define find_python
found=; \
for python in $(PYTHON); do \
  if $$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then found=$$python; break; fi; \
done
endef

# pin(file, extras, more words): pin what pyproject.toml or the standard input asks for, for every platform, with hashes.
define pin
$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-annotate --no-header \
  $(foreach each,$(2),--extra $(each)) $(3) -o $(1)
endef

# install(what, extra): make .venv if there is none, and install toolbus with one of its extras.
define install
set -e; \
$(find_python); \
if command -v uv >/dev/null 2>&1; then \
  if [ ! -x $(BIN)/python ]; then echo "== .venv (uv)"; uv venv --quiet --python "$${found:->=3.11}" .venv; fi; \
  echo "== installing $(1)"; \
  uv pip install --quiet --python $(BIN)/python -e '.[$(2)]'; \
else \
  if [ -z "$$found" ]; then echo "toolbus needs Python >= 3.11 on PATH (or uv)." >&2; exit 1; fi; \
  if [ ! -x $(BIN)/pip ]; then echo "== .venv ($$($$found --version))"; $$found -m venv .venv; fi; \
  echo "== installing $(1)"; \
  $(BIN)/pip install --quiet --disable-pip-version-check -e '.[$(2)]'; \
fi
endef
