"""Stage 1's rules: spread, drift, what the sandbox can tell, cost, and the report that carries them."""

from __future__ import annotations

import pytest

from infra.readings import Reading
from tasks.baseline.records import Calibration, MetricBaseline
from tasks.baseline.rules import (
    baseline_report,
    calibration_sentence,
    cost_per_million_tokens,
    drift,
    error_rate_pct,
    judge_calibration,
    metric_baseline,
    spread_pct,
    target_pct,
)
from tasks.baseline.steps import stop_unless_told
from tasks.shared.paired import estimate
from tasks.shared.records import Outcome, Target, Window
from tasks.shared.stops import PreconditionFailed
from tests.rules.serving_configs import serving_config
from tests.rules.trial_records import PRODUCTION

UNKNOWN = Reading.unknown("Prometheus did not answer")


def tok(value):
    return Reading.of(value, "tok/s")


def metric(name, now, before=None, slices=()):
    return metric_baseline(name, now, slices=slices, week_before=before)


def report(*metrics, **kw):
    return baseline_report(
        target=Target(model="m", pool="p"),
        campaign="c",
        window=Window(start_s=0, end_s=60),
        config=serving_config(),
        criteria_hash="h",
        metrics=metrics,
        price_per_accelerator_hour=3.6,
        **kw,
    )


def test_B3_spread_is_range_over_median_of_the_known_slices():
    assert spread_pct([tok(90), tok(100), tok(110), UNKNOWN]) == pytest.approx(20)


@pytest.mark.parametrize("slices", [[], [tok(5)], [tok(5), UNKNOWN], [tok(0), tok(0)]])
def test_B3_without_two_slices_or_around_zero_there_is_no_spread(slices):
    assert spread_pct(slices) is None


def test_B3_marked_quantiles_make_no_spread():
    marked = Reading.of(300, "ms", mark="below_first_bound")
    assert spread_pct([marked, marked, Reading.of(900, "ms")]) is None


@pytest.mark.parametrize(
    ("now", "before", "outcome"),
    [
        (tok(104), tok(100), Outcome.PASS),
        (tok(120), tok(100), Outcome.FAIL),
        (tok(80), tok(100), Outcome.FAIL),
        (tok(0), tok(0), Outcome.PASS),
        (tok(5), tok(0), Outcome.FAIL),
        (tok(5), tok(1e-16), Outcome.FAIL),
        (UNKNOWN, tok(100), Outcome.NO_DATA),
        (tok(100), UNKNOWN, Outcome.NO_DATA),
        (tok(100), None, Outcome.NO_DATA),
    ],
)
def test_B1_drift_against_the_week_before(now, before, outcome):
    found = drift([metric("throughput_per_gpu", now, before)], required=["throughput_per_gpu"], max_drift_pct=10)
    assert found.outcome == outcome


def test_B1_drift_inside_the_days_own_spread_is_none():
    day = metric("throughput_per_gpu", tok(120), tok(100), slices=[tok(100), tok(120), tok(140)])
    assert drift([day], required=["throughput_per_gpu"], max_drift_pct=10).outcome == Outcome.PASS


def test_a_required_metric_that_is_absent_is_no_data_and_nothing_to_compare_too():
    assert drift([], required=["p99_latency"], max_drift_pct=10).outcome == Outcome.NO_DATA
    assert drift([], required=[], max_drift_pct=10).outcome == Outcome.NO_DATA


def test_any_drifting_metric_fails_whatever_else_is_unknown():
    metrics = [metric("a", tok(200), tok(100)), metric("b", UNKNOWN, tok(1))]
    assert drift(metrics, required=["a", "b"], max_drift_pct=10).outcome == Outcome.FAIL


QUIET, LOUD = (0.01, -0.01, 0.005, -0.005, 0.0), (0.4, -0.4, 0.2, -0.2, 0.0)


@pytest.mark.parametrize(
    ("outcome", "ratios", "planned", "words"),
    [
        (Outcome.PASS, QUIET, 5, "5 pairs here"),
        (Outcome.FAIL, [d + 0.2 for d in QUIET], 5, "one side is favoured"),
        (Outcome.FAIL, LOUD, 120, "needs 120 pairs here, and measuring.most_pairs is 27"),
        (Outcome.FAIL, LOUD, None, "more pairs than can be made"),
        (Outcome.NO_DATA, QUIET[:2], 5, "gave no three pairs"),
    ],
)
def test_B4_a_sandbox_that_cannot_tell_what_the_criteria_ask_for_stops_the_campaign(outcome, ratios, planned, words):
    said = judge_calibration(estimate(ratios), planned, PRODUCTION.measuring)
    assert said.outcome is outcome
    assert words in " ".join(r.text for r in said.reasons)
    sandbox = Calibration(found=estimate(ratios), planned_pairs=planned, sentence="the figures")
    if outcome is Outcome.PASS:
        stop_unless_told(sandbox, PRODUCTION)
    else:
        with pytest.raises(PreconditionFailed, match="the figures"):
            stop_unless_told(sandbox, PRODUCTION)


def test_B4_the_plan_is_for_the_nearest_target_in_throughput():
    assert target_pct(PRODUCTION) == pytest.approx(15)  # a cost of -20 % needs +25 %
    cost = PRODUCTION.model_copy(update={"primary": PRODUCTION.primary[1:]})
    assert target_pct(cost) == pytest.approx(25)


def test_B4_one_line_says_what_the_machine_can_tell_and_how_long_it_takes():
    line = calibration_sentence(estimate(QUIET), "duet", 5, 18.0, 600.0)
    for words in ("duet", "within 0.8 %", "+0.0 %", "5 pairs, 90 s", "all trials 10 min at most"):
        assert words in line


def test_B2_cost_is_price_over_tokens_of_an_hour():
    cost = cost_per_million_tokens(tok(1000), 3.6)
    assert cost.value == pytest.approx(1.0)
    assert cost.unit == "per million tokens"


def test_B2_no_tokens_have_no_price():
    assert cost_per_million_tokens(tok(0), 3.6).status == "unknown"
    assert cost_per_million_tokens(UNKNOWN, 3.6).cause == UNKNOWN.cause


def test_error_rate_is_per_cent_and_unknown_without_requests():
    assert error_rate_pct(Reading.of(1, "requests"), Reading.of(200, "requests")).value == 0.5
    assert error_rate_pct(Reading.of(0, "requests"), Reading.of(200, "requests")).status == "zero"
    assert error_rate_pct(Reading.of(0, "requests"), Reading.of(0, "requests")).cause.startswith("idle")
    assert error_rate_pct(UNKNOWN, Reading.of(5, "requests")).status == "unknown"


def test_the_report_adds_the_cost_with_its_spread_and_week_before():
    found = report(metric("throughput_per_gpu", tok(1000), tok(500), slices=[tok(1000), tok(500)]))
    cost = next(m for m in found.metrics if m.name == "cost_per_million_tokens")
    assert cost.reading.value == pytest.approx(1)
    assert cost.week_before.value == pytest.approx(2)
    assert cost.spread_pct == pytest.approx(1 / 1.5 * 100)
    assert found.config_hash == serving_config().config_hash()


def test_the_report_says_what_is_unknown_and_keeps_it_unknown():
    found = report(MetricBaseline(name="throughput_per_gpu", reading=UNKNOWN))
    assert found.metric("cost_per_million_tokens").status == "unknown"
    assert any("throughput_per_gpu is unknown: Prometheus did not answer" in note for note in found.notes)
