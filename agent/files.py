"""Writes private files: a crash leaves the old or the new content, and other users can read neither."""

import contextlib
import os
import secrets
from pathlib import Path

PRIVATE_FILE = 0o600


def write_private(path: Path, data: bytes, *, durable: bool = True) -> None:
    """Replaces ``path`` by a file of mode 0600 with the content ``data``, wholly or not at all.

    With ``durable`` it also waits until the file would survive a power loss. Raises OSError.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(6)}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, PRIVATE_FILE)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            temporary.unlink()
        raise
    if durable:
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
