"""Finding out what the other side speaks, when a connection to it came to nothing."""

from __future__ import annotations

import socket
from contextlib import suppress
from typing import Literal, TypeAlias

from taskbull.store.address import Address, Endpoint

Protocol: TypeAlias = Literal["tls", "plain"]

_PATIENCE = 2.0
"""Seconds for each attempt to find out."""


def wrong_protocol(address: Address) -> Protocol | None:
    """Return what the other side speaks, if that is not what the address says."""
    endpoint = address.endpoints[0] if address.endpoints else None
    if endpoint is None or endpoint.path:
        return None
    if address.tls is None and _speaks_tls(endpoint):
        return "tls"
    if address.tls is not None and _speaks_plainly(endpoint):
        return "plain"
    return None


def _speaks_tls(endpoint: Endpoint) -> bool:
    import ssl  # noqa: PLC0415 - see `Tls.context`

    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE  # it is only asked whether it speaks TLS at all
    with (
        suppress(OSError),
        socket.create_connection((endpoint.host, endpoint.port), _PATIENCE) as s,
    ):
        try:
            context.wrap_socket(s).close()
        except ssl.SSLError as error:  # an alert is TLS, too: it may want a certificate of ours
            return "ALERT" in str(error)
        return True
    return False


def _speaks_plainly(endpoint: Endpoint) -> bool:
    with (
        suppress(OSError),
        socket.create_connection((endpoint.host, endpoint.port), _PATIENCE) as s,
    ):
        s.sendall(b"PING\r\n")
        return s.recv(64)[:1] in {b"+", b"-"}
    return False
