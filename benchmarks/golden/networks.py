"""What the library makes of networks: scans, explanations and remedies, on tiny models and those that come along."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from tests.remedies.harness import Case
from tests.remedies.hosts import BY_NAME
from tests.remedies.settings import SETTINGS

import unsmooth
from benchmarks.golden.digest import Scrub
from unsmooth.errors import UnsmoothError
from unsmooth.functional import METRICS
from unsmooth.models import demo
from unsmooth.presets import PRESETS

DEMO = ("demo:plain", "demo:sharpen", "demo:smooth")
SCANNED = ("bert", "vit", "gpt2", "llama", "t5", "whisper", "swin", "mixtral", "gemma2", "own_decoder_relative")
PADDED = ("bert", "gpt2", "own_encoder_peri")
PUBLISHED_ON = ("vit", "bert")
EXPLAINED = ("vit", "gpt2", "llama", "bert", "own_encoder_post", "own_decoder_relative", "torch_post", "gemma2")
REMEDIED = ("vit", "gpt2", "llama", "own_encoder_post", "own_decoder_relative")
Part = Iterator[tuple[str, Any]]


def scans(folder: Path) -> Part:
    """Forty and more: every kind of stack, all sites, all metrics, padding, every published definition."""
    for name in DEMO:
        yield f"default of {name}", _scan(folder, name, "images", max_batches=2)
    for name in SCANNED:
        yield f"every site of {name}", _scan(folder, *_shown(name), sites=("all",))
    for name in PADDED:
        yield f"padding in {name}", _scan(folder, *_shown(name, padded=True), baseline=True)
        yield f"all metrics on {name}", _scan(folder, *_shown(name), metrics=list(METRICS))
    for name in PUBLISHED_ON:
        for preset in PRESETS:
            yield f"{preset} on {name}", _scan(folder, *_shown(name), preset=preset)


def explanations(folder: Path) -> Part:
    """Twelve: from weights alone, and with data."""
    for name in DEMO:
        yield f"{name} alone", _explain(folder, name, None)
    yield "demo:plain on its images", _explain(folder, "demo:plain", "images", max_batches=1, batch_size=2)
    for name in EXPLAINED:
        yield name, _explain(folder, *_shown(name))


def remedies(folder: Path) -> Part:
    """Every way of every remedy on five hosts: outputs, gradients, and what is saved."""
    for remedy, variants in SETTINGS.items():
        for host in REMEDIED:
            found = {variant: _remedied(Case(remedy, variant, BY_NAME[host])) for variant in variants}
            yield f"{remedy} on {host}", found


def _shown(name: str, padded: bool = False) -> tuple[torch.nn.Module, list[dict[str, Any]]]:
    host = BY_NAME[name]
    inputs = host.inputs(rows=4)
    real = torch.arange(inputs.shape[1]) < torch.tensor([8, 5, 6, 7])[:, None] if padded else None
    return host.model(), [host.call(inputs, real)]


def _scan(folder: Path, model: Any, data: Any, **options: Any) -> Any:
    model, data = _opened(model, data)
    try:
        found = unsmooth.scan(model, data, progress=False, name="golden", **options)
    except UnsmoothError as error:
        return str(error)
    return _saved_and_read(found, unsmooth.load_scan, folder)


def _explain(folder: Path, model: Any, data: Any, **options: Any) -> Any:
    model, data = _opened(model, data)
    try:
        found = unsmooth.explain(model, data, progress=False, name="golden", **options)
    except UnsmoothError as error:
        return str(error)
    return _saved_and_read(found, unsmooth.load_explanation, folder)


def _opened(model: Any, data: Any) -> tuple[Any, Any]:
    if not isinstance(model, str):
        return model, data
    loaded = unsmooth.load(model)
    return loaded, None if data is None else demo.batches(loaded, 16, batch_size=8)


def _saved_and_read(found: Any, read: Any, folder: Path) -> Any:
    """The files, and that the same files come of what is read back from them."""
    scrub, places = Scrub(folder), [folder / "saved", folder / "again"]
    found.save(places[0])
    read(places[0]).save(places[1])
    return {place.name: scrub.files(place) for place in places}


def _remedied(case: Case) -> Any:
    try:
        model = case.remedied()
        found = case.host.output(model.train(), case.host.call(case.host.inputs()))
        found.square().sum().backward()
    except UnsmoothError as error:
        return str(error)
    gradients = {name: one.grad for name, one in model.named_parameters() if one.grad is not None}
    return {"output": found, "gradients": gradients, "state": model.state_dict()}
