"""Tests of services: identity and logins, token secrets, and logs."""
