"""Tests of the GraphQL engine, on schemas that are not the API's."""
