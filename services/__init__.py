"""What runs or reaches out: identity, decisions, hashing, secret stores, broker, relay and sinks, feed."""
