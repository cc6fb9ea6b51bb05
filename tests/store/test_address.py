"""Every form of URL, and every way to get one wrong; a password is shown by none of them."""

from __future__ import annotations

import inspect
import traceback
from pathlib import Path
from urllib.parse import quote

import pytest
import redis.asyncio.connection
import redis.connection
from hypothesis import example, given
from hypothesis import strategies as st
from rich.pretty import pretty_repr

from taskbull.errors import ConfigurationError
from taskbull.store.address import Address, Endpoint, Tls, parse, read_url
from taskbull.store.credentials import Credentials
from tests.servers.certificates import Certificates

HERE = (Endpoint("localhost", 6379),)


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("redis://", Address("single", HERE)),
        ("redis:///", Address("single", HERE)),
        ("redis://localhost", Address("single", HERE)),
        ("redis://localhost/", Address("single", HERE)),
        ("redis://localhost:6379/0", Address("single", HERE)),
        (
            "redis://db.example.org:7000/3",
            Address("single", (Endpoint("db.example.org", 7000),), db=3),
        ),
        ("redis://localhost?db=4", Address("single", HERE, db=4)),
        ("redis://localhost/2?db=4", Address("single", HERE, db=4)),  # as redis-py has it
        ("redis://localhost?db=", Address("single", HERE)),
        ("redis://10.0.0.1", Address("single", (Endpoint("10.0.0.1", 6379),))),
        ("redis://[::1]", Address("single", (Endpoint("::1", 6379),))),
        ("redis://[2001:db8::7]:7000/1", Address("single", (Endpoint("2001:db8::7", 7000),), db=1)),
        ("rediss://localhost", Address("single", HERE, tls=Tls())),
        ("rediss://localhost:7000", Address("single", (Endpoint("localhost", 7000),), tls=Tls())),
        ("unix:///run/redis.sock", Address("single", (Endpoint(path="/run/redis.sock"),))),
        (
            "unix:///run/redis.sock?db=2",
            Address("single", (Endpoint(path="/run/redis.sock"),), db=2),
        ),
        ("unix:///a%20b/c%3Fd", Address("single", (Endpoint(path="/a b/c?d"),))),
        (
            "redis+sentinel://one,two:5000/mymaster",
            Address(
                "sentinel", (Endpoint("one", 26379), Endpoint("two", 5000)), service="mymaster"
            ),
        ),
        (
            "redis+sentinel://one:1/my%20service/5",
            Address("sentinel", (Endpoint("one", 1),), service="my service", db=5),
        ),
        (
            "rediss+sentinel://one/mymaster/0",
            Address("sentinel", (Endpoint("one", 26379),), service="mymaster", tls=Tls()),
        ),
        (
            "redis+cluster://one:7000,two:7001",
            Address("cluster", (Endpoint("one", 7000), Endpoint("two", 7001))),
        ),
        ("redis+cluster://one", Address("cluster", (Endpoint("one", 6379),))),
        ("redis+cluster://one/0", Address("cluster", (Endpoint("one", 6379),))),
        ("rediss+cluster://one", Address("cluster", (Endpoint("one", 6379),), tls=Tls())),
        (
            "redis+cluster://[::1]:7000,[::2]:7001",
            Address("cluster", (Endpoint("::1", 7000), Endpoint("::2", 7001))),
        ),
        (
            "redis+cluster://one:7000,[::2],[::3]:7001",
            Address(
                "cluster", (Endpoint("one", 7000), Endpoint("::2", 6379), Endpoint("::3", 7001))
            ),
        ),
        ("embedded:///var/lib/jobs", Address("embedded", folder="/var/lib/jobs")),
        ("embedded:///a%20folder", Address("embedded", folder="/a folder")),
    ],
)
def test_each_form_of_url_is_read(url: str, expected: Address) -> None:
    assert parse(url) == expected


def test_the_embedded_server_lives_in_the_working_directory_unless_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert parse("embedded://") == Address("embedded", folder=str(tmp_path / ".taskbull"))


