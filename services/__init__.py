"""Services: parts of the server that keep state, run in the background, or reach out to other systems.

They are identity, decisions, hashing, secret stores, the broker, the relay and its sinks, and the feed.
"""
