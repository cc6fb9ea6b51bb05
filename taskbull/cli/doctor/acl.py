"""`taskbull doctor --acl`: the rules for a user of Redis who may do what we need, and no more."""

from __future__ import annotations

from pathlib import Path

from taskbull.cli.doctor.rights import glob
from taskbull.cli.site import Site

_FILE = Path(__file__).parent / "least_rights.acl"


def rules() -> list[str]:
    """Give the commands that the user may run, as ACL rules."""
    lines = _FILE.read_text("utf-8").splitlines()
    return [rule for line in lines if not line.startswith("#") for rule in line.split()]


def acl_of(site: Site, user: str = "taskbull") -> str:
    """Give all rules of a user for the queues of an app, or for all under the prefix."""
    if site.app is not None and site.app.known_queues:
        keys = [f"~{glob(site.keys(queue).base)}*" for queue in site.app.known_queues]
    else:
        keys = [f"~{glob(site.prefix)}:*"]
    words = ["on", ">PASSWORD", "resetkeys", *keys, "resetchannels", "-@all", *rules()]
    return f"{user} {' '.join(words)}"
