"""Names of keys: BullMQ's on a single server, one slot per queue in a Cluster."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskbull.core.keys import QueueKeys, has_hash_tag
from taskbull.errors import ConfigurationError


def test_the_keys_of_a_queue_are_those_of_bullmq() -> None:
    keys = QueueKeys("emails")
    assert keys.base == "bull:emails:"
    assert keys.qualified_name == "bull:emails"
    assert (keys.wait, keys.paused, keys.active) == (
        "bull:emails:wait",
        "bull:emails:paused",
        "bull:emails:active",
    )
    assert keys.priority_counter == "bull:emails:pc"
    assert keys.waiting_children == "bull:emails:waiting-children"
    assert keys.stalled_check == "bull:emails:stalled-check"
    assert keys.metrics_failed_data == "bull:emails:metrics:failed:data"


def test_the_keys_of_a_job_stand_below_the_base() -> None:
    keys = QueueKeys("emails", "shop")
    assert keys.job("42") == "shop:emails:42"
    assert keys.lock("42") == "shop:emails:42:lock"
    assert keys.logs("42") == "shop:emails:42:logs"
    assert keys.dependencies("42") == "shop:emails:42:dependencies"
    assert keys.processed("42") == "shop:emails:42:processed"
    assert keys.failed_children("42") == "shop:emails:42:failed"
    assert keys.unsuccessful("42") == "shop:emails:42:unsuccessful"
    assert keys.deduplication("k") == "shop:emails:de:k"
    assert keys.scheduler("daily") == "shop:emails:repeat:daily"


def test_a_private_key_is_out_of_reach_of_bullmqs_clean_up() -> None:
    keys = QueueKeys("emails")
    assert keys.private("producer", "abc") == "bull:emails:tb:producer:abc"
    for parts in [(), ("lock",), ("x", "logs")]:
        with pytest.raises(ConfigurationError):
            keys.private(*parts)


# FR-9
@pytest.mark.parametrize(
    ("name", "prefix", "cluster", "hash_tag", "base"),
    [
        ("emails", "bull", False, None, "bull:emails:"),
        ("emails", "bull", True, None, "bull:{emails}:"),
        ("{emails}", "bull", True, None, "bull:{emails}:"),
        ("mail{eu}", "bull", True, None, "bull:mail{eu}:"),
        ("emails", "{shop}", True, None, "{shop}:emails:"),
        ("emails", "bull", True, False, "bull:emails:"),
        ("emails", "bull", False, True, "bull:{emails}:"),
        ("{emails}", "bull", False, True, "bull:{emails}:"),
        ("{}", "bull", True, None, "bull:{{}}:"),
        ("a}b", "bull", True, None, "bull:{a}b}:"),
    ],
)
def test_a_cluster_gets_a_hash_tag_unless_there_is_one(
    name: str, prefix: str, cluster: bool, hash_tag: bool | None, base: str
) -> None:
    keys = QueueKeys(name, prefix, cluster, hash_tag)
    assert keys.base == base
    assert keys.wait == f"{base}wait"
    assert keys.queue == name


# FR-9: Redis looks at the first pair of braces only.
def test_a_prefix_whose_empty_tag_spreads_the_keys_is_refused_on_a_cluster() -> None:
    with pytest.raises(ConfigurationError, match="empty hash tag"):
        QueueKeys("emails", "{}", cluster=True)
    assert QueueKeys("emails", "{}").base == "{}:emails:"


@given(st.text(min_size=1, max_size=20).filter(lambda s: ":" not in s), st.sampled_from("ab{}"))
def test_on_a_cluster_every_queue_has_a_tag_in_its_base(name: str, prefix: str) -> None:
    try:
        keys = QueueKeys(name, prefix, cluster=True)
    except ConfigurationError:
        return
    assert has_hash_tag(keys.base)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("", "must not be empty"),
        ("a:b", "not contain ':'"),
        ("x" * 256, "at most 255"),
        ("\ud800", "surrogate"),
        (5, "be a string, got 5"),
        (None, "be a string"),
    ],
)
def test_a_queue_name_that_breaks_the_keys_is_refused(name: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        QueueKeys(name)


@pytest.mark.parametrize("prefix", ["", None, 3, "x" * 256])
def test_a_prefix_that_is_no_text_is_refused(prefix: str) -> None:
    with pytest.raises(ConfigurationError, match="prefix"):
        QueueKeys("emails", prefix)


def test_keys_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        QueueKeys("emails").wait = "x"  # type: ignore[misc]


def test_a_worker_names_its_connection_so_that_node_finds_it() -> None:
    assert QueueKeys("b5").connection_name("wk-1") == "bull:YjU=:w:wk-1"
    assert QueueKeys("b5").connection_name() == "bull:YjU="
    assert QueueKeys("b5", "my shop").connection_name() == "my-shop:YjU="
