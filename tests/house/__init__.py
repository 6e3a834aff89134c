"""Tests of the rules of the repository, and of its programs beside the server."""
