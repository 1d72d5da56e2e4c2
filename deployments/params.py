"""Reads a campaign's parameters from a file; errors name the key and the file."""

from __future__ import annotations

from pathlib import Path

import yaml
from pydantic import ValidationError

from infra.errors import BadInput, os_fault
from tasks.shared.parameters import CampaignParams


def load_params(path: Path) -> CampaignParams:
    """A campaign's parameters from a JSON or YAML file; errors name the key and the file."""
    try:
        data = yaml.safe_load(path.read_text())
        return CampaignParams.model_validate(data)
    except FileNotFoundError:
        raise BadInput(f"{path} does not exist") from None
    except OSError as error:
        raise os_fault(error, f"cannot read {path}") from None
    except UnicodeDecodeError as error:
        raise BadInput(f"{path} is no text: {error}") from None
    except yaml.YAMLError as error:
        raise BadInput(f"{path} is neither JSON nor YAML: {error}") from None
    except ValidationError as error:
        raise BadInput(f"{path}: {explain(error)}") from None


def explain(error: ValidationError) -> str:
    """A pydantic error as one line: where, what, and what was given."""
    parts = []
    for item in error.errors():
        where = ".".join(str(p) for p in item["loc"]) or "as a whole"
        given = "" if item["type"] in {"missing", "extra_forbidden"} else f" (got {str(item['input'])[:60]!r})"
        what = "is not a known key" if item["type"] == "extra_forbidden" else item["msg"]
        parts.append(f"{where}: {what}{given}")
    return "; ".join(parts)
