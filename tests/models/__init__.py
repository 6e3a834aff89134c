"""Tests of the statements and rules of the domain: their results, plans and races."""
