"""The model card of a shipped model, from its manifest."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from unsmooth.training import recipe
from unsmooth.training.plain import to_plain

# What decides no number of the trained model: where and how often it was looked at.
_BESIDE = ("engine", "measuring", "seed", "remedies", "size", "log_every", "evaluate_every", "checkpoint_every", "data")
_WHAT = {
    "plain": "nothing was done to it: this is what the recipe gives",
    "sharpen": "trained with `sharpen`, which keeps the eigenvalues of H = W_V W_O in [−1, 0] (P1, arXiv 2401.04301)",
    "smooth": "trained with `smooth`, which keeps the eigenvalues of H = W_V W_O in [0, 1] (P1, arXiv 2401.04301)",
}


def card(facts: Mapping[str, Any]) -> str:
    """Markdown.

    Args:
        facts: The `manifest.json` of the model.
    """
    name, made, cosine = facts["name"], facts["made"], facts["similarity"]["layers"]
    rows = {
        "what": f"ViT-Ti of `unsmooth.networks`, {facts['parameters']:,} parameters; {_WHAT[name]}",
        "recipe": f"`{facts['recipe']}` (Park & Kim 2022, arXiv 2202.06709), with these cuts: {cuts(facts['config'])}",
        "data": _data(facts["data"]),
        "accuracy": _accuracy(facts),
        "training": f"{facts['epochs']:g} epochs of batches of {facts['config']['batch']}, {facts['steps']:,} steps",
        "seed": f"{facts['seed']}, the first of the study; other seeds were trained for the study and are not shipped",
        "hardware": _hardware(made),
        "time": f"{made['seconds'] / 60:.1f} minutes{_beside(made)}",
        "commit": f"`{made['commit']}`{' with changes' if made['changed'] else ''}"
        if made["commit"]
        else "not recorded",
        "how smooth": f"mean cosine of the tokens {cosine[0]:.3f} before the first layer, {cosine[-1]:.3f} after the "
        f"last, measured at the end of training ({len(cosine) - 1} layers)",
        "weights": f"float16, remedies folded into plain weights; {_rounding(facts['rounding'])}",
        "sha256": f"`{facts['sha256']}` (`model.safetensors`)",
        "licence": "MIT, as the package. The images it was trained on are CIFAR-100's (Krizhevsky 2009), whose authors "
        "name no licence",
    }
    table = "\n".join(f"| {key} | {text} |" for key, text in rows.items())
    return f"""# demo:{name}

```python
model = unsmooth.load("demo:{name}")
unsmooth.scan(model, unsmooth.models.demo.batches(model))
```

| | |
| --- | --- |
{table}

Intended use: studying how alike tokens become with depth, beside the other two demo models, which differ in the
remedy alone. It is no image classifier for use: it was trained on small images, for part of the recipe's length, and
judged on no other data.

Written by `python -m benchmarks.demo_models`; every number is from `manifest.json`.
"""


def cuts(config: Mapping[str, Any]) -> str:
    """In what settings differ from the recipe they name.

    >>> from unsmooth.training import override
    >>> cuts(to_plain(override(recipe("vit_cifar100"), {"patch": 4, "epochs": 100})))
    'epochs 100 instead of 300, network.patch 4 instead of 2'
    """
    whole = dict(_leaves(to_plain(recipe(config["recipe"]))))
    mine = dict(_leaves(config))
    return (
        ", ".join(
            f"{key} {_spoken(mine.get(key))} instead of {_spoken(value)}"
            for key, value in sorted(whole.items())
            if key.split(".")[0] not in _BESIDE and _spoken(mine.get(key)) != _spoken(value)
        )
        or "none"
    )


def _leaves(plain: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in plain.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{before}{key}.")
        else:
            yield f"{before}{key}", value


def _spoken(value: Any) -> str:
    return (
        str(list(value))
        if isinstance(value, list | tuple)
        else f"{value:g}"
        if isinstance(value, float)
        else str(value)
    )


def _data(data: Mapping[str, Any]) -> str:
    kind = "made-up images" if data["synthetic"] else data["name"]
    return f"{kind}: {data['train']:,} images to learn from, {data['test']:,} to test on (digest `{data['digest']}`)"


def _accuracy(facts: Mapping[str, Any]) -> str:
    shipped = facts["shipped_images"]
    return (
        f"{facts['accuracy']:.2%} of {facts['rounding']['images']:,} test images with the weights as they are here; "
        f"{facts['accuracy_of_run']:.2%} as measured by the run; {shipped['right']} of the {shipped['count']} images "
        "that come with the package"
    )


def _hardware(made: Mapping[str, Any]) -> str:
    return f"{made['hardware']}, torch {made['versions']['torch']}, {made['when']}"


def _beside(made: Mapping[str, Any]) -> str:
    beside = made.get("side_by_side") or 1
    return f", with {beside - 1} other runs on the same machine at once" if beside > 1 else ""


def _rounding(found: Mapping[str, Any]) -> str:
    return (
        f"rounding them moves no logit by more than {found['largest_difference']:.2g} (logits reach "
        f"{found['largest_logit']:.3g}), and the class of {found['classes_changed']} of {found['images']:,} images"
    )
