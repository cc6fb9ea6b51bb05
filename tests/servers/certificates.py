"""A TLS proxy in front of a server, because the servers that pip installs lack TLS."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import trustme

from tests.servers.link import Target
from tests.servers.proxy import Proxy


class Certificates:
    """A certificate authority and its certificates, as files in `folder`."""

    def __init__(self, folder: Path, *, host: str = "127.0.0.1") -> None:
        authority = trustme.CA()
        self.ca_file = folder / "ca.pem"
        self.client_file = folder / "client.pem"
        authority.cert_pem.write_to_path(str(self.ca_file))
        authority.issue_cert("client@example.org").private_key_and_cert_chain_pem.write_to_path(
            str(self.client_file)
        )
        self._authority = authority
        self._server = authority.issue_cert(host, "localhost")

    def server_context(self, *, client_must_have_one: bool = False) -> ssl.SSLContext:
        """Return the server's SSL context, which can require clients to present `client_file`."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._server.configure_cert(context)
        if client_must_have_one:
            self._authority.configure_trust(context)
            context.verify_mode = ssl.CERT_REQUIRED
        return context


@contextmanager
def tls_in_front_of(
    target: Target, certificates: Certificates, *, client_must_have_one: bool = False
) -> Iterator[Proxy]:
    """Speak TLS for the server at `target`; the proxy's `url` begins with `rediss://`."""
    context = certificates.server_context(client_must_have_one=client_must_have_one)
    with Proxy(target, tls=context) as proxy:
        yield proxy
