"""Tests of the command line: the commands of the server and of operators, and the processes that they start."""
