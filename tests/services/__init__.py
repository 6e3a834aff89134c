"""What runs beside requests: identity, hashing, logs."""
