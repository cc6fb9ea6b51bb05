"""A strict parser of the metrics text that a scraper gets."""

from __future__ import annotations

import re
import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from taskbull.observability.metrics import BY_NAME

_NAME = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*")


class Scrape:
    """The samples of one scrape, by name and labels."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.samples: dict[tuple[str, frozenset[tuple[str, str]]], float] = {}
        self.families: dict[str, str] = {}
        for family in text_string_to_metric_families(text):
            name = f"{family.name}_total" if family.type == "counter" else family.name
            assert name not in self.families, f"{name} comes twice"
            assert _NAME.fullmatch(name)
            assert family.documentation
            self.families[name] = family.type
            for sample in family.samples:
                key = sample.name, frozenset(sample.labels.items())
                assert key not in self.samples, f"{key} comes twice"
                self.samples[key] = sample.value

    def value(self, name: str, **labels: str) -> float | None:
        return self.samples.get((name, frozenset(labels.items())))

    def total(self, name: str, **labels: str) -> float:
        """Add up all samples that have these labels among theirs."""
        wanted = frozenset(labels.items())
        return sum(
            value
            for (known, given), value in self.samples.items()
            if known == name and wanted <= given
        )

    def label(self, name: str, label: str) -> set[str]:
        """Give the values that a label has."""
        return {dict(given)[label] for known, given in self.samples if known == name}

    def check_buckets(self) -> None:
        """Fail unless every histogram grows from bucket to bucket, up to its count."""
        for name in (name for name, kind in self.families.items() if kind == "histogram"):
            series: dict[frozenset[tuple[str, str]], list[tuple[float, float]]] = {}
            for (known, given), value in self.samples.items():
                if known == f"{name}_bucket":
                    bound = float(dict(given)["le"])
                    rest = frozenset(pair for pair in given if pair[0] != "le")
                    series.setdefault(rest, []).append((bound, value))
            for labels, buckets in series.items():
                counts = [count for _, count in sorted(buckets)]
                assert counts == sorted(counts)
                assert counts[-1] == self.samples[f"{name}_count", labels]


def scrape(url: str) -> Scrape:
    """Ask an endpoint; check what holds for any answer."""
    status, text, headers = get(f"{url}/metrics")
    assert status == 200
    assert headers["Content-Type"].startswith("text/plain; version=")
    found = Scrape(text)
    assert found.families == {name: metric.kind for name, metric in BY_NAME.items()}
    for name, given in found.samples:
        base = re.sub(r"_(bucket|sum|count)$", "", name)
        metric = BY_NAME.get(base) or BY_NAME[name]
        assert {label for label, _ in given} - {"le"} == set(metric.labels), name
    found.check_buckets()
    return found


def get(url: str, **headers: str) -> tuple[int, str, Mapping[str, Any]]:
    """Give the status, the text and the headers of an answer."""
    request = urllib.request.Request(url, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, answer.read().decode(), dict(answer.headers)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode(), dict(error.headers)
