"""Runs the census: `python -m benchmarks.census [--src TREE] [--out FILE] [NAME]…`, see `--help`."""

from __future__ import annotations

import argparse
import importlib
import json
import logging
import os
import sys
from collections import Counter
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
# Imported before the first fork, so that no child does it again.
_KEPT: list[Any] = []
AHEAD = ("llama", "bert", "clip", "whisper", "qwen2_vl", "mixtral", "swin", "detr", "t5", "mamba2", "auto")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.census", description=__doc__)
    parser.add_argument("names", nargs="*", help="architectures; all where none is named")
    parser.add_argument("--src", type=Path, default=ROOT, help="the tree whose src/unsmooth is asked; default this one")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks/results/census.json", help="where the results go")
    parser.add_argument("--work", type=Path, default=ROOT / ".census", help="where the result of each lies until then")
    parser.add_argument("--group", default="transformers", help="transformers, or a group of other libraries")
    parser.add_argument("--part", default="1/1", help="such as 1/2: the first of two halves")
    parser.add_argument("--keep", action="store_true", help="keep results of an older census")
    parser.add_argument("--again", default="", help="with --keep: do those again whose verdict has this word in it")
    return parser.parse_args()


def _import_ahead() -> None:
    import torch

    timm = ROOT / ".apart/timm"
    if (timm / "installed").is_file():
        # Before transformers looks for it. torchvision's usual build asks for two operators that a CPU torch has not.
        sys.path.append(str(timm))
        if torch.version.cuda is None:
            library = torch.library.Library("torchvision", "DEF")
            for name in ("nms", "qnms"):
                library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
            _KEPT.append(library)
    import transformers

    import unsmooth
    import unsmooth.models
    import unsmooth.remedies

    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    logging.disable(logging.ERROR)
    importlib.import_module("torch._dynamo")
    for name in AHEAD:
        importlib.import_module(f"transformers.models.{name}.modeling_{name}")
    _warm_up()


def _warm_up() -> None:
    """Whatever is imported or cached at first use is so before the first fork."""
    import torch
    from transformers import BertConfig, BertModel

    import unsmooth
    from benchmarks.census.ask import examine

    config = BertConfig(hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32, vocab_size=50)
    unsmooth.remedies.names()
    examine(BertModel(config).eval(), {"input_ids": torch.arange(5, 26).reshape(3, 7)})


def main() -> int:
    """Run what is missing, then write all results in one file."""
    asked = _arguments()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    sys.path.insert(0, str(asked.src.resolve() / "src"))
    _import_ahead()
    import unsmooth
    from benchmarks.census import batches, build, hosts, pool  # noqa: F401, so that no child reads another version
    from benchmarks.census.ask import examine
    from benchmarks.census.batches import NoBatch
    from benchmarks.census.build import NoModel

    source = Path(unsmooth.__file__).parent
    stamp = {"asked": pool.code_hash(source)}
    if not asked.keep:
        stamp["census"] = pool.code_hash(Path(__file__).parent)

    def task(name: str) -> Any:
        def work(save: Any) -> dict[str, Any]:
            try:
                model, batch = hosts.made(name)
            except (NoModel, NoBatch) as error:
                return {"not built": str(error)}
            except Exception as error:
                return {"not built": f"{type(error).__name__}: {error}".replace("\n", " ")[:400]}
            about = {
                "class": type(model).__name__,
                "parameters": sum(one.numel() for one in model.parameters()),
                "batch": {field: list(getattr(value, "shape", ())) for field, value in batch.items()},
            }
            return {**about, **examine(model, batch, save=lambda known: save({**about, **known}))}

        return work

    part, parts = map(int, asked.part.split("/"))
    names = (asked.names or hosts.names())[part - 1 :: parts]
    folder = asked.work / stamp["asked"][:8] / asked.group
    pool.run(((name, task(name)) for name in names), folder, stamp, lambda line: print(line, flush=True), asked.again)
    found = [json.loads(file.read_text()) for file in sorted(folder.glob("*.json"))]
    if parts == 1 and not asked.names:
        asked.out.write_text(json.dumps(found, ensure_ascii=False, indent=1))
    print(Counter(one.get("verdict") or ("broke" if "broke" in one else "not built") for one in found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
