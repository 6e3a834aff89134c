"""A GraphQL executor for any graphql-core schema. It knows nothing of this API: see README.md in this folder."""
