"""Which store a URL names, and what of a URL may be shown."""

from __future__ import annotations

import pytest

from perdure.store.open import without_password


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://ann:secret@db/shop", "postgresql://ann:***@db/shop"),
        ("postgresql://ann:se@cr:et@db:5432/shop", "postgresql://ann:***@db:5432/shop"),
        ("postgresql://db/shop?user=ann&password=secret&x=1", "postgresql://db/shop?user=ann&password=***&x=1"),
        ("postgresql://ann@db/shop", "postgresql://ann@db/shop"),
        ("jobs.db", "jobs.db"),
    ],
)
def test_a_password_is_never_shown(url: str, shown: str) -> None:
    assert without_password(url) == shown