@pytest.mark.parametrize(
    "form",
    [
        "redis://{}@host/0",
        "rediss://{}@host",
        "unix://{}@/run/redis.sock",
        "redis+sentinel://{}@one,two/mymaster",
        "rediss+sentinel://{}@one/mymaster/1",
        "redis+cluster://{}@one,two",
        "rediss+cluster://{}@one",
    ],
)
@pytest.mark.parametrize(
    ("login", "credentials"),
    [
        (":secret", Credentials(None, "secret")),
        ("anna:secret", Credentials("anna", "secret")),
        ("anna:", Credentials("anna", "")),
        ("an%3Ana:se%40cr%2Fet%3F%23", Credentials("an:na", "se@cr/et?#")),
        ("anna:a:b", Credentials("anna", "a:b")),
        ("anna:100%25", Credentials("anna", "100%")),
        ("anna:a+b", Credentials("anna", "a+b")),
        ("anna:%E2%82%AC%0A", Credentials("anna", "€\n")),
        ("anna:%5Bx%5D", Credentials("anna", "[x]")),
    ],
)
def test_the_login_is_read_from_every_form(form: str, login: str, credentials: Credentials) -> None:
    assert parse(form.format(login)).credentials == credentials


@given(st.text(min_size=1), st.text(min_size=1))
def test_any_login_survives_percent_encoding(username: str, password: str) -> None:
    login = f"{quote(username, safe='')}:{quote(password, safe='')}"
    assert parse(f"redis://{login}@host").credentials == Credentials(username, password)


@pytest.mark.parametrize(
    ("query", "credentials"),
    [
        ("password=se%26cret", Credentials(None, "se&cret")),
        ("username=anna&password=secret", Credentials("anna", "secret")),
    ],
)
def test_the_login_may_be_an_option(query: str, credentials: Credentials) -> None:
    assert parse(f"redis://host?{query}").credentials == credentials


@pytest.mark.parametrize(
    ("credentials", "words"),
    [
        (Credentials(), ()),
        (Credentials(None, "secret"), ("AUTH", "secret")),
        (Credentials("anna", "secret"), ("AUTH", "anna", "secret")),
        (Credentials("anna", ""), ("AUTH", "anna", "")),  # a user with `nopass`
    ],
)
def test_credentials_become_the_auth_command(
    credentials: Credentials, words: tuple[str, ...]
) -> None:
    assert credentials.words == words


def test_a_user_without_a_password_is_not_forgotten() -> None:
    # The server would take us for its default user, who may do other things.
    assert parse("redis://anna@host").credentials.words[:2] == ("AUTH", "anna")


def test_an_empty_password_without_a_user_is_none_at_all() -> None:
    # What `redis://:$PASSWORD@host` becomes where there is none; redis-py sends no AUTH then.
    assert parse("redis://:@host").credentials.words == ()


def test_sentinels_may_have_a_login_of_their_own() -> None:
    address = parse(
        "redis+sentinel://a:b@one/mymaster?sentinel_username=watch&sentinel_password=p%20w"
    )
    assert address.credentials == Credentials("a", "b")
    assert address.sentinel_credentials == Credentials("watch", "p w")


def test_the_tls_options_are_read(tmp_path: Path) -> None:
    certificates = Certificates(tmp_path)
    ca, mine = certificates.ca_file, certificates.client_file
    address = parse(
        f"rediss://host?ssl_ca_certs={ca}&ssl_certfile={mine}&ssl_keyfile={mine}"
        "&ssl_cert_reqs=required&ssl_check_hostname=No"
    )
    assert address.tls == Tls(str(ca), str(mine), str(mine), check_hostname=False)


@pytest.mark.parametrize("yes", ["true", "True", "1", "yes"])
def test_the_hostname_check_is_switched_by_a_word(yes: str) -> None:
    assert parse(f"rediss://host?ssl_check_hostname={yes}").tls == Tls()


def test_the_check_of_certificates_can_be_switched_off() -> None:
    assert parse("rediss://host?ssl_cert_reqs=none").tls == Tls(cert_reqs="none")


