"""Alembic migrations of the tables in :mod:`models.tables`."""
