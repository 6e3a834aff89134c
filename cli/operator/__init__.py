"""The operator's commands over HTTP: ``bcd sites``, ``bcd token``, ``bcd secret`` and ``bcd agents``.

They print tables for people, and JSON for scripts with ``--json``. They import nothing of the server.
"""
