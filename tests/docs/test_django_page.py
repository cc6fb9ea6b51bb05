"""The project of the Django page: its files, its tests, and its tasks in a real worker."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import django
import pytest

from tests.docs.samples import ROOT, samples_of
from tests.servers.kinds import PrivateServers

PAGE = ROOT / "docs" / "django.md"
LIMIT = 120.0
SETTINGS = """
SECRET_KEY = "for tests only"
INSTALLED_APPS = [f"django.contrib.{name}" for name in ("auth", "contenttypes", "sessions")]
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": "db.sqlite3"}}
ROOT_URLCONF = "bookshop.urls"
"""
URLS = """
from django.urls import path

from orders import views

urlpatterns = [
    path("orders/<int:order_id>", views.order),
    path("orders/<int:order_id>/ship", views.ship_order),
    path("results/<str:result_id>", views.result),
]
"""
MANAGE = """
import os
import sys

from django.core.management import execute_from_command_line

os.environ["DJANGO_SETTINGS_MODULE"] = "bookshop.settings"
execute_from_command_line(sys.argv)
"""
VISIT = """
import asyncio
import json
import sys

import django

django.setup()
from django.test import AsyncClient, Client
from orders.tasks import charge

if sys.argv[1] == "enqueue":
    made = Client().post("/orders/7").json()["result"]
    shipped = asyncio.run(AsyncClient().post("/orders/7/ship")).json()["job"]
    print(json.dumps([made, charge.enqueue(7).id, shipped]))
else:
    made, charged, shipped = json.loads(sys.argv[2])
    from bookshop.jobs import app

    assert Client().get(f"/results/{made}").json() == {
        "status": "SUCCESSFUL", "value": "order 7 is confirmed"
    }
    result = charge.get_result(charged)
    assert (result.attempts, result.return_value) == (2, 2)
    assert result.errors[0].exception_class_path == "builtins.ConnectionError"
    assert app.job(shipped).result(timeout=5) == "order 7 is on its way"
"""

DASHBOARD = """
import asyncio

import httpx
from bookshop.asgi import application
from django.contrib.auth.models import User
from django.test import Client

def cookie(**fields):
    client = Client()
    client.force_login(User.objects.create_user(**fields))
    return f"sessionid={client.cookies['sessionid'].value}"

async def statuses(path, cookies):
    found = []
    transport = httpx.ASGITransport(application)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        for cookie in cookies:
            found.append((await client.get(path, headers={"cookie": cookie})).status_code)
    return found

cookies = [cookie(username="ann", is_staff=True), cookie(username="bob"), "sessionid=x", ""]
assert asyncio.run(statuses("/jobs/", cookies)) == [200, 403, 403, 403]
assert asyncio.run(statuses("/jobs", cookies)) == [303, 403, 403, 403]
assert asyncio.run(statuses("/orders/7", cookies[3:])) == [202]
"""


@pytest.fixture
def project(tmp_path: Path, private_server: PrivateServers) -> Path:
    """Write the files of the page. A file that the page shows in parts is the sum of them."""
    started = {"bookshop/settings.py": SETTINGS, "bookshop/urls.py": URLS, "manage.py": MANAGE}
    files = {
        **started,
        "visit.py": VISIT,
        "visit_dashboard.py": DASHBOARD,
        "orders/__init__.py": "",
        "bookshop/__init__.py": "",
    }
    for sample in samples_of(PAGE, private_server().url):
        assert sample.files(), f"{sample.where} does not name its file"
        for name, source in sample.files().items():
            files[name] = f"{files.get(name, '')}\n{source}"
    for name, source in files.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        old = django.VERSION < (6,)
        path.write_text(source.replace("django.tasks", "django_tasks") if old else source)
    return tmp_path


def _run(project: Path, *words: str) -> str:
    settings = {"DJANGO_SETTINGS_MODULE": "bookshop.settings", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, *words],
        cwd=project,
        env={**os.environ, **settings},
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_project_of_the_page(project: Path) -> None:
    _run(project, "manage.py", "check")
    _run(project, "manage.py", "test")
    ids = _run(project, "visit.py", "enqueue").strip()
    _run(project, "manage.py", "taskbull", "worker", "--burst")
    _run(project, "visit.py", "read", ids)
    _run(project, "manage.py", "migrate", "-v0")
    _run(project, "visit_dashboard.py")
