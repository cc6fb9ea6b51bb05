"""What a Django project needs: connections to its database, as jobs use them."""

from taskbull.django.connections import database_connections

__all__ = ["database_connections"]
