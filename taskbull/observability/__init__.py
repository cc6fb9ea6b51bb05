"""What operators see: logs, metrics, traces."""

from taskbull.observability.logs import JobFilter, JsonFormatter, TextFormatter

__all__ = ["JobFilter", "JsonFormatter", "TextFormatter"]
