"""What the API does: one file a resource, operations registered once and opened by both doors, and the roots."""
