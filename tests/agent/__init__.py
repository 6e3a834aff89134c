"""Tests of the site agent: its identity, its lease, and its command line."""
