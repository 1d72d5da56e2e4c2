from __future__ import annotations

from infra.replay.code_hash import replay_code_hash
from tasks.shared.ledger import adoption_rate, ledger_key, ledger_prefix, rejected_markdown, rejections
from tasks.shared.records import LedgerEntry, Target

TARGET = Target(model="org/m", pool="p")


def entry(name, **changes):
    return LedgerEntry(
        **{
            "entry_id": name,
            "at_s": 1_700_000_000.0,
            "target": TARGET,
            "campaign": "c",
            "kind": "trial",
            "knob": "max_num_seqs",
            "value": 512,
            "outcome_class": "regression",
            "reason": "P99 +340 %",
            "throughput_change_pct": 22.0,
            **changes,
        }
    )


def test_C6_two_models_of_a_fleet_have_two_ledgers():
    other = Target(model="org/other", pool="p")
    assert ledger_prefix(TARGET) != ledger_prefix(other)
    assert ledger_key(entry("a")).startswith(ledger_prefix(TARGET))
    assert "/" not in TARGET.key


def test_A1_keys_of_a_target_sort_by_time():
    keys = [ledger_key(entry(str(n), at_s=1_700_000_000.0 + n)) for n in (1, 20, 300)]
    assert keys == sorted(keys)


def test_A1_adoption_rate_counts_rollouts_that_ended_well_and_measured_proposals():
    entries = [
        entry("a"),
        entry("b"),
        entry("r", kind="rollout", outcome_class="completed"),
        entry("s", kind="rollout", outcome_class="rolled back"),
    ]
    assert adoption_rate(entries) == (1, 2)


def test_H3_only_measured_rejections_are_remembered():
    entries = [
        entry("late", at_s=1_700_000_009.0),
        entry("early"),
        entry("good", outcome_class="effective"),
        entry("shaky", outcome_class="unstable"),
        entry("never", kind="refused"),
        entry("pair", knob=""),
    ]
    assert [e.entry_id for e in rejections(entries)] == ["early", "late"]


def test_H3_the_page_says_why_with_both_value_and_figure():
    page = rejected_markdown([entry("a", reason="a | b\nc")])
    assert "| `max_num_seqs` | `512` | regression | +22.0 % | a / b c |" in page
    assert "nothing rejected yet" in rejected_markdown([])


def test_V2_the_replay_names_its_own_code():
    assert replay_code_hash() == replay_code_hash()
    assert len(replay_code_hash()) == 64
