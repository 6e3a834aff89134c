"""Alembic's entry point: runs the revisions on the connection that :mod:`database.migrate` hands over."""

from alembic import context

context.configure(connection=context.config.attributes["connection"])
with context.begin_transaction():
    context.run_migrations()
