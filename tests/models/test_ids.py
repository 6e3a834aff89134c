"""Tests ids, bearers and API keys: their forms and their order, and that mangled ones are refused."""

import itertools
import re
from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from models import ids

SECRET = ids.base32(bytes(range(32)))
TOKEN = ids.token_id("acme", "idn_1", "k")
BEARER = f"bc{TOKEN}.{SECRET}{ids.checksum(TOKEN, SECRET)}"

parts = st.text(st.characters(codec="utf-8"), max_size=20)


@given(st.lists(st.binary(min_size=16, max_size=16), min_size=2, max_size=2))
def test_base32_keeps_the_order_of_bytes(pair: list[bytes]) -> None:
    """Digits of equal length sort as the bytes do, and differ if the bytes differ."""
    first, second = (ids.base32(data) for data in pair)
    assert (first < second) == (pair[0] < pair[1])
    assert (first == second) == (pair[0] == pair[1])
    assert re.fullmatch("[0-9a-hjkmnp-tv-z]{26}", first)


@given(st.datetimes(datetime(2020, 1, 1), datetime(2240, 1, 1)), st.timedeltas(timedelta(microseconds=1), timedelta(9)))  # noqa: DTZ001 - Hypothesis wants naive bounds
def test_new_ids_sort_by_age(moment: datetime, later: timedelta) -> None:
    """Ids of different microseconds sort by time. Ids of the same microsecond differ."""
    at = moment.replace(tzinfo=UTC)
    older, newer = ids.new_id("site", at), ids.new_id("site", at + later)
    assert older < newer
    assert ids.new_id("site", at) != older
    assert re.fullmatch(ids.SITE_ID_PATTERN, older)
    assert len(older) == len("site_") + 26


@given(parts, parts, parts, parts, parts, parts)
def test_different_triples_have_different_token_ids(a: str, b: str, c: str, d: str, e: str, f: str) -> None:
    """The id depends on the tenant, the identity and the key."""
    assert (ids.token_id(a, b, c) == ids.token_id(d, e, f)) == ((a, b, c) == (d, e, f))


def test_the_encoding_of_token_ids_is_unambiguous() -> None:
    """Moving a character from one part to the next, or moving an empty part, gives a different id."""
    triples = [
        split
        for text in ("abc", "a.b", "a\nb", "a\0b")
        for i, j in itertools.combinations_with_replacement(range(len(text) + 1), 2)
        for split in [(text[:i], text[i:j], text[j:])]
    ]
    assert len({ids.token_id(*triple) for triple in triples}) == len(set(triples))
    assert re.fullmatch(r"jt_[0-9a-hjkmnp-tv-z]{52}", TOKEN)
    assert re.fullmatch(ids.TOKEN_ID_PATTERN, TOKEN)


def test_a_token_id_never_changes() -> None:
    """A retry after an upgrade must find the token of the first call, so the derivation is part of the contract."""
    assert ids.token_id("acme", "idn_1", "k") == "jt_173q66cb28wgfh63153kgnkj44dy2jpfymqjcm5jp2rnh8pfgjan"


@given(st.binary(min_size=32, max_size=32), parts, parts, parts)
def test_a_bearer_parses_to_its_parts(random: bytes, tenant: str, identity: str, key: str) -> None:
    """Every minted bearer is well-formed, matches the published pattern, and parses to its parts."""
    token, secret = ids.token_id(tenant, identity, key), ids.base32(random)
    bearer = f"bc{token}.{secret}{ids.checksum(token, secret)}"
    assert re.fullmatch(ids.BEARER_PATTERN, bearer)
    assert ids.parse_bearer(bearer) == (token, secret)


@given(st.integers(0, len(BEARER) - 1), st.characters(codec="utf-8"))
def test_one_wrong_character_is_found_by_form_or_checksum(place: int, character: str) -> None:
    """A CRC-32 detects every change of a single character, at any position."""
    mangled = BEARER[:place] + character + BEARER[place + 1 :]
    assert (ids.parse_bearer(mangled) is None) == (mangled != BEARER)


@given(st.integers(0, len(BEARER) - 2))
def test_two_swapped_characters_are_found(place: int) -> None:
    """A CRC-32 detects every change within 32 bits, and so every swap of two neighbours."""
    swapped = BEARER[:place] + BEARER[place + 1] + BEARER[place] + BEARER[place + 2 :]
    assert (ids.parse_bearer(swapped) is None) == (swapped != BEARER)


@given(st.text(st.characters(codec="utf-8"), max_size=200))
def test_no_text_breaks_the_parsers(text: str) -> None:
    """Any other text gives None, and never raises an exception."""
    assert ids.parse_bearer(text) is None
    assert ids.parse_api_key(text) is None


def test_whitespace_and_odd_spellings_are_not_forgiven() -> None:
    """P1 (kubernetes 52919), P2 (k3s 12982): clients trim, the server does not. A bearer has exactly one dot."""
    for space in (" ", "\n", "\r\n", "\t", "\u00a0", "\u200b", "\0"):
        for spelt in (space + BEARER, BEARER + space, BEARER.replace(".", f".{space}")):
            assert ids.parse_bearer(spelt) is None
    for odd in (
        BEARER.upper(),
        BEARER.replace(".", ""),
        BEARER.replace(".", ".."),
        "",
        ".",
        "bcjt_.",
        f"Bearer {BEARER}",
    ):
        assert ids.parse_bearer(odd) is None
    key = f"{ids.new_id('bck')}.{ids.new_secret()}"
    assert ids.parse_api_key(key) is not None
    for odd in (key + "\n", key.upper(), key.replace(".", ".."), key[:-1], key + "0", BEARER):
        assert ids.parse_api_key(odd) is None


def test_secrets_are_random_and_full_length() -> None:
    """Each secret has 256 bits in 52 digits, and no two are equal."""
    new_secrets = {ids.new_secret() for _ in range(100)}
    assert len(new_secrets) == 100
    assert {len(secret) for secret in new_secrets} == {52}
    assert len({secret[:8] for secret in new_secrets}) == 100
