"""Access to PostgreSQL: connections, the pool, statements, the listener, migrations, and the embedded server."""