@pytest.mark.parametrize(
    ("url", "wrong"),
    [
        ("", "must start with one of redis://"),
        ("localhost", "must start with one of redis://"),
        ("localhost:6379", "must start with one of redis://"),
        ("http://localhost", "must start with one of redis://"),
        ("redis:localhost", "must start with one of redis://"),
        ("redis:/localhost", "must start with one of redis://"),
        (" redis://localhost", "must start with one of redis://"),
        ("redis://localhost:port", "'localhost:port' is not a host and port"),
        ("redis://localhost:70000", "'localhost:70000' is not a host and port"),
        ("redis://localhost:0", "'localhost:0' is not a host and port"),
        ("redis://localhost:-1", "'localhost:-1' is not a host and port"),
        ("redis://a:1:2", "'a:1:2' is not a host and port"),
        ("redis://:6379", "':6379' is not a host and port"),
        ("redis://[::1", "'[::1' is not a host and port"),
        ("redis://::1:6379", "'::1:6379' is not a host and port"),
        ("redis://two words", "'two words' is not a host and port"),
        ("redis://a..b", "'a..b' is not a host and port"),
        ("redis://" + "x" * 64 + ".org", "is not a host and port"),
        ("redis://localhost/one", "the database is a number, not 'one'"),
        ("redis://localhost/-1", "the database is a number, not '-1'"),
        ("redis://localhost/1.5", "the database is a number, not '1.5'"),
        ("redis://localhost/²", "the database is a number, not '²'"),
        ("redis://localhost/0/1", "the database is a number, not '0/1'"),
        ("redis://localhost?db=x", "the database is a number, not 'x'"),
        ("redis://localhost/" + "1" * 5000, "the database is a number"),
        ("redis://one,two", "several hosts need redis+cluster:// or redis+sentinel://"),
        ("redis://localhost?time_out=1", "option 'time_out' is unknown; did you mean 'timeout'?"),
        (
            "redis://h?sokcet_timeout=1",
            "'sokcet_timeout' is unknown; did you mean 'socket_t",
        ),
        ("redis://localhost?colour=red", "option 'colour' is unknown; redis-py has none"),
        ("redis://localhost?socket_timeout=soon", "socket_timeout is a number of seconds"),
        ("redis://localhost?socket_connect_timeout=0", "socket_connect_timeout is a number of"),
        ("redis+cluster://", "a Redis Cluster needs a host"),
        ("rediss+cluster:///0", "a Redis Cluster needs a host"),
        ("redis://localhost?ssl_cert_reqs=none", "option 'ssl_cert_reqs' needs TLS: use rediss"),
        ("redis://localhost/0#1", "#"),
        ("unix:///run/redis.sock#1", "#"),
        (
            "rediss://localhost?ssl_cert_reqs=maybe",
            "'optional' or 'none', not 'maybe'",
        ),
        ("rediss://localhost?ssl_check_hostname=2", "ssl_check_hostname is true or false, not '2'"),
        ("rediss://localhost?ssl_ca_certs=/no/file", "there is no file '/no/file'"),
        ("rediss://localhost?ssl_certfile=/no/file", "there is no file '/no/file'"),
        ("unix://", "unix:// is followed by an absolute path"),
        ("unix://relative/path", "unix:// is followed by an absolute path"),
        ("unix:///run/redis.sock?db=x", "the database is a number, not 'x'"),
        ("unix:///run/redis.sock?sentinel_username=x", "option 'sentinel_username' is unknown"),
        ("redis+sentinel://one", "the path is the name of the service and the database"),
        ("redis+sentinel://one/", "the path is the name of the service and the database"),
        ("redis+sentinel://one/a/0/1", "the path is the name of the service and the database"),
        ("redis+sentinel://one/mymaster/x", "the database is a number, not 'x'"),
        ("redis+sentinel://one,two:x/mymaster", "'two:x' is not a host and port"),
        ("redis+sentinel://one,,two/mymaster", "'' is not a host and port"),
        ("redis+cluster://one/1", "a Redis Cluster has database 0 only"),
        ("redis+cluster://one?db=1", "a Redis Cluster has database 0 only"),
        ("redis+cluster://one,two:0", "'two:0' is not a host and port"),
        ("redis+cluster://one,", "'' is not a host and port"),
        ("embedded://folder", "write embedded:// or embedded:///absolute/folder"),
        ("embedded://./folder", "write embedded:// or embedded:///absolute/folder"),
        ("embedded:///folder?db=1", "write embedded:// or embedded:///absolute/folder"),
    ],
)
def test_a_wrong_url_is_refused_with_what_is_wrong(url: str, wrong: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        parse(url)
    assert wrong in str(caught.value)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("localhost:6379", "'localhost:6379' is not valid"),
        ("localhost:6379", "did you mean redis://localhost:6379?"),
        ("sentinel://a:1;sentinel://b:1", "sentinel:// is redis+sentinel://host:26379/mymaster/0"),
        ("redis+socket:///tmp/redis.sock", "Celery's redis+socket:// is unix:///path here"),
        ("redis.example.org:6379/1", "did you mean redis://redis.example.org:6379/1?"),
        ("redis:/localhost:6379", "'redis:/localhost:6379' is not valid"),
        ("redis//localhost:6379/0", "'redis//localhost:6379/0' is not valid"),
        ("anna:secret@localhost:6379", "'***' is not valid"),
        ("secret", "'***' is not valid"),
    ],
)
def test_what_is_wrong_is_shown_where_no_password_can_be_in_it(url: str, shown: str) -> None:
    with pytest.raises(ConfigurationError) as caught:  # G5
        parse(url)
    assert shown in str(caught.value)
    assert "secret" not in str(caught.value)


