"""The site agent (`bcd site`), which joins a site, contends for its boot lease and fetches secrets.

It speaks HTTP only and imports nothing of the server or of the rest of the command line, so that it can be installed on
a site's machine alone.
"""
