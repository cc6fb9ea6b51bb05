"""TLS on both event loops: certificates checked, clients known, and clear words when it fails."""

from __future__ import annotations

from pathlib import Path

import pytest
from anyio import fail_after

from taskbull.errors import ConfigurationError, ConnectionLost, ServerRefused
from taskbull.store.address import parse
from taskbull.store.async_store import open_store
from taskbull.store.connection import ConnectionOptions
from tests.servers.certificates import Certificates, tls_in_front_of
from tests.servers.kinds import Reachable
from tests.store.sample import count, echo
from tests.store.test_connection import LIMIT, proxy_to


def place(server: Reachable) -> tuple[str, int]:
    endpoint = parse(server.url).endpoints[0]
    return endpoint.host, endpoint.port


async def test_a_server_with_a_known_certificate_is_spoken_to(
    server: Reachable, prefix: str, tmp_path: Path
) -> None:
    certificates = Certificates(tmp_path)
    with tls_in_front_of(place(server), certificates) as proxy, fail_after(LIMIT):
        url = f"{proxy.url}?ssl_ca_certs={certificates.ca_file}"
        async with open_store(parse(url)) as store:
            assert await store.run(count(prefix)) == 1
            large = "x" * 300_000
            assert await store.run(echo(prefix, large)) == large
            line = store.blocking(prefix)
            assert await line.execute(("PING",), 1) == b"PONG"
            await line.close()


async def test_a_server_with_an_unknown_certificate_is_refused(
    server: Reachable, prefix: str, tmp_path: Path
) -> None:
    with tls_in_front_of(place(server), Certificates(tmp_path)) as proxy, fail_after(LIMIT):
        async with open_store(parse(proxy.url)) as store:
            with pytest.raises(ServerRefused, match="TLS") as refused:
                await store.run(count(prefix))
            assert refused.value.code == "TLS"


async def test_the_check_can_be_switched_off(
    server: Reachable, prefix: str, tmp_path: Path
) -> None:
    with tls_in_front_of(place(server), Certificates(tmp_path)) as proxy, fail_after(LIMIT):
        async with open_store(parse(f"{proxy.url}?ssl_cert_reqs=none")) as store:
            assert await store.run(count(prefix)) == 1


async def test_a_client_shows_its_own_certificate(
    server: Reachable, prefix: str, tmp_path: Path
) -> None:
    certificates = Certificates(tmp_path)
    target = place(server)
    with tls_in_front_of(target, certificates, client_must_have_one=True) as proxy:
        url = (
            f"{proxy.url}?ssl_ca_certs={certificates.ca_file}"
            f"&ssl_certfile={certificates.client_file}"
        )
        with fail_after(LIMIT):
            async with open_store(parse(url)) as store:
                assert await store.run(count(prefix)) == 1


async def test_tls_to_a_server_without_it_is_reported(server: Reachable, prefix: str) -> None:
    with proxy_to(server) as proxy, fail_after(LIMIT):
        address = parse(proxy.url.replace("redis:", "rediss:"))
        async with open_store(address, ConnectionOptions(connect_timeout=0.5)) as store:
            with pytest.raises(ConnectionLost, match="does it support TLS"):
                await store.run(count(prefix), timeout=2.0)


def test_a_certificate_file_that_is_not_there_is_found_when_the_url_is_read() -> None:
    with pytest.raises(ConfigurationError, match="TLS files"):
        parse("rediss://localhost?ssl_ca_certs=/no/such/file.pem")


# S10: a setting that tightens the check is obeyed or refused, never ignored.

CRL = "VERIFY_CRL_CHECK_LEAF"


@pytest.mark.parametrize("flags", [CRL, f"[{CRL}]", f"VERIFY_X509_STRICT, {CRL}"])
async def test_a_verify_flag_that_the_certificate_does_not_satisfy_refuses_the_server(
    server: Reachable, prefix: str, tmp_path: Path, flags: str
) -> None:
    certificates = Certificates(tmp_path)
    with tls_in_front_of(place(server), certificates) as proxy, fail_after(LIMIT):
        url = f"{proxy.url}?ssl_ca_certs={certificates.ca_file}&ssl_include_verify_flags={flags}"
        async with open_store(parse(url)) as store:
            with pytest.raises(ServerRefused, match="CRL"):
                await store.run(count(prefix))
        async with open_store(parse(f"{url}&ssl_exclude_verify_flags={CRL}")) as store:
            assert await store.run(count(prefix)) == 1


@pytest.mark.parametrize(
    "setting",
    [
        "ssl_validate_ocsp=true",
        "ssl_validate_ocsp_stapled=1",
        "ssl_ocsp_expected_cert=/no/such/file",
        "ssl_ocsp_context=x",
        "ssl_include_verify_flags=NO_SUCH_FLAG",
    ],
)
def test_a_tls_setting_that_cannot_be_obeyed_is_refused_by_its_name(setting: str) -> None:
    with pytest.raises(ConfigurationError, match=setting.partition("=")[0]):
        parse(f"rediss://localhost?{setting}")


def test_an_ocsp_check_that_is_turned_off_is_no_reason_to_refuse() -> None:
    parse("rediss://localhost?ssl_validate_ocsp=false")
