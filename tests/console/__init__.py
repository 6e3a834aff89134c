"""Tests of the console and GraphiQL in a real browser."""
