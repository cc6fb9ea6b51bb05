from contextlib import nullcontext
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from uuid import UUID

paths = ["a.png", "b.png"]
tomorrow = datetime.now(UTC) + timedelta(days=1)
timer = nullcontext


if "Model" not in globals():

    class Model:
        def __init__(self, path: str) -> None: ...

        def encode(self, texts: list[str]) -> list[list[float]]:
            return [[1.0] for _ in texts]


def signup(email: str) -> None:
    send_email.delay(email, "Welcome")  # noqa: F821 - of the page
