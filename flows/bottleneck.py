"""Stage 2: where the time goes, from evidence that code collected."""

from __future__ import annotations

from prefect import flow

from flows import publish
from tasks.baseline.records import BaselineReport
from tasks.bottleneck import steps
from tasks.bottleneck.records import BottleneckReport
from tasks.sandbox import profile
from tasks.shared.gate_steps import stop_on
from tasks.shared.parameters import CampaignParams
from tasks.shared.records import Criteria


@flow(name="bottleneck", flow_run_name="bottleneck {params.campaign}", validate_parameters=False)
def run_bottleneck(params: CampaignParams, criteria: Criteria, baseline: BaselineReport) -> BottleneckReport:
    """Collect the evidence, rank what it supports; five candidates at most, none is an answer too.

    Raises:
        GateFailed: the evidence does not pass its data-quality gate.
    """
    stored = steps.stored_report(params.campaign)
    if stored is not None:
        return stored
    cpu = profile.profile_cpu_side(params, criteria, baseline)
    evidence = steps.collect_evidence(params.campaign, params.role, baseline, cpu)
    gate = steps.check_evidence(evidence)
    publish.gate(params.campaign, gate)
    stop_on(gate)
    report = steps.locate(evidence)
    steps.store_report(report)
    publish.bottleneck(report)
    return report
