"""The doors: how requests come in and answers go out, over HTTP, GraphQL, WebSocket and server-sent events."""
