"""Tests settings with fixed words: any case is accepted, and the error of another word names the setting."""

import pytest

from settings import Settings, SettingsError


@pytest.mark.parametrize("word", ["DEBUG", "debug", "Debug"])
def test_fixed_words_take_any_case(word: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """``BC_LOG_LEVEL=DEBUG`` was refused for the case of its letters."""
    monkeypatch.setenv("BC_LOG_LEVEL", word)
    monkeypatch.setenv("BC_LOG_FORMAT", "JSON")
    settings = Settings.read()
    assert (settings.log_level, settings.log_format) == ("debug", "json")


def test_another_word_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the variable and its words, and does not show the value."""
    monkeypatch.setenv("BC_LOG_LEVEL", "LOUD")
    with pytest.raises(SettingsError) as refused:
        Settings.read()
    assert "BC_LOG_LEVEL" in str(refused.value)
    assert "'info'" in str(refused.value)
    assert "LOUD" not in str(refused.value)
