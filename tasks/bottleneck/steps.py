"""Stage 2's effects: the evidence from Prometheus, the stored report."""

from __future__ import annotations

import secrets
from typing import get_args

from prefect import task
from pydantic import ValidationError

from infra.agent.analyst import CandidateAnswer, MessagesAnalyst, Question
from infra.agent.client import MessagesClient
from infra.bench.stacks import CpuProfile
from infra.connect import agent_settings, metrics_settings, open_store
from infra.metrics.reader import MetricsReader, Selector
from infra.metrics.window import MetricsWindow
from infra.quality.runner import run_gate
from infra.quality.suite import GateResult
from tasks.baseline.records import BaselineReport
from tasks.bottleneck import evidence as ids
from tasks.bottleneck.checks import check_candidate
from tasks.bottleneck.gates import evidence_rows, evidence_suite
from tasks.bottleneck.records import BottleneckCandidate, BottleneckReport, EvidencePack
from tasks.bottleneck.rules import bottleneck_report
from tasks.shared.records import Reading

ENGINE_DEFAULTS: dict[str, float] = {"enable_prefix_caching": 1.0, "max_num_seqs": 256.0}
"""What vLLM takes when a setting is not given; only used to read the evidence, never to render a command."""


def _key(campaign: str) -> str:
    return f"campaigns/{campaign}/bottleneck.json"


def stored_report(campaign: str) -> BottleneckReport | None:
    """The finished report of a campaign that is resumed."""
    store = open_store()
    return store.get_record(_key(campaign), BottleneckReport) if store.exists(_key(campaign)) else None


def _setting(baseline: BaselineReport, name: str) -> Reading:
    value = baseline.config.args.get(name)
    if value is None and name in ENGINE_DEFAULTS:
        return Reading.of(ENGINE_DEFAULTS[name], "", source=f"the engine's default of {name}")
    return ids.config_reading(value, source=f"configuration, {name}")


@task(name="collect evidence", retries=2, retry_delay_seconds=2)
def collect_evidence(campaign: str, role: str, baseline: BaselineReport, profile: CpuProfile) -> EvidencePack:
    """Engine, configuration and traffic readings over the baseline's window; the profile is the sandbox's."""
    s = metrics_settings()
    w = MetricsWindow(
        MetricsReader(s.url, s.timeout_s), Selector.role(role), baseline.window.start_s, baseline.window.end_s
    )
    readings = {
        ids.RUNNING_MAX: w.gauge_max("running"),
        ids.RUNNING_AVG: w.gauge_avg("running"),
        ids.WAITING_MAX: w.gauge_max("waiting"),
        ids.WAITING_AVG: w.gauge_avg("waiting"),
        ids.SATURATED_SHARE: w.share_of_time("waiting", 1.0),
        ids.QUEUE_TIME_P99: w.quantile("queue_time", 0.99),
        ids.TTFT_P99: w.quantile("ttft", 0.99),
        ids.KV_CACHE_MAX: w.gauge_max("kv_cache_usage"),
        ids.PREFIX_HIT_RATE: w.prefix_hit_rate(),
        ids.PREEMPTIONS: w.increase("preemptions"),
        ids.PREFILL_TIME_SHARE: w.prefill_time_share(),
        ids.THROUGHPUT: w.throughput(),
        ids.CPU_SIDE_SHARE: profile.cpu_side,
        ids.TOKENISE_SHARE: profile.tokenise,
        ids.SCHEDULE_SHARE: profile.schedule,
        ids.DETOKENISE_SHARE: profile.detokenise,
    }
    for item, name in (
        (ids.MAX_NUM_SEQS, "max_num_seqs"),
        (ids.PREFIX_CACHING, "enable_prefix_caching"),
        (ids.MAX_MODEL_LEN, "max_model_len"),
        (ids.MAX_NUM_BATCHED_TOKENS, "max_num_batched_tokens"),
    ):
        readings[item] = _setting(baseline, name)
    if baseline.samples is not None:
        sample = baseline.samples.search
        source = f"sample {sample.key}"
        readings[ids.PREFIX_REUSE] = Reading.of(
            sample.prefix_reuse, "ratio", source=source, cause="the manifest holds no prefix reuse"
        )
        readings[ids.LONG_SHARE] = Reading.of(sample.long_share, "ratio", source=source)
        readings[ids.LONG_TOKEN_SHARE] = Reading.of(sample.long_token_share, "ratio", source=source)
        readings[ids.PROMPT_TOKENS_AVG] = Reading.of(sample.prompt_tokens_avg, "tokens", source=source)
    return ids.evidence_pack(campaign, readings, running_series=w.series("running"), waiting_series=w.series("waiting"))


@task(name="gate: evidence")
def check_evidence(evidence: EvidencePack) -> GateResult:
    """The data-quality gate before candidates are ranked."""
    return run_gate(evidence_suite(ids.REQUIRED), evidence_rows(evidence, ids.REQUIRED))


@task(name="rank bottlenecks")
def locate(evidence: EvidencePack) -> BottleneckReport:
    """Candidates by rules; with an endpoint configured, an analyst's as well, checked against the same evidence.

    Whatever becomes of the analyst, the rules' report stands.
    """
    settings = agent_settings()
    if not settings.base_url:
        return bottleneck_report(evidence)
    client = MessagesClient(
        settings.base_url,
        settings.model,
        settings.api_key.get_secret_value(),
        max_tokens_total=settings.max_tokens_total,
    )
    findings = MessagesAnalyst(client).candidates(
        question(evidence), lambda answer: refusal(answer, evidence), secrets.token_hex(8)
    )
    named = [candidate for answer in findings.candidates if (candidate := as_candidate(answer)) is not None]
    report = bottleneck_report(evidence, named)
    notes = (*findings.refused, *((f"analyst: {findings.note}",) if findings.note else ()))
    return report.model_copy(update={"refused": (*report.refused, *notes)})


def question(evidence: EvidencePack) -> Question:
    """What the analyst is asked: the readings that are known, and those that are not with their cause."""
    names = ", ".join(get_args(BottleneckCandidate.model_fields["name"].annotation))
    return Question(
        system="One vLLM engine; its settings and readings are below.",
        knobs=(),
        history=(),
        task=f"Name at most five suspected bottlenecks among: {names}. Fewer is fine, none is an answer.",
        evidence=tuple(f"{i.id}: {i.reading.text()} ({i.meaning})" for i in evidence.items),
    )


def as_candidate(answer: CandidateAnswer) -> BottleneckCandidate | None:
    """The answer as a candidate; None when it names no bottleneck that is known here."""
    try:
        return BottleneckCandidate.model_validate({**answer.model_dump(), "by": "analyst"})
    except ValidationError:
        return None


def refusal(answer: CandidateAnswer, evidence: EvidencePack) -> str | None:
    """Why the analyst's answer is refused; None when it may stand."""
    candidate = as_candidate(answer)
    if candidate is None:
        return f"{answer.name} is no bottleneck that is known here"
    return check_candidate(candidate, evidence)


def store_report(report: BottleneckReport) -> None:
    """Write the report once."""
    open_store().put_record_once(_key(report.campaign), report)
