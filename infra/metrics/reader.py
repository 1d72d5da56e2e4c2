"""Asks Prometheus, and never takes a failure for a number.

The library's own failures come in two families (its exception, and those of requests: a lasting 503, a login
page, a time-out); both become `MetricReadFailed` with the query in it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

import requests
from prometheus_api_client import PrometheusConnect
from prometheus_api_client.exceptions import PrometheusApiClientException
from pydantic import BaseModel, ConfigDict, Field
from urllib3.util.retry import Retry

from infra.errors import Unreachable

MAX_POINTS = 10_000
"""Prometheus refuses more than 11,000 points a series."""


class MetricReadFailed(Unreachable):
    """A query gave no answer; `query` is the one that failed."""

    def __init__(self, query: str, cause: str, url: str) -> None:
        super().__init__(
            f"Prometheus at {url} did not answer {query}: {cause}",
            remedy="Check that it runs and that RATCHET_PROMETHEUS_URL names it",
        )
        self.query = query
        self.cause = cause


class Series(BaseModel):
    """One series of an answer: its labels and its samples (epoch s, value); NaN and infinity are kept."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    labels: Mapping[str, str]
    samples: tuple[tuple[float, float], ...]

    @property
    def value(self) -> float:
        """The last sample's value."""
        return self.samples[-1][1]


class Selector(BaseModel):
    """Which series: `target` labels come from the scrape (role, job …) and hold for every metric of a target,
    `metric` labels belong to the metric itself (envoy_cluster_name …)."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    target: Mapping[str, str] = Field(default_factory=dict)
    metric: Mapping[str, str] = Field(default_factory=dict)

    @classmethod
    def role(cls, role: str, **more: str) -> Selector:
        """Targets of one role: stable, canary or sandbox."""
        return cls(target={"role": role, **more})

    def with_metric(self, **labels: str) -> Selector:
        """The same targets, narrowed by labels of the metric."""
        return Selector(target=self.target, metric={**self.metric, **labels})

    def on_target(self) -> Selector:
        """The same targets, any series."""
        return Selector(target=self.target)

    def braces(self, *extra: str) -> str:
        """The matchers as PromQL, in a fixed order. A value is quoted, so it cannot leave its quotes."""
        pairs = {**self.target, **self.metric}
        matchers = [*extra, *(f"{name}={quoted(value)}" for name, value in sorted(pairs.items()))]
        return "{" + ",".join(matchers) + "}"


def quoted(value: str) -> str:
    """A PromQL string literal."""
    escaped = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


def duration(seconds: float) -> str:
    """A PromQL duration of at least 1 ms."""
    return f"{max(1, math.ceil(seconds * 1000))}ms"


class MetricsReader:
    """Queries one Prometheus.

    Args:
        url: base address, e.g. http://127.0.0.1:9090.
        timeout_s: limit of each request; always set, since the library itself waits for ever.
        retries: further tries after a connection failure or a 5xx.
    """

    def __init__(self, url: str, timeout_s: float, *, retries: int = 1) -> None:
        self.url = url.rstrip("/")
        self.timeout_s = timeout_s
        # A lasting 503 must come back as an answer to be named, not as a RetryError six seconds later.
        retry = Retry(
            total=retries,
            backoff_factor=0.2,
            status_forcelist=(502, 503, 504),
            raise_on_status=False,
            allowed_methods=None,
        )
        self._client: Any = PrometheusConnect(url=self.url, retry=retry, timeout=timeout_s, method="POST")

    def instant(self, query: str, at_s: float) -> tuple[Series, ...]:
        """The answer at one moment (epoch seconds). A range selector gives all its raw samples.

        Raises:
            MetricReadFailed: unreachable, refused, or an answer that is no Prometheus answer.
        """
        raw = self._ask(query, lambda: self._client.custom_query(query, params={"time": f"{at_s:.3f}"}))
        return _parsed(raw, query, self.url)

    def series(self, query: str, start_s: float, end_s: float, step_s: float = 1.0) -> tuple[Series, ...]:
        """The answer over a range, for plots; the step grows where there would be too many points.

        Raises:
            MetricReadFailed: as `instant`.
        """
        step_s = max(step_s, math.ceil((end_s - start_s) / MAX_POINTS))
        raw = self._ask(
            query,
            lambda: self._client.custom_query_range(
                query, datetime.fromtimestamp(start_s, UTC), datetime.fromtimestamp(end_s, UTC), f"{step_s:g}"
            ),
        )
        return _parsed(raw, query, self.url)

    def _ask(self, query: str, call: Callable[[], object]) -> object:
        try:
            return call()
        except (PrometheusApiClientException, requests.exceptions.RequestException) as fault:
            raise MetricReadFailed(query, f"{type(fault).__name__}: {_short(fault)}", self.url) from fault
        except (KeyError, TypeError, ValueError) as fault:
            raise MetricReadFailed(query, f"not an answer of Prometheus ({fault!r})", self.url) from fault


def _short(fault: Exception) -> str:
    text = " ".join(str(fault).split())
    return text if len(text) <= 300 else text[:300] + " …"


def _parsed(raw: object, query: str, url: str) -> tuple[Series, ...]:
    # A scalar comes back as a bare [time, "value"].
    if isinstance(raw, list) and len(raw) == 2 and not isinstance(raw[0], dict):
        return (Series(labels={}, samples=((float(raw[0]), float(raw[1])),)),)
    found: list[Series] = []
    try:
        if not isinstance(raw, list):
            raise TypeError(f"a list was expected, not {type(raw).__name__}")
        for item in raw:
            points = item["values"] if "values" in item else [item["value"]]
            found.append(Series(labels=item["metric"], samples=tuple((float(t), float(v)) for t, v in points)))
    except (KeyError, TypeError, ValueError) as fault:
        raise MetricReadFailed(query, f"an answer that cannot be read ({fault!r})", url) from fault
    return tuple(found)
