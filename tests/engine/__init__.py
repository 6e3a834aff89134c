"""The GraphQL engine by itself, on schemas that are not the API's."""
