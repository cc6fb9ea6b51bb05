from typing import Any

import django
from django.conf import settings

from taskbull import App

app = App("page")
if not settings.configured:
    settings.configure()
    django.setup()


def access(scope: Any) -> None: ...
