"""Requests that failed (spec R6): what the proxy saw and what the engine says, over one window."""

from __future__ import annotations

from infra.metrics.envoy import EnvoyWindow
from infra.metrics.sums import error_total
from infra.metrics.window import MetricsWindow
from infra.readings import Reading


def failed_requests(engines: MetricsWindow) -> tuple[Reading, Reading]:
    """(failed, all) requests of one role: 5xx, streams that broke, and the finish reasons error and abort.

    Each is counted where it ended. A request that breaks before its first byte is a 503 and a broken one, so it is
    counted twice: the rate is never too low. Unknown as soon as one part is.
    """
    proxy = EnvoyWindow.beside(engines)
    unseen = [proxy.responses("5"), proxy.broken()]  # the engine counts no request that it did not end
    failed = error_total([*unseen, engines.finished("error", "abort")])
    return failed, error_total([*unseen, engines.increase("request_success")])
