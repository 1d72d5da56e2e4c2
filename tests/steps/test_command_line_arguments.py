"""Arguments that cannot be meant: half a window, a folder in place of a file, a place that is none."""

from __future__ import annotations

from pathlib import Path

import pytest

from deployments.params import load_params
from infra.errors import BadInput
from tests.steps.test_command_line import ratchet


@pytest.mark.parametrize(("given", "absent"), [("from", "to"), ("to", "from")])
def test_half_a_verification_window_is_refused_before_anything_is_done(tmp_path: Path, given: str, absent: str) -> None:
    done = ratchet("rollout", "campaigns/c/plan.json", f"--verify-{given}-s", "1700000000", cwd=tmp_path)
    assert done.returncode == 2, done.stdout + done.stderr
    assert f"--verify-{given}-s without --verify-{absent}-s is no window" in done.stderr
    assert "Give both" in done.stderr


@pytest.mark.parametrize(
    ("said", "arguments", "state"),
    [
        ("Is a directory. Name a file", ("campaign", "run", "--params", "."), ".ratchet"),
        ("Not a directory. A part of the path is a file", ("stack", "status"), "/dev/null/x"),
    ],
)
def test_a_path_that_cannot_be_used_is_one_line_with_its_name_and_the_remedy(
    tmp_path: Path, said: str, arguments: tuple[str, ...], state: str
) -> None:
    done = ratchet(*arguments, cwd=tmp_path, RATCHET_STATE=state)
    assert done.returncode == 2, done.stdout + done.stderr
    assert said in done.stderr
    assert ("/dev/null/x" in done.stderr) is (state == "/dev/null/x")
    assert "Traceback" not in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_the_documented_parameters_are_parameters(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "campaign.md").read_text()
    file = tmp_path / "nightly.yaml"
    file.write_text(page.split("```yaml\n")[1].split("```")[0])
    found = load_params(file)
    assert (found.target.model, found.accelerators, found.window.end_s - found.window.start_s) == (
        "qwen-72b",
        8,
        86_400,
    )


@pytest.mark.parametrize("shape", ["H100 x0", "H100", "x8", "H100x8 ", "H100 x-1"])
def test_a_shape_that_says_no_count_is_refused(tmp_path: Path, shape: str) -> None:
    page = (Path(__file__).parents[2] / "docs" / "campaign.md").read_text()
    file = tmp_path / "nightly.yaml"
    file.write_text(page.split("```yaml\n")[1].split("```")[0].replace("H100-80GB x8 ", f"'{shape}' "))
    with pytest.raises(BadInput, match="production_shape"):
        load_params(file)
