"""Runs the command ``bcd`` as ``python -m cli``."""

from cli.main import main

main()
