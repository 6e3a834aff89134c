"""The journal: audit rows and events. Each change writes them, and others read them afterwards."""
