"""The report's page: its title, its words, and that it renders from records alone."""

from __future__ import annotations

import html as markup
from types import SimpleNamespace

import pytest

from deployments.report import words
from deployments.report.figures import figures, hypothesis_rows, refused_by_guard
from deployments.report.html import how_measured, render
from deployments.report.plots import before_after
from deployments.report.story import Story
from tasks.canary.records import CanaryVerdict, Phase
from tasks.hypothesis.records import Hypotheses, Hypothesis, RefusedIdea
from tasks.shared.criteria import criteria_hash
from tasks.shared.pin import CriteriaPin
from tasks.shared.records import Judgement, Outcome, Reading, Reason
from tests.rules.arm_readings import plan
from tests.rules.trial_records import PRODUCTION, TARGET, comparisons, trial, verdict


class EmptyStore:
    """A store that holds nothing."""

    def exists(self, key):
        return False


def story(**changes):
    criteria = changes.pop("criteria", PRODUCTION)
    pin = CriteriaPin(
        path="docs/perf-baseline.md",
        commit="c" * 40,
        blob="b",
        text_hash="t",
        criteria=criteria,
        criteria_hash=criteria_hash(criteria),
        pinned=True,
    )
    return Story(**{"campaign": "night-7", "target": TARGET, "pin": pin, **changes})


def page(told):
    return markup.unescape(render(EmptyStore(), told))


def said(*reasons, outcome=Outcome.FAIL):
    return Judgement(outcome=outcome, reasons=tuple(Reason(rule="r", outcome=one, text=text) for one, text in reasons))


def measured(low, high, **more):
    """A single trial's throughput with its interval, and what is not in the record yet."""
    found = next(c for c in comparisons(throughput_per_gpu=253.2) if c.metric == "throughput_per_gpu")
    kept = {
        "metric": found.metric,
        "change_pct": found.change_pct,
        "low_pct": low,
        "high_pct": high,
        "pairs": 0,
        "design": "",
    }
    return SimpleNamespace(**{**kept, **more})


def hypothesis(knob="max_num_seqs", value_to=16):
    return Hypothesis(
        id=knob,
        knob=knob,
        knob_class="numeric",
        value_from=8,
        value_to=value_to,
        metric="throughput_per_gpu",
        expected_change_pct=30.0,
        because="requests wait",
        bottleneck="queueing",
        validate_by="v",
        holds_if="h",
        worst_case="w",
        may_get_worse=("p99_latency",),
        may_change_outputs=False,
        rollback="r",
        source="playbook",
    )


def test_the_title_says_the_target_and_the_change():
    made = plan()
    assert words.title(story(plan=made)) == "m: max_num_seqs 8 -> 16"
    switched = made.model_copy(
        update={
            "changes": {"max_num_seqs": 8, "enable_prefix_caching": True, "block_size": 32},
            "baseline_config": made.baseline_config.with_args({"max_num_seqs": 2, "enable_prefix_caching": False}),
        }
    )
    assert words.title(story(plan=switched)) == (
        "m: max_num_seqs 2 -> 8, enable_prefix_caching off -> on, block_size default -> 32"
    )


def test_without_a_plan_the_title_says_so_and_a_sentence_says_why():
    reasons = said(
        (Outcome.PASS, "error_rate held"),
        (Outcome.FAIL, "throughput_per_gpu rose by 3 %, 15 % are needed."),
        (Outcome.INCONCLUSIVE, "ttft_p99 cannot be told"),
    )
    told = story(verdict=verdict().model_copy(update={"judgement": reasons}))
    assert words.title(told) == "m: nothing adopted"
    assert words.subtitle(told) == (
        "Not adopted since throughput rose by 3 %, 15 % are needed; P99 time to first token cannot be told."
    )
    assert words.subtitle(story()) == "The campaign ended before a verdict."


def test_a_plan_that_production_did_not_take_is_not_called_adopted():
    assert "not adopted yet" in words.subtitle(story(plan=plan()))


@pytest.mark.parametrize(
    ("told", "title"), [(story(plan=plan()), "m: max_num_seqs 8 -> 16"), (story(), "m: nothing adopted")]
)
def test_the_page_has_the_title_twice_and_the_campaign_below(told, title):
    text = page(told)
    assert f"<title>{title}</title>" in text
    assert f"<h1>{title}</h1>" in text
    assert "Campaign <code>night-7</code>" in text


