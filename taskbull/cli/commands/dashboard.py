"""The command `dashboard`: serve the web dashboard."""

from __future__ import annotations

import os
from ipaddress import ip_address
from secrets import token_urlsafe

import click

from taskbull.app.app import App
from taskbull.cli.app_loading import app_argument, find_app_of_server, server_options
from taskbull.cli.errors import CommandFailed, WrongUsage, failure_of, note
from taskbull.errors import TaskbullError

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
    that is printed. TASKBULL_DASHBOARD_TOKEN sets a token of your own, which is not printed.
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
        note("others on this machine can see the password of --auth: --auth-env NAME hides it")
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