def test_every_parameter_of_redis_py_is_accepted() -> None:  # G5
    names: set[str] = set()
    for module in (redis.connection, redis.asyncio.connection):
        for kind in (module.SSLConnection, module.Connection, module.AbstractConnection):
            names |= inspect.signature(kind.__init__).parameters.keys()
        names |= vars(module)["URL_QUERY_ARGUMENT_PARSERS"].keys()
    names -= {"self", "kwargs", *VALUES}
    names -= {name for name in names if name.startswith(("maint", "orig_", "himport", "oss_"))}
    query = "&".join(f"{name}=" for name in sorted(names))
    query += "".join(f"&{name}={value}" for name, value in VALUES.items())
    assert parse(f"rediss://host?{query}").endpoints == (Endpoint("host", 6379),)


VALUES = {
    "db": "1",
    "socket_timeout": "3",
    "socket_connect_timeout": "2.5",
    "ssl_cert_reqs": "CERT_NONE",
    "ssl_check_hostname": "false",
    "ssl_min_version": "771",
    "protocol": "3",
    "decode_responses": "True",
}


def test_the_parameters_that_mean_something_are_obeyed() -> None:  # G5
    address = parse("redis://h?socket_timeout=3&socket_connect_timeout=2.5&client_name=web")
    assert address == Address(
        "single",
        (Endpoint("h", 6379),),
        response_timeout=3,
        connect_timeout=2.5,
        client_name="web",
    )


@pytest.mark.parametrize(
    ("spelling", "meant"),
    [
        *(("none", "none"), ("CERT_NONE", "none"), ("None", "none"), ("ssl.CERT_NONE", "none")),
        *(("required", "required"), ("CERT_REQUIRED", "required"), ("CERT_OPTIONAL", "optional")),
    ],
)
def test_the_check_of_certificates_is_spelled_in_many_ways(spelling: str, meant: str) -> None:
    assert parse(f"rediss://h?ssl_cert_reqs={spelling}").tls == Tls(cert_reqs=meant)  # G5


def test_certificates_may_stand_in_the_url(tmp_path: Path) -> None:  # G5
    data = Certificates(tmp_path).ca_file.read_text()
    tls = parse(f"rediss://h?ssl_ca_data={quote(data)}").tls
    assert tls == Tls(ca_data=data)
    assert len(tls.context().get_ca_certs()) == 1


