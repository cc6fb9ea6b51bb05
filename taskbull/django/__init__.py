"""Django support: middleware that manages database connections around jobs."""

from taskbull.django.connections import database_connections

__all__ = ["database_connections"]
