"""A Django site whose view adds jobs. You do not need to install a server:

    pip install 'taskbull[django,embedded]'
    python manage.py migrate --run-syncdb
    python manage.py runserver         # in one terminal, in this folder
    python manage.py taskbull worker   # in another

    curl -d book='War and Peace' 127.0.0.1:8000/orders
    curl 127.0.0.1:8000/orders/1

See bookshop/jobs.py, the end of bookshop/settings.py, orders/tasks.py and orders/views.py.
"""

from __future__ import annotations

import os
import sys

from django.core.management import execute_from_command_line

if __name__ == "__main__":
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "bookshop.settings")
    execute_from_command_line(sys.argv)
