"""What the proxy in front of the fleet counted, per arm.

A stream that breaks after its first byte is a 200 here, so these counts are one part of the error rate; the
engine's own finish reasons are the other. What Envoy counts of streams that break was measured on Envoy 1.40: towards
HTTP/1.1 (vLLM) a stream that the engine's side cuts is a connection destroyed by the remote with an active request and
no `rq_rx_reset`, which counts HTTP/2 streams alone; a client that goes away destroys it locally, and the engine calls
that an abort. A cut before any answer is a 503 too.
"""

from __future__ import annotations

from infra.metrics.histograms import quantile
from infra.metrics.increases import MIN_SCRAPES, counter_increases
from infra.metrics.reader import MetricsReader, Selector
from infra.metrics.sums import error_total, guarded, summed_buckets
from infra.metrics.window import MetricsWindow
from infra.readings import Reading

TOTAL = "envoy_cluster_upstream_rq_total"
BY_CLASS = "envoy_cluster_upstream_rq_xx"
BROKEN = ("envoy_cluster_upstream_cx_destroy_remote_with_active_rq", "envoy_cluster_upstream_rq_rx_reset")
TIME = "envoy_cluster_upstream_rq_time"


class EnvoyWindow:
    """Readings of one Envoy cluster (an arm) over [start_s, end_s] in epoch seconds; never raises for data.

    Args:
        selector: matchers of the Envoy target, e.g. its job.
        cluster: value of `envoy_cluster_name`.
    """

    def __init__(
        self,
        reader: MetricsReader,
        selector: Selector,
        cluster: str,
        start_s: float,
        end_s: float,
        *,
        min_scrapes: int = MIN_SCRAPES,
    ) -> None:
        self.reader = reader
        self.cluster = selector.with_metric(envoy_cluster_name=cluster)
        self.start_s = start_s
        self.end_s = end_s
        self.min_scrapes = min_scrapes

    @classmethod
    def beside(cls, engines: MetricsWindow) -> EnvoyWindow:
        """The arm named like the engines' role, over their window."""
        return cls(
            engines.reader,
            Selector(target={"job": "envoy"}),
            engines.selector.target.get("role", ""),
            engines.start_s,
            engines.end_s,
            min_scrapes=engines.min_scrapes,
        )

    def _increase(self, name: str, **labels: str) -> Reading:
        def take() -> Reading:
            # Envoy makes a response-class counter with its first response: its total tells that it was there.
            found = counter_increases(
                self.reader,
                [name],
                self.cluster.with_metric(**labels),
                self.start_s,
                self.end_s,
                probe=lambda _: TOTAL,
                probe_selector=self.cluster,
                min_scrapes=self.min_scrapes,
            )
            return Reading.of(found.total, "requests", source=found.source, samples=found.scrapes)

        return guarded("requests", take)

    def requests(self) -> Reading:
        """Requests sent to the arm."""
        return self._increase(TOTAL)

    def responses(self, code_class: str) -> Reading:
        """Responses of a class: "2", "4" or "5"."""
        return self._increase(BY_CLASS, envoy_response_code_class=code_class)

    def broken(self) -> Reading:
        """Requests whose connection the engine's side closed before the end of the answer."""
        return error_total([self._increase(name) for name in BROKEN])

    def time_quantile(self, q: float) -> Reading:
        """Quantile of the time to the end of the response, ms. Moves only with Envoy's stats flush."""

        def take() -> Reading:
            found = counter_increases(
                self.reader,
                [f"{TIME}_bucket"],
                self.cluster,
                self.start_s,
                self.end_s,
                probe=lambda _: TOTAL,
                min_scrapes=self.min_scrapes,
            )
            return quantile(summed_buckets(found), q, unit="ms", source=f"p{q * 100:g} of {found.source}")

        return guarded("ms", take)
