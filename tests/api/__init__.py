"""The API from outside: both doors, every operation, over real sockets."""
