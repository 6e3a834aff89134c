"""The pepper: the secret key of the pre-check, which refuses a wrong token secret before any hash is computed.

An argon2id hash is expensive. The pre-check compares a cheap keyed tag first, so guessers cannot make the server hash.
"""

import hashlib
import hmac


class Pepper:
    """Computes and checks the tags of the pre-check under a secret key.

    The key is kept outside the database, so that somebody who steals the tables cannot test guesses against them.
    """

    def __init__(self, key: bytes) -> None:
        self._key = key

    def tag(self, token_id: str, secret: str) -> bytes:
        """Returns HMAC-SHA256 of the secret under the pepper, bound to its token."""
        return hmac.digest(self._key, f"{token_id}.{secret}".encode(), hashlib.sha256)

    def matches(self, stored_tag: bytes | None, token_id: str, secret: str) -> bool:
        """Returns whether ``secret`` is the token's. An unknown id (None) takes the same steps and so the same time."""
        known = stored_tag is not None
        return (
            hmac.compare_digest(stored_tag if stored_tag is not None else bytes(32), self.tag(token_id, secret)) & known
        )
