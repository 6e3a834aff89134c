"""A GraphQL executor that takes any graphql-core schema and imports nothing of this API: see README.md."""
