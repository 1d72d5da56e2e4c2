"""`ratchet sample`: from S3, a folder or a file to one sample file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from infra.connect import open_store
from infra.errors import BadInput
from infra.sampling.draw import draw_sample
from infra.sampling.manifest import save_manifest
from infra.sampling.objects import objects_from_dir, objects_from_s3
from infra.sampling.sample import save_sample, strata_from_bounds


def _objects(source: str) -> Iterator[tuple[str, bytes]]:
    if source.startswith("s3://"):
        store = open_store()
        bucket, _, prefix = source.removeprefix("s3://").partition("/")
        if bucket != store.bucket:
            raise BadInput(f"bucket {bucket} is not {store.bucket}, which RATCHET_S3_BUCKET names")
        return iter(objects_from_s3(lambda p: (i.key for i in store.list(p)), store.get, prefix))
    path = Path(source)
    if path.is_file():
        return iter([(path.name, path.read_bytes())])
    if path.is_dir():
        return iter(objects_from_dir(path))
    raise BadInput(f"{source} is neither s3://…, a folder nor a file")


def draw_to_file(
    source: str,
    to: Path,
    n: int,
    seed: int,
    held_out: bool,
    short_below: int,
    medium_below: int,
    policy: Literal["shrink", "fail"],
) -> str:
    """Draw, write the sample and its manifest beside it, and say how it differs from the pool."""
    if to.suffix not in (".parquet", ".jsonl"):
        raise BadInput(f"{to} ends neither in .parquet nor in .jsonl")
    sample, manifest = draw_sample(
        _objects(source),
        n=n,
        seed=seed,
        held_out=held_out,
        policy=policy,
        source=source,
        strata=strata_from_bounds(short_below, medium_below),
    )
    save_sample(sample, to)
    save_manifest(manifest, to.with_suffix(".manifest.json"))
    return manifest.text()
