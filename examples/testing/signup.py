"""The code under test: a sign-up sends two emails. The tests are in test_signup.py."""

from __future__ import annotations

from datetime import timedelta

from taskbull import App, Backoff, current_job

app = App("signup")  # The address of Redis comes from the environment. The tests need no Redis.


class Outbox:
    """A fake mail server."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, str]] = []
        self.refusals = 0

    def send(self, to: str, subject: str) -> None:
        """Send a mail, or refuse it."""
        if self.refusals:
            self.refusals -= 1
            raise ConnectionError("the mail server is away")
        self.sent.append((to, subject))


outbox = Outbox()


@app.task(queue="emails", attempts=3, backoff=Backoff.fixed(60))
def send_email(to: str, subject: str) -> str:
    """Send one email."""
    outbox.send(to, subject)
    current_job().log(f"sent to {to}")
    return f"{subject} to {to}"


def sign_up(address: str) -> None:
    """Sign a user up, as a web request would."""
    send_email.delay(address, "Welcome")
    send_email.options(delay=timedelta(days=1)).delay(address, subject="How is it going?")
