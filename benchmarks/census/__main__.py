"""Runs the census: `python -m benchmarks.census [--src TREE] [--out FILE] [NAME]…`, see `--help`."""

from __future__ import annotations

import argparse
import importlib
import json
import logging
import os
import sys
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from benchmarks.census import page, record

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks/results/census.json"
PAGE = ROOT / "docs/hosts/README.md"
EXTRACT = ROOT / "src/unsmooth/models/census.json"
# Imported before the first fork, so that no child does it again.
_KEPT: list[Any] = []
AHEAD = ("llama", "bert", "clip", "whisper", "qwen2_vl", "mixtral", "swin", "detr", "t5", "mamba2", "auto")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.census", description=__doc__)
    parser.add_argument("names", nargs="*", help="architectures; all where none is named")
    parser.add_argument("--src", type=Path, default=ROOT, help="the tree whose src/unsmooth is asked; default this one")
    parser.add_argument("--out", type=Path, default=RESULTS, help="where the results go")
    parser.add_argument("--work", type=Path, default=ROOT / ".census", help="where the result of each lies until then")
    parser.add_argument("--group", default="all", help="of one library: all, timm, diffusers …")
    parser.add_argument("--apart", type=Path, default=ROOT / ".apart", help="where `make apart` has put timm")
    parser.add_argument(
        "--others", type=Path, default=ROOT / ".apart/census", help="where `make apart` has put the others"
    )
    parser.add_argument("--page", action="store_true", help="only write the page anew")
    parser.add_argument("--seconds", type=int, default=25, help="of processor time for each")
    parser.add_argument("--keep", action="store_true", help="keep results of an older census")
    parser.add_argument("--again", default="", help="with --keep: do those again whose verdict has this word in it")
    return parser.parse_args()


def _import_ahead(asked: argparse.Namespace) -> None:
    import torch

    sys.path.append(str(asked.others))

    timm = asked.apart / "timm"
    if (timm / "installed").is_file():
        # Before transformers looks for it. torchvision's usual build asks for two operators that a CPU torch has not.
        sys.path.append(str(timm))
        if torch.version.cuda is None:
            library = torch.library.Library("torchvision", "DEF")
            for name in ("nms", "qnms"):
                library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
            _KEPT.append(library)
    import transformers

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
    if asked.page:
        publish()
        return 0
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    sys.path.insert(0, str(asked.src.resolve() / "src"))
    _import_ahead(asked)
    import unsmooth
    from benchmarks.census import batches, build, hosts, others, pool  # noqa: F401, so that no child reads another version
    from benchmarks.census.ask import examine
    from benchmarks.census.batches import NoBatchError
    from benchmarks.census.build import NoModelError

    source = Path(unsmooth.__file__).parent
    stamp = {"asked": pool.code_hash(source)}
    if not asked.keep:
        stamp["census"] = pool.code_hash(Path(__file__).parent)

    def task(name: str, make: Any) -> Any:
        def work(save: Any) -> dict[str, Any]:
            try:
                made = make()
            except (NoModelError, NoBatchError) as error:
                return {"not built": str(error)}
            except Exception as error:
                return {"not built": f"{type(error).__name__}: {error}".replace("\n", " ")[:400]}
            about = {
                "class": type(made.model).__name__,
                "parameters": sum(one.numel() for one in made.model.parameters()),
                "batch": {field: list(getattr(value, "shape", ())) for field, value in made.batch.items()},
            }

            def keep(known: dict[str, Any]) -> None:
                save({**about, **known})

            return {**about, **examine(made.model, made.batch, save=keep, data=made.data)}

        return work

    cases = {name: partial(hosts.made, name) for name in hosts.names()} | dict(others.cases())
    names = asked.names or [
        name for name in cases if asked.group in ("all", name.split("/")[0] if "/" in name else "transformers")
    ]
    folder = asked.work / stamp["asked"][:8]
    tasks = ((name, task(name, cases[name])) for name in names)
    pool.run(tasks, folder, stamp, partial(print, flush=True), asked.again, asked.seconds)
    results = [json.loads(file.read_text()) for file in sorted(folder.glob("*.json"))]
    census = record.whole([one for one in results if one["name"] in cases], versions(), f"{datetime.now(UTC):%Y-%m-%d}")
    print(json.dumps(census["counts"], indent=1))
    if not asked.names:
        record.write(census, asked.out)
        if asked.out == RESULTS:
            publish()
    return 0


def publish() -> None:
    """The page, and what comes with the package, from the results."""
    census = json.loads(RESULTS.read_text())
    PAGE.parent.mkdir(parents=True, exist_ok=True)
    PAGE.write_text(page.page(census))
    record.write(record.extract(census), EXTRACT)


def versions() -> dict[str, str]:
    """Of what was asked and what it was asked about."""
    found = {}
    for name in ("unsmooth", "torch", "transformers", "timm", "diffusers", "open_clip_torch", "sentence-transformers",
                 "x-transformers", "vit-pytorch"):  # fmt: skip
        with suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


if __name__ == "__main__":
    sys.exit(main())
