"""Samples of production traffic: reading logs, drawing whole conversations, saying how the sample differs."""

from infra.sampling.draw import draw_sample, finish_draw, merge_draws
from infra.sampling.files import write_atomically
from infra.sampling.manifest import (
    EmptyPool,
    SampleManifest,
    ShortfallRefused,
    StratumCount,
    TooManyBadLines,
    save_manifest,
)
from infra.sampling.objects import objects_from_dir, objects_from_s3
from infra.sampling.partial import DrawPlan, PartialDraw
from infra.sampling.sample import (
    DEFAULT_STRATA,
    Sample,
    SampleEntry,
    Stratum,
    load_sample,
    make_sample,
    parse_sample,
    save_sample,
    strata_from_bounds,
    stratum_of,
)

__all__ = [
    "DEFAULT_STRATA",
    "DrawPlan",
    "EmptyPool",
    "PartialDraw",
    "Sample",
    "SampleEntry",
    "SampleManifest",
    "ShortfallRefused",
    "Stratum",
    "StratumCount",
    "TooManyBadLines",
    "draw_sample",
    "finish_draw",
    "load_sample",
    "make_sample",
    "merge_draws",
    "objects_from_dir",
    "objects_from_s3",
    "parse_sample",
    "save_manifest",
    "save_sample",
    "strata_from_bounds",
    "stratum_of",
    "write_atomically",
]
