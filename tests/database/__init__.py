"""Tests of the pool, the codecs, the migrations and the embedded PostgreSQL."""