def test_a_file_that_is_no_certificate_is_refused(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("not a certificate")
    with pytest.raises(ConfigurationError, match="the TLS files cannot be used"):
        parse(f"rediss://localhost?ssl_ca_certs={tmp_path / 'ca.pem'}")


def test_the_error_shows_the_url_without_its_password() -> None:
    with pytest.raises(ConfigurationError, match=r"'redis://anna:\*\*\*@host/x' is not valid"):
        parse("redis://anna:secret@host/x")


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://anna:secret@host:7000/3", "host:7000/3"),
        ("redis://:secret@host", "host:6379"),
        ("redis://:secret@[::1]:7000", "[::1]:7000"),
        ("unix://:secret@/run/redis.sock", "/run/redis.sock"),
        ("redis+sentinel://:secret@one,two:1/my/2?sentinel_password=x", "one:26379,two:1/my/2"),
        ("redis+cluster://:secret@one,two:1", "one:6379,two:1"),
        ("embedded:///var/jobs", "embedded:///var/jobs"),
    ],
)
def test_an_address_shows_where_and_never_the_password(url: str, shown: str) -> None:
    assert str(parse(url)) == shown


def test_not_even_the_repr_of_an_address_shows_a_password() -> None:
    # It ends up in tracebacks that show locals, and in a debugger's logs.
    url = "rediss+sentinel://:hush1@one/my?sentinel_password=hush2&ssl_password=hush3"
    assert "hush" not in repr(parse(url))


def test_no_representation_of_its_parts_shows_a_password() -> None:  # S23
    url = "rediss://ann:hush@h/0?ssl_password=hush&ssl_certfile=c&password=hush"
    tls = Tls(certfile="c", password="hush")
    address = Address("single", HERE, Credentials("ann", "hush"), tls=tls)
    for thing in (read_url(url), address, address.credentials, tls):
        for shown in (repr(thing), str(thing), pretty_repr(thing), f"{thing}"):
            assert "hush" not in shown
    assert pretty_repr(read_url(url)) == "Url(text='rediss://ann:***@h/0')"


# A word that no part of a URL or message has, twice, and whatever people put around it.
_PARTS = st.text(
    alphabet=st.sampled_from("/?#[]@:%&=+, \\\"'\n\t\0.-_~!$*();aZ0é€℀\uff0e\u2028"), max_size=4
)
_PASSWORDS = st.tuples(_PARTS, _PARTS, _PARTS).map("Xyzzy".join)
_FORMS = st.sampled_from(
    [
        "redis://:{}@host/0",
        "redis://anna:{}@host:7000/0",
        "rediss://anna:{}@host",
        "redis://anna:{}@host:port",
        "redis://anna:{}@host/db",
        "redis://anna:{}@[::1",
        "redis://anna:{}@",
        "redis://anna:{}",
        "redis://anna:{}@one,two",
        "redis://anna:{}@host?timeout=1",
        "redis://host?password={}",
        "redis://host?password={}&timeout=1",
        "redis://host/x?username=anna&password={}",
        "rediss://host?ssl_password={}&ssl_certfile=/no/file",
        "redis:/anna:{}@host",
        "redis:anna:{}@host",
        "anna:{}@host",
        "http://anna:{}@host",
        "unix://anna:{}@/run/redis.sock",
        "unix://anna:{}@relative",
        "redis+sentinel://anna:{}@one,two/mymaster",
        "redis+sentinel://anna:{}@one",
        "redis+sentinel://one/mymaster/x?sentinel_password={}",
        "redis+cluster://anna:{}@one,two",
        "redis+cluster://anna:{}@one/1",
        "embedded://anna:{}@host",
        "embedded:///folder?password={}",
    ]
)


@given(_FORMS, _PASSWORDS, st.booleans())
@example("redis://:{}@host/0", "Xyzzy?Xyzzy", False)
@example("redis://:{}@host/0", "Xyzzy#Xyzzy", False)
@example("redis://:{}@host/0", "0/Xyzzy", False)
@example("redis://:{}@host/0", "[Xyzzy]", False)
@example("redis://:{}@host/0", "Xyzzy℀", False)
@example("redis://host?password={}", "a&Xyzzy", False)
@example("anna:{}@host", "Xyzzy", False)
def test_no_url_however_wrong_shows_its_password(form: str, password: str, encoded: bool) -> None:
    url = form.format(quote(password, safe="") if encoded else password)
    try:
        address = parse(url)
    except ConfigurationError as error:
        shown = "".join(traceback.format_exception(error))
    else:
        shown = str(address)
    if form != "redis://anna:{}":  # It looks like a host and a port.
        assert "xyzzy" not in shown.lower()
