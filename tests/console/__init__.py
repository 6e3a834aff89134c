"""The console and GraphiQL in a real browser."""
