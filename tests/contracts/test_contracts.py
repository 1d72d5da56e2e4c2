"""The arrows hold, and each contract refuses a planted violation."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("flows", "tasks", "infra", "deployments")
LINT = Path(sys.executable).parent / "lint-imports"


def lint(folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(LINT), "--no-cache"],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={"PYTHONPATH": str(folder), "PATH": "/usr/bin:/bin"},
    )


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    for package in PACKAGES:
        shutil.copytree(ROOT / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


def test_every_contract_is_kept(copy: Path) -> None:
    done = lint(copy)
    assert done.returncode == 0, done.stdout
    assert "0 broken" in done.stdout


@pytest.mark.parametrize(
    ("module", "planted", "contract"),
    [
        ("infra/errors.py", "import tasks.shared.records", "deployments > flows > tasks > infra"),
        ("tasks/shared/stops.py", "import flows.canary", "deployments > flows > tasks > infra"),
        ("tasks/bottleneck/steps.py", "import infra.traffic.switch", "The agent's stages cannot reach production"),
        ("tasks/hypothesis/steps.py", "import infra.settings.production", "The agent's stages cannot reach production"),
        ("infra/agent/client.py", "import infra.traffic.fleet", "The agent's stages cannot reach production"),
        ("tasks/sandbox/steps.py", "import infra.traffic.fleet", "Only the canary stage may use production's rights"),
        ("tasks/canary/rules.py", "import time", "Records, rules and gates are pure"),
        ("tasks/canary/conclusion.py", "import time", "Records, rules and gates are pure"),
        ("tasks/baseline/records.py", "import prefect", "Records, rules and gates are pure"),
        ("tasks/baseline/steps.py", "import tasks.sandbox.records", "A stage imports earlier stages alone"),
    ],
)
def test_S1_a_planted_violation_is_refused(copy: Path, module: str, planted: str, contract: str) -> None:
    file = copy / module
    text = file.read_text()
    marker = "from __future__ import annotations\n"
    assert marker in text
    file.write_text(text.replace(marker, f"{marker}\n{planted}\n", 1))
    done = lint(copy)
    assert done.returncode != 0
    broken = done.stdout.replace("\n", " ")
    assert f"{contract.split(':', maxsplit=1)[0]}" in " ".join(broken.split())
    assert "BROKEN" in done.stdout
