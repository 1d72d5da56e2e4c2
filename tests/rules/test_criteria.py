"""The criteria file: what is read, and what is refused with which words."""

from pathlib import Path

import pytest

from infra.errors import BadInput
from tasks.shared.criteria import criteria_hash, parse_criteria

DOCS = Path(__file__).parents[2] / "docs"
PRODUCTION = (DOCS / "perf-baseline.md").read_text()
DEMO = (DOCS / "perf-baseline-demo.md").read_text()


def refused(text):
    with pytest.raises(BadInput) as caught:
        parse_criteria(text, "criteria.md at 1234567")
    assert "criteria.md at 1234567" in str(caught.value)
    return str(caught.value)


def changed(old, new, text=PRODUCTION):
    assert old in text
    return text.replace(old, new, 1)


def test_C1_production_file_holds_the_numbers_of_the_specification():
    criteria = parse_criteria(PRODUCTION, "perf-baseline.md")
    assert {m.name: m.target_pct for m in criteria.primary} == {
        "throughput_per_gpu": 15,
        "cost_per_million_tokens": -20,
    }
    guards = {g.name: g for g in criteria.guards}
    assert guards["p99_latency"].max_increase_pct == 5
    assert guards["error_rate"].max_increase_abs == 0.01
    assert guards["oom_count"].max_value == 0
    assert (guards["coverage"].direction, guards["coverage"].max_increase_abs) == ("higher", 0)
    assert {"ttft_p99", "tpot_p99", "peak_memory"} <= set(guards)
    assert all(g.required for g in criteria.guards)
    assert criteria.measuring.most_pairs >= 3
    assert criteria.measuring.warmup_requests == 200
    assert not criteria.demo_policy_approves


def test_R1_production_steps_are_those_of_the_specification():
    steps = parse_criteria(PRODUCTION, "perf-baseline.md").canary_steps
    assert [(s.share, s.duration_s / 3600) for s in steps] == [
        (0.005, 4),
        (0.05, 12),
        (0.25, 24),
        (0.5, 24),
        (1, 72),
    ]
    assert steps[0].stop_on == ("error_rate",)
    assert "p99_latency" in steps[1].stop_on


def test_demo_file_follows_the_same_rules_over_seconds_and_says_what_it_gives_up():
    demo, production = parse_criteria(DEMO, "demo"), parse_criteria(PRODUCTION, "production")
    assert [m.name for m in demo.primary] == [m.name for m in production.primary]
    assert [g.name for g in demo.guards] == [g.name for g in production.guards]
    assert len(demo.canary_steps) >= 3
    assert sum(s.duration_s for s in demo.canary_steps) <= 60
    assert demo.measuring.span_s < production.measuring.span_s
    assert demo.knobs["max_num_seqs"].max_factor == 4
    assert len(demo.gives_up) >= 5
    assert criteria_hash(demo) != criteria_hash(production)


def test_C3_prose_order_and_comments_do_not_change_the_hash_and_any_rule_does():
    one = criteria_hash(parse_criteria(PRODUCTION, "a"))
    assert criteria_hash(parse_criteria("# Another title\n\n" + PRODUCTION + "\nMore words.\n", "b")) == one
    moved = changed("version: 1\nprofile: production\n", "profile: production # a comment\nversion: 1\n")
    assert criteria_hash(parse_criteria(moved, "c")) == one
    assert criteria_hash(parse_criteria(changed("target_pct: 15", "target_pct: 14.9"), "d")) != one


def test_other_fenced_blocks_are_prose():
    text = PRODUCTION + "\n```text\nnot: read\n```\n\n````markdown\n```yaml\nnot: read either\n```\n````\n"
    assert parse_criteria(text, "x").version == 1


def test_no_block_is_refused():
    assert "no ```yaml block" in refused("# Only prose\n\nthroughput +15 %\n")


def test_empty_file_is_refused():
    assert "no ```yaml block" in refused("")


def test_two_blocks_are_refused():
    assert "2 ```yaml blocks" in refused(PRODUCTION + "\n```yaml\nversion: 1\n```\n")


def test_block_that_is_never_closed_is_refused():
    assert "never closed" in refused("# Title\n```yaml\nversion: 1\n")


def test_block_that_is_no_mapping_is_refused():
    assert "list" in refused("```yaml\n- 1\n- 2\n```\n")


