"""The command line: the server's and the operator's commands, and the processes that they start."""
