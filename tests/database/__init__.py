"""The pool, the codecs, the migrations, and the embedded PostgreSQL."""
