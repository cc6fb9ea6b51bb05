"""Connections to Redis, and the stores that run calls over them."""