def test_a_whole_campaign_renders_with_words_for_metrics():
    won = trial({"max_num_seqs": 16}, 130.0)
    reading = {m: Reading.of(100.0, "x") for m in ("throughput_per_gpu", "p99_latency", "ttft_p99", "tpot_p99")}
    told = story(
        hypotheses=Hypotheses(
            campaign="night-7",
            hypotheses=(hypothesis(),),
            refused=(RefusedIdea(knob="gpu_share", value=0.123456, source="agent", rule="rail", text="too low"),),
        ),
        trials=(won,),
        verdict=verdict(),
        plan=plan(),
        canary=CanaryVerdict(
            rollout_id="r",
            target=TARGET,
            judgement=Judgement(outcome=Outcome.PASS),
            phase=Phase.COMPLETED,
            decisions=(),
            production_before=reading,
            production_after=reading,
        ),
    )
    text = page(told)
    for expected in (
        "throughput, output tokens/s",
        "P99 latency, ms",
        "P99 time to first token, ms",
        "P99 time per output token, ms",
        "errors, %",
        "gpu_share=0.1235",
        "100.0 tokens/s",
        "Adopted: production serves with it.",
    ):
        assert expected in text, expected
    for name in (*words.METRICS, "A/A floor"):
        assert name not in text, name
    assert set(figures(told)["production"]["before"]) < set(words.METRICS), "the keys for programs changed"


def test_what_the_profile_gives_up_stands_last():
    text = page(story(criteria=PRODUCTION.model_copy(update={"gives_up": ("one minute of traffic",)})))
    head = "<h2>What this profile measures less of than production does</h2>"
    assert text.index(head) == text.rindex("<h2>")
    assert "one minute of traffic" in text[text.index(head) :]
    assert head not in page(story(criteria=PRODUCTION.model_copy(update={"gives_up": ()})))


def test_how_it_was_measured_is_shown_where_it_was_written():
    baseline = SimpleNamespace(
        metrics=(),
        config=SimpleNamespace(engine_build="e"),
        calibration=SimpleNamespace(design="duet", sentence="Differences from 2 % on can be told."),
    )
    told = story().model_copy(update={"baseline": baseline})
    assert how_measured(told) == ("Differences from 2 % on can be told.", "duet")
    assert "How it was measured" in page(told)
    assert how_measured(story()) == ("", "")
    assert "How it was measured" not in page(story())


@pytest.mark.parametrize(
    ("compared", "text"),
    [
        (measured(140.1, 166.0, pairs=3, design="duet"), "+153.2 % (+140.1 to +166.0 %), 3 pairs, duet"),
        (measured(None, None, pairs=1, design=""), "+153.2 %, 1 pair"),
        (measured(None, None), "+153.2 %"),
        (None, "not measured"),
    ],
)
def test_a_ratio_comes_with_its_interval_and_pairs(compared, text):
    assert words.ratio(compared) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (True, "on"),
        (False, "off"),
        (None, "default"),
        (8, "8"),
        (123456, "123456"),
        (8.0, "8"),
        (16384.0, "16384"),
        (2.6, "2.6"),
        (2.5999999999999996, "2.6"),
        (16384.7, "16380"),
        (0.000012345, "1.234e-05"),
        ("fp8", "fp8"),
    ],
)
def test_values_are_short(value, text):
    assert words.value(value) == text


def test_names_inside_longer_names_stay():
    assert words.plain("p99_latency and my_p99_latency_limit") == "P99 latency and my_p99_latency_limit"


def test_a_row_has_its_interval_and_pairs():
    ran = trial({"max_num_seqs": 16}, 130.0).model_copy(
        update={
            "comparisons": tuple(
                c.model_copy(update={"low_pct": 25.0, "high_pct": 35.0}) for c in comparisons(throughput_per_gpu=130.0)
            )
        }
    )
    told = story(
        hypotheses=Hypotheses(campaign="night-7", hypotheses=(hypothesis(), hypothesis("block_size"))), trials=(ran,)
    )
    found, never = hypothesis_rows(told)
    assert found["interval_pct"] == [25.0, 35.0]
    assert isinstance(found["pairs"], int)
    assert (never["interval_pct"], never["pairs"]) == ([None, None], 0)


def test_a_throughput_gain_behind_a_broken_guard_is_tempting():
    broken = Judgement(
        outcome=Outcome.FAIL, reasons=(Reason(rule="p99_latency", outcome=Outcome.FAIL, text="P99 +340 %"),)
    )
    fast, slow = (
        trial({"max_num_seqs": 16}, throughput, p99_latency=4400.0).model_copy(update={"judgement": broken})
        for throughput in (122.0, 104.0)
    )
    assert [r["tempting"] for r in refused_by_guard(story(trials=(fast, slow)))] == [
        ["throughput_per_gpu +22.0 %"],
        [],
    ]


def test_before_and_after_are_labelled_with_units_and_gaps_are_told():
    drawn = before_after(
        [("throughput", "tokens/s", "higher", 20.0, 50.5), ("P99 latency", "ms", "lower", 900.0, None)]
    )
    for text in ("20.0 tokens/s", "50.5 tokens/s", "900.0 ms", "not measured", "before", "after"):
        assert text in drawn, text
    assert before_after([("P99 latency", "ms", "lower", 0.0, 0.0)]).startswith("<svg")
