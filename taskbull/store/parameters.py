"""The parameters of a Redis URL: ours, and all that redis-py's `from_url` takes.

One URL often serves a whole application. What means nothing here is accepted and ignored; a name
that redis-py does not know either is a mistake.
"""

from __future__ import annotations

from taskbull.core.checks import nearest
from taskbull.store.url import Url

LOGIN = frozenset({"db", "username", "password"})
SENTINEL = frozenset({"sentinel_username", "sentinel_password"})
TLS = frozenset(
    {"ssl_ca_certs", "ssl_ca_data", "ssl_ca_path", "ssl_certfile", "ssl_keyfile", "ssl_password"}
    | {"ssl_cert_reqs", "ssl_check_hostname", "ssl_min_version", "ssl_ciphers"}
    | {"ssl_include_verify_flags", "ssl_exclude_verify_flags", "ssl_validate_ocsp"}
    | {"ssl_validate_ocsp_stapled", "ssl_ocsp_context", "ssl_ocsp_expected_cert"}
)
OBEYED = frozenset({"socket_timeout", "socket_connect_timeout", "client_name"})
IGNORED = frozenset(
    {"socket_keepalive", "socket_keepalive_options", "socket_read_size", "socket_type"}
    | {"retry", "retry_on_timeout", "retry_on_error", "health_check_interval", "max_connections"}
    | {"timeout", "protocol", "legacy_responses", "encoding", "encoding_errors", "lib_name"}
    | {"decode_responses", "lib_version", "driver_info", "single_connection_client"}
    | {"auto_close_connection_pool", "parser_class", "connection_class", "encoder_class"}
    | {"command_packer", "credential_provider", "redis_connect_func", "event_dispatcher"}
    | {"cache", "cache_config", "host", "port", "path", "read_from_replicas", "cache_factory"}
    | {"cluster_error_retry_attempts", "require_full_coverage", "reinitialize_steps"}
    | {"dynamic_startup_nodes", "load_balancing_strategy", "address_remap", "policy_resolver"}
    | {"skip_full_coverage_check", "maint_notifications_config", "startup_nodes", "url"}
)


def check_parameters(url: Url, *, encrypted: bool, sentinel: bool) -> None:
    """Refuse a URL with an unknown parameter, or one that needs another scheme."""
    known = LOGIN | TLS | OBEYED | IGNORED
    if sentinel:
        known |= SENTINEL
    for name in url.options:
        if name in TLS and not encrypted:
            raise url.wrong(f"option {name!r} needs TLS: use rediss")
        if name not in known:
            # After a password that has a "&" in it, its rest would look like an option.
            if any("password" in option for option in url.options):
                raise url.wrong("an option is unknown")
            near = nearest(name, known)
            hint = f"did you mean {near!r}?" if near else "redis-py has none of that name"
            raise url.wrong(f"option {name!r} is unknown; {hint}")


def read_seconds(url: Url, name: str) -> float | None:
    """Return a parameter that is a number of seconds, or None where it is not there."""
    text = url.options.get(name)
    if text is None:
        return None
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds <= 86_400:  # NaN fails this too
        raise url.wrong(f"{name} is a number of seconds, greater than 0")
    return seconds
