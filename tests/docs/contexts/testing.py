import os
import subprocess
import sys
from pathlib import Path

import pytest

from taskbull import App
from taskbull.testing import private_server, recorded

TASKS = """
from taskbull import App

app = App("shop")


@app.task
def send_email(to: str, subject: str) -> str:
    return "sent"


def sign_up(email: str) -> None:
    send_email.delay(email, "Welcome")
    send_email.options(delay=86_400).delay(email, "How is it going?")
"""
Path("shop").mkdir(exist_ok=True)
Path("shop/tasks.py").write_text(TASKS)
Path("signup.py").write_text(TASKS)
Path("pyproject.toml").write_text('[tool.taskbull]\napp = "shop.tasks:app"\n')

from shop.tasks import app, send_email, sign_up  # noqa: E402

if "server" not in globals():
    _opened = private_server()
    server = _opened.__enter__()
