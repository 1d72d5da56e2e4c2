"""The metrics reader against a real Prometheus with a backfilled past."""

from __future__ import annotations

import http.server
import shutil
import socket
import subprocess
import threading
import time
import urllib.request
from pathlib import Path

import pytest

from infra.metrics.aliases import FAMILIES, MetricUnavailable, resolve, series_names
from infra.metrics.envoy import EnvoyWindow
from infra.metrics.failures import failed_requests
from infra.metrics.reader import MetricReadFailed, MetricsReader, Selector
from infra.metrics.saturation import saturated_throughput
from infra.metrics.window import MetricsWindow

pytestmark = [
    pytest.mark.stack,
    pytest.mark.skipif(not shutil.which("prometheus"), reason="Debian's prometheus is not installed"),
]

T0 = 1_760_000_400
WEEK_S = 604_800


class Past:
    """An OpenMetrics text of a made-up past; times are seconds after T0."""

    def __init__(self):
        self.families: dict[tuple[str, str], list[str]] = {}

    def add(self, name, labels, points, kind="gauge"):
        family = name
        for tail in ("_total", "_bucket", "_count", "_sum"):
            if kind != "gauge":
                family = family.removesuffix(tail)
        labels = {"job": "vllm", "instance": "a:1", **labels}
        braces = ",".join(f'{k}="{v}"' for k, v in labels.items())
        lines = self.families.setdefault((family, kind), [])
        lines.extend(f"{name}{{{braces}}} {value} {T0 + t}" for t, value in points)

    def text(self):
        out = []
        for (family, kind), lines in self.families.items():
            out += [f"# TYPE {family} {kind}", *lines]
        return "\n".join([*out, "# EOF", ""])


def every(step, values, start=0):
    return [(start + i * step, v) for i, v in enumerate(values)]


def flat(value, seconds=60, step=5):
    return [(t, value) for t in range(0, seconds + 1, step)]


