"""Which words after ``scan`` and ``explain`` are models and which is data; what a model is shown without data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unsmooth.cli.options import DEFAULT_MODEL
from unsmooth.errors import expected

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True)
class Asked:
    """Models to look at, and the data to show them; None where none was named."""

    models: tuple[str, ...]
    data: str | None

    def check_alone(self, **options: object) -> None:
        """Refuse options that make sense for one model only.

        Args:
            options: Values by the name of the option; None or empty where not given.
        """
        given = next((name for name, value in options.items() if value), None)
        if len(self.models) > 1 and given:
            raise expected(f"one model beside --{given}", f"{len(self.models)} models", "one model at a time")

    def shown_to(self, word: str, model: nn.Module, otherwise: Any) -> Any:
        """The data that was named; else the images that come with a demo model, else `otherwise`."""
        from unsmooth.models import demo

        if self.data is not None:
            return self.data
        return demo.shown(model) if demo.is_demo(word) else otherwise


def read_words(words: Sequence[str] | None) -> Asked:
    """Models first, then data.

    The first word is a model. A further one is, where it can be nothing else: ``demo:plain``, ``timm:NAME``, the name
    of a packaged model, a ``.gguf`` file, or a folder with a model in it.

    >>> read_words(["gpt2", "notes.txt"])
    Asked(models=('gpt2',), data='notes.txt')
    >>> read_words(["demo:plain", "demo:smooth", "photos"])
    Asked(models=('demo:plain', 'demo:smooth'), data='photos')
    """
    if not words:
        return Asked(_default_models(), None)
    models, rest = [words[0]], list(words[1:])
    while rest and _is_model(rest[0]):
        models.append(rest.pop(0))
    if len(rest) > 1:
        what = f"{rest[0]!r} and {rest[1]!r}"
        raise expected(
            "models, then one file, folder or text", what, "quotes around a text, ./ before a model's folder"
        )
    if len(set(models)) < len(models):
        raise expected("models that differ", " ".join(models), "each of them once")
    _check_demo(models)
    return Asked(tuple(models), rest[0] if rest else None)


def _default_models() -> tuple[str, ...]:
    from unsmooth.models import demo

    return tuple(demo.PREFIX + name for name in demo.NAMES) if demo.built() else (DEFAULT_MODEL,)


def _is_model(word: str) -> bool:
    from unsmooth.models import demo
    from unsmooth.models.packaged import find_packaged
    from unsmooth.models.timm_models import is_timm
    from unsmooth.networks.saving import is_network

    if demo.is_demo(word) or is_timm(word) or find_packaged(word) is not None:
        return True
    try:
        path = Path(word).expanduser()
        if path.is_file():
            return path.suffix.lower() == ".gguf"
        weights = any(path.glob("*.safetensors")) or any(path.glob("pytorch_model*.bin"))
        return is_network(path) or (weights and (path / "config.json").is_file())
    except (OSError, ValueError, RuntimeError):  # a text, which no system takes for a path
        return False


def _check_demo(models: Sequence[str]) -> None:
    """A typing error in the last one must not cost the work for the others."""
    from unsmooth.models import demo

    for word in filter(demo.is_demo, models):
        demo.folder(word)
