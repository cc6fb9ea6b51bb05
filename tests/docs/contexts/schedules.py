from datetime import timedelta

from taskbull.testing import recorded
