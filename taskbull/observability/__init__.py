"""Logs, metrics and traces for operators."""

from taskbull.observability.logs import JobFilter, JsonFormatter, TextFormatter

__all__ = ["JobFilter", "JsonFormatter", "TextFormatter"]
