"""The address and the keys of queues."""

from __future__ import annotations

import pytest

from taskbull.errors import ConfigurationError
from taskbull.store.address import Namespace, parse


@pytest.mark.parametrize(
    ("url", "prefix", "hash_tag", "base"),
    [
        ("redis://localhost", "bull", None, "bull:emails:"),
        ("redis://localhost", "shop", True, "shop:{emails}:"),
        ("redis+sentinel://localhost/main", "bull", None, "bull:emails:"),
        ("redis+cluster://localhost", "bull", None, "bull:{emails}:"),
        ("redis+cluster://localhost", "bull", False, "bull:emails:"),
    ],
)
def test_a_queue_has_the_keys_that_its_server_needs(
    url: str, prefix: str, hash_tag: bool | None, base: str
) -> None:
    assert Namespace(parse(url), prefix, hash_tag).keys("emails").base == base


@pytest.mark.parametrize("prefix", ["", "x" * 256, "{}"])
def test_a_prefix_that_no_queue_can_have_is_refused_immediately(prefix: str) -> None:
    with pytest.raises(ConfigurationError, match="prefix"):
        Namespace(parse("redis+cluster://localhost"), prefix)
