"""Tests of faults: killed processes, lost databases, several servers, and secrets that must not leak."""