def made_up_past():
    past = Past()
    tokens = "vllm:generation_tokens_total"
    # steady: 10 tok/s over 60 s, and half of that a week before
    past.add(tokens, {"role": "steady"}, [(t, 1000 + 10 * t) for t in range(0, 61, 5)], "counter")
    past.add(tokens, {"role": "steady"}, [(t - WEEK_S, 5 * t) for t in range(0, 61, 5)], "counter")
    past.add("up", {"role": "steady"}, flat(1))
    # idle: counters stand still
    past.add(tokens, {"role": "idle"}, flat(7), "counter")
    for name in ("vllm:prefix_cache_queries_total", "vllm:prefix_cache_hits_total"):
        past.add(name, {"role": "idle"}, flat(0), "counter")
    past.add("vllm:e2e_request_latency_seconds_count", {"role": "idle"}, flat(0), "histogram")
    for le in ("0.3", "+Inf"):
        past.add("vllm:e2e_request_latency_seconds_bucket", {"role": "idle", "le": le}, flat(0), "histogram")
    # restarts and gaps: case MS6
    past.add(tokens, {"role": "restarted"}, every(15, [1000, 1200, 40, 90]), "counter")
    past.add(tokens, {"role": "gap"}, every(15, [1000, 1200]), "counter")
    past.add(tokens, {"role": "passed"}, flat(5)[:6] + [(t, 500 + t) for t in range(30, 61, 5)], "counter")
    past.add(
        "process_start_time_seconds",
        {"role": "passed"},
        [(t, 100 if t < 30 else 200) for t in range(0, 61, 5)],
    )
    past.add(tokens, {"role": "new"}, [(t, t) for t in range(30, 61, 5)], "counter")
    past.add(tokens, {"role": "born"}, [(t, t - 20) for t in range(20, 61, 5)], "counter")
    past.add("up", {"role": "born"}, flat(1))
    # a fleet of two versions, one of which exports both names: case MS2
    past.add("vllm:gpu_cache_usage_perc", {"role": "mixed", "instance": "old:1"}, flat(0.9))
    past.add("vllm:kv_cache_usage_perc", {"role": "mixed", "instance": "new:1"}, flat(0.1))
    past.add("vllm:kv_cache_usage_perc", {"role": "mixed", "instance": "both:1"}, flat(0.2))
    past.add("vllm:gpu_cache_usage_perc", {"role": "mixed", "instance": "both:1"}, flat(0.7))
    for instance, names in (
        ("old:1", ["gpu_prefix_cache"]),
        ("both:1", ["gpu_prefix_cache", "prefix_cache"]),
    ):
        for name in names:
            past.add(
                f"vllm:{name}_hits_total",
                {"role": "mixed", "instance": instance},
                [(t, t) for t in range(0, 61, 5)],
                "counter",
            )
            past.add(
                f"vllm:{name}_queries_total",
                {"role": "mixed", "instance": instance},
                [(t, 4 * t) for t in range(0, 61, 5)],
                "counter",
            )
    # latencies: 1000 requests, 980 under 1 s, 15 in 1 to 2.5 s, 5 slower; rates are even
    shares = {"0.3": 0.5, "1.0": 0.98, "2.5": 0.995, "+Inf": 1.0}
    for le, share in shares.items():
        past.add(
            "vllm:e2e_request_latency_seconds_bucket",
            {"role": "latency", "le": le},
            [(t, round(1000 * share * t / 60)) for t in (0, 15, 30, 45, 60)],
            "histogram",
        )
    past.add(
        "vllm:e2e_request_latency_seconds_count",
        {"role": "latency"},
        [(t, round(1000 * t / 60)) for t in (0, 15, 30, 45, 60)],
        "histogram",
    )
    for name, total in (("prefill", 30), ("decode", 90)):
        for tail, value in (("count", 1000), ("sum", total)):
            past.add(
                f"vllm:request_{name}_time_seconds_{tail}",
                {"role": "latency"},
                [(t, value * t / 60) for t in (0, 15, 30, 45, 60)],
                "histogram",
            )
    for reason, count in (("stop", 900), ("length", 90), ("abort", 7), ("error", 3)):
        past.add(
            "vllm:request_success_total",
            {"role": "latency", "finished_reason": reason},
            [(t, count * t // 60) for t in (0, 15, 30, 45, 60)],
            "counter",
        )
    # saturation: the queue is filled between 20 and 40 s, then 30 tok/s instead of 10
    rate, made = {}, 0
    for t in range(0, 61):
        rate[t] = made
        made += 30 if 20 <= t < 40 else 10
    past.add(tokens, {"role": "peaky"}, list(rate.items()), "counter")
    past.add("vllm:num_requests_waiting", {"role": "peaky"}, [(t, 4 if 20 <= t <= 40 else 0) for t in range(61)])
    past.add("vllm:num_requests_running", {"role": "peaky"}, [(t, 8 if 20 <= t <= 40 else 2) for t in range(61)])
    # a queue at both ends of gaps in which nobody looked: case MS6
    seen = [*range(11), *range(50, 61)]
    past.add(tokens, {"role": "unseen"}, [(t, 30 * t if t <= 10 else 300 + 30 * (t - 50)) for t in seen], "counter")
    past.add("vllm:num_requests_waiting", {"role": "unseen"}, [(t, 4) for t in seen])
    past.add(tokens, {"role": "seldom"}, [(0, 0), (400, 4000)], "counter")
    past.add("vllm:num_requests_waiting", {"role": "seldom"}, [(0, 4), (400, 4)])
    past.add("vllm:num_requests_waiting", {"role": "nan"}, flat("NaN"))
    # the proxy: no 5xx was ever answered by the canary
    for cluster, total in (("stable", 1000), ("canary", 50)):
        at = {"job": "envoy", "instance": "e:1", "envoy_cluster_name": cluster}
        past.add("envoy_cluster_upstream_rq_total", at, [(t, total * t // 60) for t in range(0, 61, 5)], "counter")
        past.add("envoy_cluster_upstream_rq_xx_total", at, flat(0), "counter")
        for name in ("rx", "tx"):
            past.add(f"envoy_cluster_upstream_rq_{name}_reset", at, flat(0))
    past.add(
        "envoy_cluster_upstream_rq_xx",
        {"job": "envoy", "instance": "e:1", "envoy_cluster_name": "stable", "envoy_response_code_class": "5"},
        [(t, t - 30) for t in range(35, 61, 5)],
    )
    at = {"job": "envoy", "instance": "e:1", "envoy_cluster_name": "fleet"}
    past.add("envoy_cluster_upstream_rq_total", at, [(t, 130 * t // 60) for t in range(0, 61, 5)], "counter")
    past.add("envoy_cluster_upstream_cx_destroy_remote_with_active_rq", at, [(t, t // 12) for t in range(0, 61, 5)])
    past.add("envoy_cluster_upstream_cx_destroy_local_with_active_rq", at, [(t, t // 5) for t in range(0, 61, 5)])
    past.add(
        "envoy_cluster_upstream_rq_xx", {**at, "envoy_response_code_class": "5"}, [(t, t // 2) for t in range(0, 61, 5)]
    )
    for reason, count in (("stop", 90), ("abort", 4), ("error", 2)):
        labels = {"role": "fleet", "finished_reason": reason}
        past.add("vllm:request_success_total", labels, [(t, count * t // 60) for t in (0, 15, 30, 45, 60)], "counter")
    return past.text()


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory):
    folder: Path = tmp_path_factory.mktemp("prometheus")
    (folder / "past.om").write_text(made_up_past())
    (folder / "prometheus.yml").write_text("scrape_configs: []\n")
    made = subprocess.run(
        ["promtool", "tsdb", "create-blocks-from", "openmetrics", folder / "past.om", folder / "data"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert made.returncode == 0, made.stderr
    url = f"http://127.0.0.1:{(port := free_port())}"
    with (folder / "log").open("w") as log:
        server = subprocess.Popen(
            [
                "prometheus",
                f"--config.file={folder}/prometheus.yml",
                f"--storage.tsdb.path={folder}/data",
                "--storage.tsdb.retention.time=10y",
                f"--web.listen-address=127.0.0.1:{port}",
            ],
            stdout=log,
            stderr=log,
            cwd=folder,
        )
    try:
        for _ in range(100):
            try:
                urllib.request.urlopen(f"{url}/-/ready", timeout=1)
                break
            except OSError:
                assert server.poll() is None, (folder / "log").read_text()
                time.sleep(0.1)
        yield url
    finally:
        server.terminate()
        server.wait(10)


@pytest.fixture(scope="module")
def reader(prometheus):
    return MetricsReader(prometheus, 5)


@pytest.fixture
def window(reader):
    return lambda role, start=0, end=60, **kw: MetricsWindow(reader, Selector.role(role), T0 + start, T0 + end, **kw)


class Answering(http.server.BaseHTTPRequestHandler):
    status = 503
    body = b"no"

    def do_POST(self):
        self.send_response(self.status)
        self.end_headers()
        self.wfile.write(self.body)

    do_GET = do_POST

    def log_message(self, *_):
        pass


@pytest.fixture
def answering():
    servers = []

    def serve(status, body):
        handler = type("Handler", (Answering,), {"status": status, "body": body})
        servers.append(http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler))
        threading.Thread(target=servers[-1].serve_forever, daemon=True).start()
        return f"http://127.0.0.1:{servers[-1].server_port}"

    yield serve
    for server in servers:
        server.shutdown()
        server.server_close()


def test_throughput_is_tokens_over_seconds(window):
    assert window("steady").throughput().value == pytest.approx(10)
    assert window("steady").throughput(accelerators_per_target=2).value == pytest.approx(5)


def test_the_week_before_is_the_same_window_shifted(window):
    assert window("steady").earlier(WEEK_S).throughput().value == pytest.approx(5)


def test_slices_cover_the_window(window):
    slices = window("steady").slices(2)
    assert [s.throughput().value for s in slices] == pytest.approx([10, 10])


def test_MS1_a_counter_that_stands_still_is_a_confirmed_zero(window):
    reading = window("idle").increase("generation_tokens")
    assert (reading.status, reading.value) == ("zero", 0)


def test_MS1_idle_is_unknown_latency_and_unknown_hit_rate_not_fast(window):
    assert window("idle").quantile("e2e_latency", 0.99).cause == "no observation in the window"
    assert window("idle").prefix_hit_rate().cause.startswith("idle")


def test_MS1_no_series_is_unknown_and_names_the_metric(window):
    reading = window("nobody").throughput()
    assert reading.status == "unknown"
    assert "vllm:generation_tokens_total" in reading.cause


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (503, b"busy"),
        (400, b'{"status":"error"}'),
        (200, b"<html>log in</html>"),
        (200, b'{"data":{}}'),
        (200, b'{"data":{"result":[{"metric":{}}]}}'),
    ],
)
def test_MS1_a_failing_prometheus_is_unknown_with_the_query_named(answering, status, body):
    reader = MetricsReader(answering(status, body), 2)
    window = MetricsWindow(reader, Selector.role("stable"), T0, T0 + 60)
    for reading in (
        window.throughput(),
        window.gauge_avg("waiting"),
        window.quantile("ttft", 0.99),
        window.up(),
        window.restarts(),
        window.finished("error"),
        window.share_of_time("waiting", 1),
        saturated_throughput(window, waiting=1, min_saturated_s=1),
    ):
        assert reading.status == "unknown"
        assert 'role="stable"' in reading.cause
    assert window.slower_than_ms("e2e_latency", 1000).slow.status == "unknown"
    assert window.series("running") == ()
    with pytest.raises(MetricReadFailed, match="vector"):
        reader.instant("vector(1)", T0)


def test_MS1_an_unreachable_prometheus_is_unknown():
    window = MetricsWindow(MetricsReader(f"http://127.0.0.1:{free_port()}", 1), Selector.role("stable"), T0, T0 + 60)
    assert window.throughput().status == "unknown"


def test_a_scalar_answer_is_read(reader):
    assert reader.instant("scalar(vector(3))", T0)[0].value == 3


def test_MS1_NaN_is_unknown(window):
    assert "nan" in window("nan").gauge_avg("waiting").cause


def test_MS6_restart_in_window_is_unknown_never_negative(window):
    reading = window("restarted", 0, 45).increase("generation_tokens")
    assert reading.cause.startswith("restart in window")
    assert window("restarted", 0, 45).restarts().value == 1


def test_MS6_restart_is_seen_by_the_process_start_even_when_the_counter_grew(window):
    assert window("passed").throughput().cause.startswith("restart in window")


def test_MS6_a_gap_at_the_end_is_insufficient_data(window):
    assert window("gap", 0, 45, min_scrapes=2).throughput().cause.startswith("insufficient data")


def test_MS6_a_window_of_one_scrape_interval_is_insufficient_data(window):
    assert window("restarted", 0, 15).throughput().cause.startswith("insufficient data: 2 scrapes")


def test_a_target_that_started_inside_the_window_gives_no_number(window):
    assert "started inside the window" in window("new").throughput().cause


def test_a_counter_born_on_a_target_that_was_up_counts_from_zero(window):
    assert window("born").increase("generation_tokens").value == 40


def test_MS2_mixed_fleet_is_read_per_replica_and_counted_once(window):
    assert window("mixed").gauge_max("kv_cache_usage").value == 0.9
    assert window("mixed").gauge_avg("kv_cache_usage").value == pytest.approx((0.9 + 0.1 + 0.2) / 3)
    hits = window("mixed").increase("prefix_cache_hits")
    assert hits.value == 120
    assert "gpu_prefix_cache_hits" in hits.source
    assert window("mixed").prefix_hit_rate().value == 0.25


def test_MS2_names_resolve_against_what_is_exported():
    old = series_names(
        [
            "# HELP x",
            'vllm:gpu_cache_usage_perc{engine="0"} 0.1',
            'vllm:time_per_output_token_seconds_count{engine="0"} 1',
        ]
    )
    new = series_names(
        [
            'vllm:kv_cache_usage_perc{engine="0"} 0.1',
            "vllm:inter_token_latency_seconds_count 1",
            "vllm:request_time_per_output_token_seconds_count 1",
        ]
    )
    assert resolve("kv_cache_usage", old) == "vllm:gpu_cache_usage_perc"
    assert resolve("kv_cache_usage", new) == resolve("kv_cache_usage", old | new) == "vllm:kv_cache_usage_perc"
    assert resolve("itl", old) == "vllm:time_per_output_token_seconds"
    assert resolve("itl", new) == "vllm:inter_token_latency_seconds"
    assert resolve("tpot", new) == "vllm:request_time_per_output_token_seconds"
    with pytest.raises(MetricUnavailable, match="tpot is not exported"):
        resolve("tpot", old)


def test_MS2_every_metric_of_the_table_is_exported_by_the_captured_engine():
    """The text was captured from vLLM 0.32.0 (CPU build) after 24 requests."""
    text = (Path(__file__).parent / "golden/vllm_cpu_0.32.0_metrics.txt").read_text()
    exported = series_names(text.splitlines())
    assert {name: resolve(name, exported) for name in FAMILIES} == {
        name: family.names[0] for name, family in FAMILIES.items()
    }


def test_quantile_interpolates_inside_its_bucket(window):
    p90 = window("latency").quantile("e2e_latency", 0.9)
    assert (p90.mark, p90.unit, p90.samples) == ("exact", "ms", 1000)
    assert p90.value == pytest.approx(300 + 700 * (900 - 500) / 480)
    assert window("latency").quantile("e2e_latency", 0.4).mark == "below_first_bound"
    assert window("latency").quantile("e2e_latency", 0.999).mark == "in_overflow"


def test_slow_requests_are_counted_at_an_existing_bound(window):
    slow = window("latency").slower_than_ms("e2e_latency", 1050)
    assert (slow.slow.value, slow.total.value, slow.bound_ms) == (20, 1000, 1000)


def test_finish_reasons_are_counted(window):
    assert window("latency").finished("abort", "error").value == 10
    assert window("latency").finished().value == 1000
    assert window("latency").increase("request_success", finished_reason="error").value == 3
    assert window("latency").increase("request_success", finished_reason="repetition").status == "zero"


def test_prefill_share_of_time(window):
    assert window("latency").prefill_time_share().value == pytest.approx(0.25)


def test_saturated_throughput_counts_saturated_seconds_only(window):
    reading = saturated_throughput(window("peaky"), waiting=1, min_saturated_s=10)
    assert reading.value == pytest.approx(30)
    assert reading.samples == 20
    assert window("peaky").throughput().value == pytest.approx(1000 / 60)


def test_R6_without_saturated_seconds_it_is_unknown(window):
    assert saturated_throughput(window("peaky"), waiting=9, min_saturated_s=10).cause.startswith("not saturated")
    assert saturated_throughput(window("nobody"), waiting=1, min_saturated_s=1).cause.startswith("metric unavail")


def test_MS6_a_scrape_gap_is_no_saturated_time_whatever_the_queue_at_both_ends(window):
    reading = saturated_throughput(window("unseen", -1, 61), waiting=1, min_saturated_s=10)
    assert reading.samples == 20
    assert reading.value == pytest.approx(30)
    seldom = saturated_throughput(window("seldom", -1, 401), waiting=1, min_saturated_s=10)
    assert seldom.cause.startswith("not saturated: 0 saturated seconds")


def test_gauges_shares_and_series(window):
    peaky = window("peaky")
    assert peaky.gauge_max("running").value == 8
    assert peaky.share_of_time("waiting", 1).value == pytest.approx(21 / 61, abs=0.02)
    assert len(peaky.series("waiting")) == 61
    assert peaky.series("waiting")[30] == (30, 4)
    assert window("steady").up().value == 1
    assert window("nobody").up().status == "unknown"


def test_envoy_counts_per_arm_and_a_class_never_seen_is_zero(reader):
    at = Selector(target={"job": "envoy"})
    stable = EnvoyWindow(reader, at, "stable", T0, T0 + 60)
    canary = EnvoyWindow(reader, at, "canary", T0, T0 + 60)
    assert (stable.requests().value, canary.requests().value) == (1000, 50)
    assert stable.responses("5").value == 30
    assert canary.responses("5").status == "zero"
    assert canary.broken().status == "zero"
    assert EnvoyWindow(reader, at, "nobody", T0, T0 + 60).responses("5").status == "unknown"


def test_R6_the_error_rate_counts_5xx_broken_streams_and_what_the_engine_gave_up(window):
    failed, every_request = failed_requests(window("fleet"))
    assert failed.value == 30 + 5 + 4 + 2  # 5xx, broken, aborted, error
    assert every_request.value == 30 + 5 + 4 + 2 + 90
    assert [r.status for r in failed_requests(window("latency"))] == ["unknown", "unknown"], "no proxy was read"


def test_a_label_value_cannot_leave_its_quotes():
    assert Selector(target={"role": 'x"} or vector(1) #\n'}).braces() == '{role="x\\"} or vector(1) #\\n"}'
