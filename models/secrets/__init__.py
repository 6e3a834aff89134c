"""Secrets: their names, versions and grants, and the ciphertexts of the local store."""
