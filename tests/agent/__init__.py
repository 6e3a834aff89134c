"""The site agent: its identity, its lease, and its command line."""
