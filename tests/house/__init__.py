"""The rules of the repository, and its programs beside the server."""
