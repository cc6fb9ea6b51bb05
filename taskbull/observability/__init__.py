"""What operators see: logs, metrics, traces."""

from taskbull.observability.formats import JsonFormatter, TextFormatter
from taskbull.observability.job_filter import JobFilter

__all__ = ["JobFilter", "JsonFormatter", "TextFormatter"]
