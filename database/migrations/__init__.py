"""Alembic migrations of the schema in :mod:`models.tables`."""
