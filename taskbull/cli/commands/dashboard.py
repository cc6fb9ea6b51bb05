"""The commands `dashboard`, `exporter` and `health`."""

from __future__ import annotations

import os
import signal
from collections.abc import Generator
from contextlib import closing, contextmanager
from importlib.util import find_spec
from ipaddress import ip_address
from secrets import token_urlsafe
from time import monotonic, sleep
from typing import TYPE_CHECKING, Final, NoReturn

import click

from taskbull.app.app import App
from taskbull.cli.app_loading import app_argument, find_app_of_server, find_server, server_options
from taskbull.cli.errors import CommandFailed, WrongUsage, failure_of, note
from taskbull.errors import TaskbullError
from taskbull.monitor.overview import Overview
from taskbull.monitor.server import SyncServer
from taskbull.observability.health import Health

if TYPE_CHECKING:
    from taskbull.observability.metrics import Snapshot


# The command `dashboard`: serve the web dashboard.


_TOKEN = "TASKBULL_DASHBOARD_TOKEN"  # noqa: S105 - the name of a variable


@click.command()
@app_argument
@click.option("--host", default="127.0.0.1", help="Address to listen on.")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=8080,
    help="Port to listen on; 0 picks a free one.",
)
@click.option("--read-only", is_flag=True, help="Disable all actions.")
@click.option(
    "--auth",
    metavar="USER:PASSWORD",
    help="Require this login. Visible in the process list: prefer --auth-env.",
)
@click.option("--auth-env", metavar="NAME", help="Environment variable that holds USER:PASSWORD.")
@click.option("--no-token", is_flag=True, help="Allow all local users without a token.")
@click.option("--label", metavar="TEXT", help="Environment label to show, such as PROD.")
@click.option(
    "--allow",
    multiple=True,
    metavar="ACTION",
    help="Enable an action that is off by default, such as obliterate.",
)
@click.option("--allow-host", multiple=True, metavar="HOST", help="Additional host name to accept.")
@click.option(
    "--trust-origin",
    multiple=True,
    metavar="HOST",
    help="Additional origin whose forms are accepted.",
)
@server_options
def dashboard(  # noqa: PLR0913, PLR0917 - each is an option
    named: str | None,
    app: str | None,
    redis: str | None,
    prefix: str | None,
    host: str,
    port: int,
    auth: str | None,
    auth_env: str | None,
    no_token: bool,
    read_only: bool,
    label: str | None,
    allow: tuple[str, ...],
    allow_host: tuple[str, ...],
    trust_origin: tuple[str, ...],
) -> None:
    """Serve the web dashboard on http://127.0.0.1:8080.

    Without --auth, only browsers on this machine are served, and only with the token in the address
    that is printed. Set TASKBULL_DASHBOARD_TOKEN to use your own token, which is not printed.
    """
    credentials = _credentials(auth, auth_env)
    if credentials is None and not _is_loopback(host):
        raise WrongUsage(
            f"--host {host} allows other machines to connect, so a password is required: put "
            "user:password into an environment variable, and pass its name with --auth-env"
        )
    found: App | None = find_app_of_server(app or named, redis)
    # Imported here because other commands need neither an event loop nor a web server.
    from taskbull.dashboard.access import BasicAuth, TokenAuth  # noqa: PLC0415
    from taskbull.dashboard.asgi import Dashboard  # noqa: PLC0415

    try:
        from taskbull.dashboard.serving import serve  # noqa: PLC0415
    except ImportError as error:
        raise CommandFailed(
            "The dashboard needs uvicorn: pip install 'taskbull[dashboard]'"
        ) from error
    shown = ""
    access: BasicAuth | TokenAuth | None = None
    if credentials is not None:
        access = BasicAuth(credentials)
    elif not no_token:
        token = os.environ.get(_TOKEN) or token_urlsafe(32)
        access = TokenAuth(token, allow_host)
        shown = "" if os.environ.get(_TOKEN) else f"?token={token}"
    try:
        page = Dashboard(
            found,
            redis=redis,
            prefix=prefix,
            read_only=read_only,
            access=access,
            label=label,
            allow=allow,
            allow_hosts=allow_host,
            trust_origins=trust_origin,
        )
    except TaskbullError as error:
        raise failure_of(error) from error
    try:
        serve(page, host, port, lambda url: click.echo(f"taskbull dashboard: {url}{shown}"))
    except OSError as error:
        raise CommandFailed(f"Cannot listen on {host}:{port}: {error}") from error


def _credentials(auth: str | None, auth_env: str | None) -> str | None:
    if auth is not None and auth_env is not None:
        raise WrongUsage("--auth and --auth-env cannot be used together")
    if auth_env is not None:
        value = os.environ.get(auth_env)
        if not value:
            raise WrongUsage(f"--auth-env: the environment variable {auth_env} is not set")
        return _checked(value, f"the environment variable {auth_env}")
    if auth is not None:
        note("other users on this machine can see the --auth password; use --auth-env NAME instead")
        return _checked(auth, "--auth")
    return None


def _checked(value: str, source: str) -> str:
    user, colon, password = value.partition(":")
    if not (user and colon and password):
        raise WrongUsage(f"{source} must be user:password")
    return value


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


# The commands `exporter` and `health`: metrics of all queues without a worker, and probes.


