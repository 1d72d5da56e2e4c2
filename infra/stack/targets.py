"""What the embedded Prometheus scrapes; targets change while it runs, through files that it watches."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import yaml

from infra.errors import BadInput
from infra.stack.atomic import replace_file
from infra.stack.paths import StackPaths

OPEN_JOBS = ("engines", "ratchet")
ROLES = ("stable", "canary", "sandbox")
SCRAPE_INTERVAL = "1s"
_ADDRESS = re.compile(r"^[^\s/:]+:\d{1,5}$|^\[[0-9a-fA-F:]+\]:\d{1,5}$")


def prometheus_configuration(paths: StackPaths, port: int) -> str:
    """prometheus.yml: jobs engines, ratchet, envoy and prometheus, scraped each second.

    Args:
        paths: where the target files are.
        port: Prometheus' own port.
    """

    def watched(job: str, **more: object) -> dict[str, object]:
        files = [str(paths.targets_dir / f"{job}.json"), str(paths.targets_dir / f"{job}-*.json")]
        return {"job_name": job, "file_sd_configs": [{"files": files, "refresh_interval": "10s"}], **more}

    return yaml.safe_dump(
        {
            "global": {
                "scrape_interval": SCRAPE_INTERVAL,
                "scrape_timeout": "1s",
                "evaluation_interval": "5s",
            },
            "scrape_configs": [
                *(watched(job) for job in OPEN_JOBS),
                watched("envoy", metrics_path="/stats/prometheus"),
                {"job_name": "prometheus", "static_configs": [{"targets": [f"127.0.0.1:{port}"]}]},
            ],
        },
        sort_keys=False,
    )


def set_targets(paths: StackPaths, job: str, addresses: Sequence[str], labels: Mapping[str, str]) -> None:
    """Replace the scrape targets of one group.

    Prometheus takes changes over within about 6 s (it collects them for 5 s).

    A group is a job and, where `labels` has one, its role: setting the canary's targets leaves stable's
    alone.

    Args:
        paths: the stack.
        job: `engines` or `ratchet`.
        addresses: `host:port` each; none empties the group.
        labels: put on every series; for engines `role` is stable, canary or sandbox.

    Raises:
        BadInput: another job, an engine without a known role, an address that is not `host:port`.
    """
    if job not in OPEN_JOBS:
        raise BadInput(f"job {job!r} takes no targets from outside", remedy=f"Jobs: {', '.join(OPEN_JOBS)}")
    role = labels.get("role", "")
    if job == "engines" and role not in ROLES:
        raise BadInput(
            f"an engine's targets need the label role, not {role!r}", remedy=f"Choose one of {', '.join(ROLES)}"
        )
    if role and not re.fullmatch(r"[a-z0-9_]+", role):
        raise BadInput(f"the label role={role!r} is not made of a-z, 0-9 and _")
    for address in addresses:
        if not _ADDRESS.match(address):
            raise BadInput(f"{address!r} is not host:port", remedy="Give it without scheme and path")
    paths.targets_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
    write_targets(paths.targets_dir / (f"{job}-{role}.json" if role else f"{job}.json"), addresses, labels)


def write_targets(file: Path, addresses: Sequence[str], labels: Mapping[str, str]) -> None:
    """Write one file_sd file in one step."""
    groups = [{"targets": list(addresses), "labels": dict(labels)}] if addresses else []
    replace_file(file, json.dumps(groups))
