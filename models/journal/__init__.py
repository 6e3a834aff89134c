"""The journal: audit rows and events, written with each change, and read afterwards."""
