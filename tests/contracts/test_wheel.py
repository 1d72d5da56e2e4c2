"""The wheel, and not the checkout, holds everything that the commands need."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from infra.engine.environment import home, pins_hash

ROOT = Path(__file__).parents[2]
pytestmark = [
    pytest.mark.timeout(180),
    pytest.mark.skipif(
        importlib.util.find_spec("hatchling") is None,
        reason="the build backend hatchling is not installed (make setup installs it)",
    ),
]
READS_PACKAGE_DATA = """
import sys
from pathlib import Path
import deployments, flows, infra, tasks
for package in (deployments, flows, infra, tasks):
    assert Path(package.__file__).is_relative_to(sys.prefix), package.__file__
from deployments.report import html
from infra.agent.analyst import Question, prompt
from infra.engine import catalogue, environment, prefork
from infra.replay.code_hash import replay_code_hash
from tasks.hypothesis.playbook import parse_playbook
from tasks.hypothesis.steps import PLAYBOOK
assert parse_playbook(PLAYBOOK.read_text())
assert catalogue.OVERLAY.read_text()
assert environment.engine_version()
assert prefork.SCRIPT.is_file() and (environment.SCRIPTS / "convert_model.py").is_file()
html.page_template()
assert all(prompt(Question(system="s", knobs=(), history=(), task="t", evidence=()), "n" * 16))
assert (Path(deployments.__file__).parent / "prefect.yaml").is_file()
print(environment.pins_hash())
"""


def run(command: list[str], cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("RATCHET_", "PREFECT_", "PYTHON"))}
    return subprocess.run(
        command,
        cwd=cwd,
        env={**kept, **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fresh environment with the wheel in it; its dependencies are this environment's, the checkout is not there."""
    folder = tmp_path_factory.mktemp("wheel")
    built = run([sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)], ROOT)
    assert built.returncode == 0, built.stderr
    (wheel,) = folder.glob("ratchet-*.whl")
    venv = folder / "venv"
    made = run([sys.executable, "-m", "venv", str(venv)], folder)
    assert made.returncode == 0, made.stderr
    python = venv / "bin" / "python"
    done = run([str(python), "-m", "pip", "install", "-q", "--no-deps", "--no-index", str(wheel)], folder)
    assert done.returncode == 0, done.stderr
    (site,) = venv.glob("lib/python*/site-packages")
    # Added as a path and not as a site folder: the editable install's own .pth is not read again.
    (site / "dependencies.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    return venv


def test_the_package_s_data_is_in_the_wheel(installed: Path, tmp_path: Path) -> None:
    done = run([str(installed / "bin" / "python"), "-c", READS_PACKAGE_DATA], tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == pins_hash()  # the same pins, so the same engine environment


def test_the_command_line_runs_outside_a_checkout(installed: Path, tmp_path: Path) -> None:
    ratchet = str(installed / "bin" / "ratchet")
    shown = run([ratchet, "--help"], tmp_path, COLUMNS="120")
    assert shown.returncode == 0, shown.stderr
    for command in ("demo", "campaign", "rollout", "approve", "rollback", "report", "knobs", "stack"):
        assert command in shown.stdout


@pytest.mark.skipif(not home().is_complete(), reason="the engine's environment is not set up (make engine)")
def test_the_knobs_of_the_installed_engine_are_found_from_the_wheel(installed: Path, tmp_path: Path) -> None:
    done = run([str(installed / "bin" / "ratchet"), "knobs", "parse", "max_num_seqs", "256"], tmp_path)
    assert (done.returncode, done.stdout.strip()) == (0, "256"), done.stderr
