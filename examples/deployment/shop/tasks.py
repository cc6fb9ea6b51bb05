"""Tasks of the shop."""

from taskbull import App

app = App("shop")


@app.task(queue="emails", timeout=30)
async def send_email(to: str) -> str:
    """Pretend to send an email."""
    return f"sent to {to}"
