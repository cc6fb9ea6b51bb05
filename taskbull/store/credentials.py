"""Credentials for Redis: fixed ones, and functions that return them for each new connection."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from threading import TIMEOUT_MAX, Thread
from typing import Any, Protocol, TypeAlias, cast

from msgspec import Struct
from msgspec.structs import replace

from taskbull.errors import ConfigurationError, ConnectionLost

Login: TypeAlias = str | tuple[str, ...]
"""A password, or a user name and a password."""


class CredentialProvider(Protocol):
    """A `CredentialProvider` of redis-py."""

    def get_credentials(self) -> Any:
        """Return (password,) or (user, password)."""
        ...


AskCredentials: TypeAlias = Callable[[], Login | Awaitable[Login]] | CredentialProvider
"""Function that returns the credentials for a new connection."""


class Provider:
    """A user's function that returns credentials, sync or async."""

    def __init__(self, given: object) -> None:
        """Accept a function, or a redis-py `CredentialProvider`.

        Raises `ConfigurationError` for anything else.
        """
        ask = getattr(given, "get_credentials", given)
        if getattr(ask, "__qualname__", "") == "CredentialProvider.get_credentials":
            ask = getattr(given, "get_credentials_async", ask)  # redis-py's base class only raises.
        if not callable(ask):
            raise ConfigurationError(
                "credentials must be a function that returns a password or (user, password), or a "
                f"redis-py CredentialProvider, got {type(given).__qualname__}"
            )
        self.ask = cast("Callable[[], Login | Awaitable[Login]]", ask)
        self.uses_trio = False
        """True once the provider was called in an event loop of trio."""
        self._given = given

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Provider) and self.ask == other.ask

    def __hash__(self) -> int:
        return id(self._given)  # A callable object need not be hashable.

    def __str__(self) -> str:
        return getattr(self.ask, "__qualname__", type(self.ask).__qualname__)

    def ask_within(self, seconds: float) -> Any:
        """Call the function, and await its result if it is async.

        It runs in a thread, because it may block without a limit, and because this thread may have
        an event loop, which cannot run a second one.

        Raises:
            TimeoutError: If it takes longer.
        """
        outcome: list[Any] = []
        errors: list[BaseException] = []

        def run() -> None:
            try:
                answer = self.ask()
                outcome.append(self._run(answer) if isinstance(answer, Awaitable) else answer)
            except BaseException as error:  # noqa: BLE001 - raised in the other thread
                errors.append(error)

        thread = Thread(target=run, name="taskbull credentials", daemon=True)
        thread.start()
        thread.join(min(seconds, TIMEOUT_MAX))
        if errors:
            raise errors[0]
        if not outcome:
            raise TimeoutError(f"it took longer than {seconds:.2g} s")
        return outcome[0]

    def _run(self, answer: Awaitable[Login]) -> Login:
        async def wait() -> Login:
            return await answer

        if self.uses_trio:
            import trio  # noqa: PLC0415 - optional

            return trio.run(wait)
        import asyncio  # noqa: PLC0415 - most producers need no event loop

        return asyncio.run(wait())


class Credentials(Struct, frozen=True):
    """User name and password. Without a user name, Redis uses its `default` user."""

    username: str | None = None
    password: str | None = None
    provider: Provider | None = None
    """Function to call for each new connection. Its result replaces the password."""

    def __repr__(self) -> str:
        """Return the user name without the password."""
        return f"Credentials({self.username!r}, ***)"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        """Return the fields that rich may show in tracebacks."""
        return [("username", self.username)]

    @property
    def words(self) -> tuple[str, ...]:
        """AUTH command for these credentials, or an empty tuple without a password."""
        if self.password is None:
            return ()
        return ("AUTH", self.username, self.password) if self.username else ("AUTH", self.password)

    def within(self, seconds: float) -> Credentials:
        """Return the credentials for a new connection, from the provider if there is one.

        Raises `ConnectionLost` if the provider fails or takes too long, and `ConfigurationError` if
        its answer is not valid.
        """
        if self.provider is None:
            return self
        try:
            answer = self.provider.ask_within(seconds)
        except Exception as error:
            raise self.failed(error) from error
        return self.with_answer(answer)

    def failed(self, error: Exception) -> ConnectionLost:
        """Return the error for a provider that raised an exception."""
        text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        return ConnectionLost(f"no credentials for Redis: {self.provider}() raised {text}")

    def with_answer(self, answer: Any) -> Credentials:
        """Return these credentials with the provider's answer."""
        is_tuple = isinstance(answer, tuple)
        words = cast("tuple[Any, ...]", answer) if is_tuple else (answer,)
        *names, password = words or (None,)
        if len(names) > 1 or not isinstance(password, str) or not _is_name(*names):
            kind = answer.__class__.__qualname__
            if is_tuple:
                kind += f" of {', '.join(type(word).__qualname__ for word in words) or 'nothing'}"
            raise ConfigurationError(
                f"{self.provider}() must return a password or (user, password), got {kind}"
            )
        username = (names[0] if names else None) or self.username
        return replace(self, username=username, password=password if password or username else None)


def _is_name(name: object = None) -> bool:
    return name is None or isinstance(name, str)