def test_broken_yaml_is_refused_in_one_line():
    message = refused("```yaml\nversion: [1\n```\n")
    assert "does not parse" in message
    assert "\n" not in message


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (
            "duration_s: 14400",
            "duration: 4h",
            "`canary_steps[0].duration` is not a known key; did you mean `duration_s`?",
        ),
        (
            "duration_s: 14400",
            "duration_s: 4h",
            "`canary_steps[0].duration_s` is the text '4h'; write a number (in seconds",
        ),
        ("duration_s: 14400", 'duration_s: "14400"', "is the text '14400'; write a number"),
        (
            "target_pct: 15",
            "target_pct: +15 %",
            "`primary[0].target_pct` is the text '+15 %'; write a number (in per cent",
        ),
        ("target_pct: 15", "target: 15", "did you mean `target_pct`?"),
        ("target_pct: 15", "target_pct: -15", "has a positive target"),
        ("target_pct: 15", "target_pct: 0", "has a positive target"),
        ("target_pct: 15", "target_pct: .nan", "target_pct"),
        ("target_pct: 15", "target_pct: .inf", "target_pct"),
        ("target_pct: -20", "target_pct: 20", "has a negative target"),
        (
            "throughput_per_gpu, direction: higher",
            "throughput_per_gpu, direction: lower",
            "higher is better for it",
        ),
        ("throughput_per_gpu, direction", "throughput_per_gp, direction", "did you mean throughput_per_gpu"),
        ("passes_to_advance: 3", "passes_to_advanc: 3", "did you mean `passes_to_advance`?"),
        ("passes_to_advance: 3", "passes_to_advance: 2.5", "`passes_to_advance`"),
        ("passes_to_advance: 3", "passes_to_advance: true", "`passes_to_advance`"),
        ("passes_to_advance: 3", "passes_to_advance: 3\npasses_to_advance: 1", "given twice"),
        ("version: 1", "version: 2", "`version`"),
        ("version: 1\n", "", "`version` is missing"),
        (
            "max_increase_pct: 5}",
            "max_increase_pct: 5, max_value: 3000}",
            "guards[0] (p99_latency) has 2 limits",
        ),
        (
            "{name: p99_latency, max_increase_pct: 5}",
            "{name: p99_latency}",
            "guards[0] (p99_latency) has 0 limits",
        ),
        ("max_increase_pct: 5}", "max_increase_pct: -5}", "0 or more"),
        (
            "higher, max_increase_abs: 0}",
            "higher, max_value: 1}",
            "higher is better for it; use max_increase_abs",
        ),
        (
            "- {name: oom_count, max_value: 0}",
            "- {name: error_rate, max_value: 1}",
            "names error_rate 2 times",
        ),
        ("share: 0.5,", "share: 0.25,", "do not ascend"),
        ("share: 0.5,", "share: 0.1,", "do not ascend"),
        ("share: 1.0", "share: 0.9", "a rollout ends at 1"),
        ("share: 0.005", "share: 0", "`canary_steps[0].share`"),
        ("share: 1.0", "share: 1.5", "`canary_steps[4].share`"),
        ("stop_on: [error_rate],", "stop_on: [eror_rate],", "did you mean error_rate?"),
        ("stop_on: [error_rate],", "stop_on: [coverage],", "read in the sandbox only"),
        ("stop_on: [error_rate],", "stop_on: [],", "stop_on is empty"),
        ("max_hold_s: 28800", "max_hold_s: 60", "roll back before it is over"),
        (
            "gpu_memory_utilization: {maximum: 0.95}",
            "gpu_memory_utilization: {maximum: 0.99}",
            "hard rail is 0.95",
        ),
        (
            "gpu_memory_utilization: {maximum: 0.95}",
            "block_size: {minimum: 32, maximum: 16}",
            "above maximum 16",
        ),
        ("gpu_memory_utilization: {maximum: 0.95}", "block_size: {max_factor: 1}", "allows no change"),
        ("demo_policy_approves: false", "demo_policy_approves: true", "only a person approves"),
        ("baseline_s: 86400", "baseline_s: 3600", "less than a day"),
        ("most_pairs: 27", "most_pairs: 2", "`measuring.most_pairs`"),
        ("smallest_gain_pct: 5", "smallest_gain_pct: 15", "not below the target of throughput_per_gpu, +15 %"),
        ("smallest_gain_pct: 5", "smallest_gain_pct: 0", "`measuring.smallest_gain_pct`"),
        ("profile: production", "profile: demo", "`gives_up` is empty"),
        ("profile: production", "profile: staging", "`profile`"),
        ("throughput_is: saturating_load", "throughput_is: goodput", "no trial measures yet"),
        ("short_below_tokens: 512", "short_below_tokens: 5000", "is not below medium_below_tokens"),
        ("price_per_accelerator_hour: 2.50", "price_per_accelerator_hour: 0", "`price_per_accelerator_hour`"),
        (
            "{throughput: 1.0,",
            "{throughputs: 1.0,",
            "`weights.throughputs` is not a known key; did you mean `throughput`?",
        ),
    ],
)
def test_C1_faults_are_refused_and_named(old, new, expected):
    assert expected in refused(changed(old, new))


@pytest.mark.parametrize("key", ["primary", "guards", "canary_steps"])
def test_criteria_without_primary_guard_or_step_are_refused(key):
    lines, skipping = [], False
    for line in PRODUCTION.splitlines():
        if line == f"{key}:":
            skipping = True
        elif skipping and not line.startswith("  -"):
            skipping = False
        if not skipping:
            lines.append(line)
    assert f"`{key}` is missing" in refused("\n".join(lines))
    empty = "\n".join(lines).replace("version: 1", f"version: 1\n{key}: []")
    assert f"`{key}` is empty" in refused(empty)


def test_one_message_names_every_misspelt_key():
    text = changed("duration_s: 14400", "duration: 4h", changed("target_pct: 15", "target: 15"))
    assert "canary_steps[0].duration" in refused(text)
    assert "primary[0].target" in refused(text)
