"""Finds the API key that an operator's command uses, in a file or in the environment.

The first of these that is given wins: ``--credentials`` or ``--as`` (a file as ``bcd dev`` writes it), BC_API_KEY_FILE,
BC_API_KEY, BC_CREDENTIALS, and the file of ``bcd dev`` in the working directory. A key is never an argument, because
other users of the machine can read the arguments of a process.
"""

import json
from pathlib import Path

from agent.errors import CommandError, Exit
from settings import client_variables

DEV_CREDENTIALS = Path(".data/dev-credentials.json")


def find_key(credentials: Path | None, name: str | None) -> tuple[str | None, str]:
    """Returns ``(server's address or None, key)`` for the options ``--credentials`` and ``--as``.

    Raises CommandError if there is no key, or if the file that holds it cannot be read.
    """
    variables = client_variables()
    if credentials is None and name is None:
        if file := variables.get("BC_API_KEY_FILE"):
            return None, _read(Path(file)).strip()
        if key := variables.get("BC_API_KEY"):
            return None, key.strip()
    default = variables.get("BC_CREDENTIALS")
    path = credentials or (Path(default) if default else DEV_CREDENTIALS)
    if credentials is None and default is None and not path.exists():
        raise CommandError("No API key: give --credentials FILE, or set BC_API_KEY_FILE or BC_API_KEY.", Exit.USAGE)
    return _named_key(path, name)


def _named_key(path: Path, name: str | None) -> tuple[str | None, str]:
    """Returns the address and the key of that name in a credentials file. The only key of a file needs no name."""
    try:
        document = json.loads(_read(path))
        keys = dict(document["keys"])
        url = document.get("url")
    except (ValueError, KeyError, TypeError, AttributeError):
        raise CommandError(f"{path} is not a credentials file.", Exit.USAGE) from None
    if name is None and len(keys) == 1:
        name = next(iter(keys))
    if name not in keys:
        raise CommandError(f"Say whose key of {path} to use: --as {' | '.join(sorted(keys))}", Exit.USAGE)
    return url, str(keys[name])


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise CommandError(f"{path}: {error.strerror}", Exit.USAGE) from None
    except UnicodeDecodeError:
        raise CommandError(f"{path} is not text.", Exit.USAGE) from None
