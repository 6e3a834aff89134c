"""What the API says: Strawberry types, inputs and payloads, the request's context, and the GraphQL engine."""
