"""Fixtures: an empty outbox, and taskbull's `server`, a private Redis."""

from __future__ import annotations

import pytest
import signup

from taskbull.testing import server as server


@pytest.fixture
def outbox(monkeypatch: pytest.MonkeyPatch) -> signup.Outbox:
    """A separate mail server for each test."""
    empty = signup.Outbox()
    monkeypatch.setattr(signup, "outbox", empty)
    return empty
