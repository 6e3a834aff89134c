"""The command line's side of the API: the site agent (`bcd site`) and the operator's commands.

It speaks HTTP only and imports nothing of the server, so that it can be installed on a site's machine alone.
"""
