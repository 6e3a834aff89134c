"""The types of the API: Strawberry types, inputs and payloads, enums and scalars."""
