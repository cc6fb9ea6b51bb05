"""A test runner for tests with a real worker: they use the project's own databases."""

from __future__ import annotations

from typing import Any

from django.test.runner import DiscoverRunner


class LiveRunner(DiscoverRunner):
    """Runs tests without test databases."""

    def setup_databases(self, **_: Any) -> Any:
        """Leave the databases alone."""

    def teardown_databases(self, old_config: Any, **_: Any) -> None:
        """Leave the databases alone."""
