"""Alembic's entry: runs the revisions on the connection that :mod:`models.migrate` hands over."""

from alembic import context

from models.tables import METADATA

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=METADATA,
    compare_type=True,
    compare_server_default=True,
)
with context.begin_transaction():
    context.run_migrations()
