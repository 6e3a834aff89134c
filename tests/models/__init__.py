"""Statements and rules of the domain: their results, plans and races."""