INTERVAL: Final = 5.0
"""Seconds between two samples."""

_SHARE: Final = 10
"""With many queues, sampling takes at most this part of the time: a tenth."""

_SEARCH_SECONDS: Final = 2.0
"""Seconds that the first sample may search the keys for queues. Later samples continue."""

_NO_SAMPLE: Final = "no sample was taken yet"


@click.command()
@app_argument
@click.option("--host", default="127.0.0.1", help="Address to listen on; 0.0.0.0 means all.")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=9100,
    help="Port to listen on; 0 picks a free one.",
)
@server_options
def exporter(
    named: str | None,
    app: str | None,
    redis: str | None,
    prefix: str | None,
    host: str,
    port: int,
) -> None:
    """Serve Prometheus metrics of all queues, even without workers.

    /metrics has jobs by state, ages, rates, workers and Redis memory, sampled every 5 s.
    /livez and /readyz are probes. Read-only, without a password.
    """
    server = find_server(app or named, redis, prefix)
    if find_spec("prometheus_client") is None:
        raise CommandFailed("The exporter needs prometheus-client: pip install 'taskbull[metrics]'")
    from taskbull.observability.http_server import MetricsServer  # noqa: PLC0415 - few need it

    metrics = ServerMetrics(server)
    with _until_a_signal():
        pause = metrics.sample()
        try:
            endpoint = MetricsServer(metrics, host, port)
        except OSError as error:
            raise CommandFailed(f"Cannot listen on {host}:{port}: {error}") from error
        click.echo(f"taskbull exporter: {endpoint.url}/metrics")  # It listens, and answers soon.
        with endpoint:
            while True:
                sleep(pause)
                pause = metrics.sample()


@contextmanager
def _until_a_signal() -> Generator[None]:
    """Exit with code 0 on SIGINT or SIGTERM, even in the middle of a read."""

    def leave(*_: object) -> NoReturn:
        raise SystemExit(0)

    before = {each: signal.signal(each, leave) for each in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


class ServerMetrics:
    """The latest metrics and health of a Redis server and all its queues."""

    def __init__(self, server: SyncServer) -> None:
        # Imported here because other commands must not wait for it.
        from taskbull.observability import exporters  # noqa: PLC0415

        self._exporters = exporters
        self._server = server
        self._overview = Overview(_SEARCH_SECONDS)
        self._snapshot = exporters.describe_outage()
        self._problem = _NO_SAMPLE

    def sample(self) -> float:
        """Read all queues and servers, and return the seconds until the next sample is due."""
        begun = monotonic()
        try:
            self._server.measure(self._overview)
        except TaskbullError as error:
            if str(error) != self._problem:
                click.echo(f"taskbull exporter: cannot read Redis: {error}", err=True)
            self._snapshot, self._problem = self._exporters.describe_outage(), str(error)
            return INTERVAL
        if self._problem not in {"", _NO_SAMPLE}:
            click.echo("taskbull exporter: Redis can be read again", err=True)
        overview, known = self._overview, self._server.known_queues
        self._snapshot = self._exporters.describe_queues(overview.facts(), overview.nodes, known)
        self._problem = ""
        return max(INTERVAL, _SHARE * (monotonic() - begun))

    def snapshot(self) -> Snapshot:
        """Return the metrics of the latest sample. Thread-safe."""
        return self._snapshot

    def health(self) -> Health:
        """Return the health for probes: not ready if Redis could not be read. Thread-safe."""
        return Health(idle=self._problem)


@click.command()
@click.option("--port", type=click.IntRange(1, 65535), help="Port of a worker's --metrics-port.")
@click.option("--host", default="127.0.0.1", help="Host of the worker, with --port.")
@click.option(
    "--live", is_flag=True, help="Ask whether the worker is alive, not whether it is ready."
)
@click.option("--timeout", type=click.FloatRange(0.1), default=5.0, help="Time limit in seconds.")
@click.option("--redis", metavar="URL", help="Redis server to ask if there is no --port.")
def health(port: int | None, host: str, live: bool, timeout: float, redis: str | None) -> None:
    """Check a worker, or Redis, without importing the app.

    For container probes. With --port, ask a worker's /readyz or /livez. Otherwise check
    that Redis answers. Exit code 0 means healthy, 1 unhealthy.
    """
    if port is None:
        if live:
            raise click.UsageError("--live needs --port, the port of the worker's --metrics-port")
        server = SyncServer(redis or None, call_timeout=timeout)
        with closing(server):
            server.ping()
        click.echo("ok")
        return
    from http.client import OK, HTTPConnection, HTTPException  # noqa: PLC0415 - imports ssl

    address = f"http://{host}:{port}/{'livez' if live else 'readyz'}"
    try:
        with closing(HTTPConnection(host, port, timeout=timeout)) as connection:
            connection.request("GET", "/livez" if live else "/readyz")
            with connection.getresponse() as answer:
                text = answer.read(10_000).decode(errors="replace").strip()
    except (OSError, HTTPException) as error:
        cause = str(error) or type(error).__name__
        raise CommandFailed(f"No worker answers at {address}: {cause}") from error
    if answer.status != OK:
        raise CommandFailed(f"{address}: {text}")
    click.echo(text)
