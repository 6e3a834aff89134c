"""The tests: real PostgreSQL, real sockets, real concurrency."""
