"""Settings are read from the environment; what is missing or wrong is named by its variable, with the remedy."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from infra.connect import metrics_settings, open_store
from infra.errors import BadInput
from infra.settings.environment import EnvironmentSettings, variable_of
from infra.settings.production import ProductionSettings
from infra.settings.sandbox import SandboxSettings
from infra.settings.shared import AgentSettings, MetricsSettings, StoreSettings


@pytest.fixture(autouse=True)
def empty_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("RATCHET_")]:
        monkeypatch.delenv(name)


@pytest.mark.parametrize("value", [None, ""])
def test_production_without_a_folder_is_named_with_its_remedy(
    monkeypatch: pytest.MonkeyPatch, value: str | None
) -> None:
    if value is not None:
        monkeypatch.setenv("RATCHET_PRODUCTION_STATE_DIR", value)
    with pytest.raises(BadInput, match="setting RATCHET_PRODUCTION_STATE_DIR is missing") as stopped:
        ProductionSettings()
    assert "ratchet stack up" in stopped.value.remedy
    assert len(str(stopped.value).splitlines()) == 1


def test_settings_that_are_right_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RATCHET_PRODUCTION_STATE_DIR", "/srv/ratchet")
    monkeypatch.setenv("RATCHET_PRODUCTION_STABLE_CORES", "[2,3]")
    found = ProductionSettings()
    assert (found.state_dir, found.stable_cores) == (Path("/srv/ratchet"), (2, 3))
    assert ProductionSettings(state_dir=Path("/other")).state_dir == Path("/other")


@pytest.mark.parametrize(
    ("variable", "value", "fault"),
    [
        ("RATCHET_SANDBOX_PORT_FROM", "first", "valid integer"),
        ("RATCHET_SANDBOX_CLIENT_CORES", "0,1", r"\[0,1\]"),
        ("RATCHET_SANDBOX_CLIENT_CORES", '["x"]', "valid integer"),
    ],
)
def test_a_wrong_value_is_named_by_its_variable(
    monkeypatch: pytest.MonkeyPatch, variable: str, value: str, fault: str
) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(BadInput, match=rf"setting {variable} is wrong: .*{fault}"):
        SandboxSettings()


def test_every_missing_setting_of_the_store_is_named_and_no_key_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RATCHET_S3_SECRET_KEY", "geheim")
    with pytest.raises(BadInput, match="RATCHET_S3_ENDPOINT_URL is missing; setting RATCHET_S3_ACCESS_KEY") as stopped:
        open_store()
    assert "geheim" not in str(stopped.value)
    assert "ratchet stack env" in stopped.value.remedy
    with pytest.raises(BadInput, match="RATCHET_PROMETHEUS_URL is missing"):
        metrics_settings()


def test_a_misspelt_setting_is_named_and_no_default_takes_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RATCHET_SANDBOX_MEMORY_LIMIT", "1e9")
    with pytest.raises(BadInput) as stopped:
        SandboxSettings()
    assert str(stopped.value).startswith(
        "RATCHET_SANDBOX_MEMORY_LIMIT is no setting, RATCHET_SANDBOX_MEMORY_LIMIT_BYTES is"
    )
    assert "1e9" not in str(stopped.value)


def test_the_page_lists_every_setting_and_no_other() -> None:
    page = (Path(__file__).parents[2] / "docs" / "settings.md").read_text()
    rows = [line.split("|")[1] for line in page.splitlines() if line.startswith("| `")]
    listed = set(re.findall(r"`(RATCHET_\w+)`", " ".join(rows)))
    kinds: tuple[type[EnvironmentSettings], ...] = (
        StoreSettings,
        MetricsSettings,
        AgentSettings,
        SandboxSettings,
        ProductionSettings,
    )
    assert listed == {variable_of(kind, field) for kind in kinds for field in kind.model_fields} | {
        "RATCHET_STATE",
        "RATCHET_ENGINE_HOME",
    }
