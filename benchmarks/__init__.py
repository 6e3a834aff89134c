"""Benchmarks: this server beside its peers, as ratios of pairs measured in turn."""

import sys
from importlib.util import find_spec

# `python -m benchmarks.workers` is easily started with a Python that has nothing installed. Each module would then end
# in a traceback before its first check.
if any(find_spec(name) is None for name in ("asyncpg", "httpx", "rich")):
    sys.exit(f"{sys.executable} has no packages of this server: make dev-setup, then use .venv/bin/python")
