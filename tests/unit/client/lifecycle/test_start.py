"""Start: the settings that a user's arguments and environment make."""

from __future__ import annotations

import pytest

from jdist.client.lifecycle.start import make_settings


@pytest.mark.parametrize(
    ("given", "own", "sent"),
    [("", None, ()), ("debug", None, (("JDIST_LOG", "debug"),)), ("debug", "info", (("JDIST_LOG", "info"),))],
)
def test_the_level_of_logging_travels_with_the_settings_to_every_launcher(
    given: str, own: str | None, sent: tuple[tuple[str, str], ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JDIST_LOG", given)
    settings = make_settings(2, 1, name="c", env=None if own is None else {"JDIST_LOG": own})
    assert settings.env == sent
