"""Remakes the stored outputs that tests compare with: `plans`; with transformers `models`, `embeddings`, `minilm`."""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from pathlib import Path

REFERENCE = Path(__file__).resolve().parent.parent / "tests" / "reference"
PLANS = REFERENCE.parent / "golden" / "plans"


def plans() -> None:
    """The plan text of every tiny checkpoint."""
    from ramet.config import ModelSection
    from ramet.engine_load import open_model
    from ramet.models import ModelConfig, build_plan
    from ramet.plan.text import to_text

    PLANS.mkdir(parents=True, exist_ok=True)
    for config in sorted((REFERENCE / "checkpoints").glob("*/config.json")):
        plan = build_plan(ModelConfig.from_hf(json.loads(config.read_text(encoding="utf-8"))))
        (PLANS / f"{config.parent.name}.txt").write_text(to_text(plan), encoding="utf-8")
    for config in sorted((REFERENCE / "embeddings").glob("*/config.json")):
        opened = open_model(ModelSection(model_path=str(config.parent)))
        (PLANS / f"embed-{config.parent.name}.txt").write_text(to_text(opened.plan), encoding="utf-8")


def models() -> None:
    """Tiny random checkpoints and the greedy tokens of transformers on them."""
    importlib.import_module("golden_models").make(REFERENCE)


def embeddings() -> None:
    """Tiny random models for embeddings and reranking, and the vectors of transformers on them."""
    importlib.import_module("golden_embeddings").make(REFERENCE)


def minilm(folder: Path) -> None:
    """The vectors of transformers on a real model, all-MiniLM-L6-v2, which lies in `folder`."""
    importlib.import_module("golden_embeddings").make_minilm(REFERENCE, folder)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("plans", "models", "embeddings", "minilm"))
    parser.add_argument("folder", nargs="?", type=Path, help="minilm: where the model lies")
    given = parser.parse_args()
    sys.path.insert(0, str(Path(__file__).parent))
    if given.what == "minilm":
        if given.folder is None:
            parser.error("minilm needs the directory of the model, as `ramet serve --model-path` fetched it")
        minilm(given.folder)
    else:
        {"plans": plans, "models": models, "embeddings": embeddings}[given.what]()


if __name__ == "__main__":
    main()
