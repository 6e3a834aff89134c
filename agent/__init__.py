"""The HTTP clients of the command line: the site agent (`bcd site`) and the operator's commands.

This package speaks HTTP only and imports nothing of the server, so that a site's machine can install it alone.
"""
