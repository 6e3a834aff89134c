"""The command ``bcd``: the server's commands, one file for each group, and the operator's commands over HTTP."""
