"""Where a worker begins: `taskbull worker bookshop.worker:app`. Views need only their tasks."""

from __future__ import annotations

import django

from bookshop.jobs import app
from taskbull.django import database_connections

django.setup()  # before a module with models is imported
app.autodiscover("orders")  # finds orders/tasks.py
app.middleware(database_connections)  # as Django does around a request
