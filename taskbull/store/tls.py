"""TLS: how the server proves itself to us, and we to it, by redis-py's `ssl_…` settings."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import IntEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from msgspec import Struct

if TYPE_CHECKING:
    import ssl

_REQUIREMENTS = ("none", "optional", "required")  # as `ssl.CERT_…` numbers them
_OCSP = (
    "ssl_validate_ocsp",
    "ssl_validate_ocsp_stapled",
    "ssl_ocsp_context",
    "ssl_ocsp_expected_cert",
)
_WORDS = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}


class Tls(Struct, frozen=True):
    """How the server proves itself to us, and we to it."""

    ca_certs: str | None = None
    certfile: str | None = None
    keyfile: str | None = None
    password: str | None = None
    cert_reqs: str = "required"
    check_hostname: bool = True
    ca_path: str | None = None
    ca_data: str | None = None
    ciphers: str | None = None
    min_version: int | None = None
    include_flags: int = 0
    """Of `ssl.VerifyFlags`: those that are set besides Python's defaults."""
    exclude_flags: int = 0
    """Those of Python's defaults that are not."""

    def __repr__(self) -> str:
        """Show the files, never the password."""
        return f"Tls({self.ca_certs!r}, {self.certfile!r}, {self.cert_reqs!r})"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        """Show the same in tracebacks of rich."""
        return [("ca_certs", self.ca_certs), ("certfile", self.certfile)]

    def context(self) -> ssl.SSLContext:
        """Return the context for sockets; raise `OSError` or `ValueError` if it cannot be made."""
        import ssl  # noqa: PLC0415 - only who wants TLS pays for it: as much as `python -c pass`

        context = ssl.create_default_context(
            cafile=self.ca_certs, capath=self.ca_path, cadata=self.ca_data
        )
        requirement = ssl.VerifyMode(_REQUIREMENTS.index(self.cert_reqs))
        context.check_hostname = self.check_hostname and requirement is not ssl.CERT_NONE
        context.verify_mode = requirement
        if self.certfile:
            context.load_cert_chain(self.certfile, self.keyfile, self.password)
        if self.ciphers:
            context.set_ciphers(self.ciphers)
        if self.min_version is not None:
            context.minimum_version = ssl.TLSVersion(self.min_version)
        flags = (context.verify_flags | self.include_flags) & ~self.exclude_flags
        context.verify_flags = ssl.VerifyFlags(flags)
        return context


def read_tls(settings: Mapping[str, Any]) -> Tls:
    """Read redis-py's `ssl_…` settings, words or values; `ValueError` says what is wrong."""
    for name in _OCSP:
        if settings.get(name) and str(settings[name]).lower() not in {"false", "0", "no"}:
            raise ValueError(
                f"{name} is not supported: taskbull does not check certificates by OCSP. Remove "
                "the setting, or check revocation lists with "
                "ssl_include_verify_flags=VERIFY_CRL_CHECK_LEAF"
            )
    minimum = settings.get("ssl_min_version")
    tls = Tls(
        ca_certs=_text(settings.get("ssl_ca_certs")),
        certfile=_text(settings.get("ssl_certfile")),
        keyfile=_text(settings.get("ssl_keyfile")),
        password=_text(settings.get("ssl_password")),
        cert_reqs=_requirement(settings.get("ssl_cert_reqs")),
        check_hostname=_switch("ssl_check_hostname", settings.get("ssl_check_hostname")),
        ca_path=_text(settings.get("ssl_ca_path")),
        ca_data=_text(settings.get("ssl_ca_data")),
        ciphers=_text(settings.get("ssl_ciphers")),
        min_version=None if minimum is None else int(minimum),
        include_flags=_verify_flags(settings, "ssl_include_verify_flags"),
        exclude_flags=_verify_flags(settings, "ssl_exclude_verify_flags"),
    )
    for file in (tls.ca_certs, tls.certfile, tls.keyfile):
        if file is not None and not Path(file).is_file():
            raise ValueError(f"the TLS files cannot be used: there is no file {file!r}")
    try:
        tls.context()
    except (OSError, ValueError) as error:  # a missing file, or one that is not a certificate
        raise ValueError(f"the TLS files cannot be used: {error}") from error
    return tls


def _text(value: object) -> str | None:
    return str(value) if value else None


def _requirement(value: object) -> str:
    """Return the requirement, named as in Python (`CERT_NONE`), redis-py (`none`) or Celery."""
    if value is None:
        return "required"
    if isinstance(value, IntEnum):  # of `ssl`
        value = value.name
    name = str(value).lower().removeprefix("ssl.").removeprefix("cert_")
    if name not in _REQUIREMENTS:
        raise ValueError(f"ssl_cert_reqs is 'required', 'optional' or 'none', not {value!r}")
    return name


def _verify_flags(settings: Mapping[str, Any], name: str) -> int:
    """Return flags that are given as a list of `ssl.VerifyFlags`, or as names with commas."""
    from ssl import VerifyFlags  # noqa: PLC0415 - see `Tls.context`

    given = settings.get(name) or ()
    if isinstance(given, str):
        given = [word for word in given.strip("[] ").replace(",", " ").split() if word]
    elif not isinstance(given, Iterable):
        given = [given]
    flags = 0
    for flag in cast("Iterable[object]", given):
        word = str(flag).removeprefix("VerifyFlags.")
        if isinstance(flag, int):
            flags |= flag
        elif word in VerifyFlags.__members__:
            flags |= VerifyFlags[word]
        else:
            known = ", ".join(VerifyFlags.__members__)
            raise ValueError(f"{name} is a list of {known}, not {flag!r}")
    return flags


def _switch(name: str, value: object) -> bool:
    if value is None or isinstance(value, bool):
        return value is not False
    if str(value).lower() not in _WORDS:
        raise ValueError(f"{name} is true or false, not {value!r}")
    return _WORDS[str(value).lower()]
