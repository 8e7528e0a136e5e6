r"""The sign of the norm's weights, a lever of Dovonon, Bronstein & Kusner 2024 (arXiv 2401.04301).

.. math:: X + A\,\mathrm{N}(X; \gamma)\,H, \qquad \mathrm{N}(X; \gamma) = \hat X\,\mathrm{diag}(\gamma)

What decides whether such a layer makes tokens alike is the spectrum of diag(γ)H, so −γ turns every eigenvalue around: a
layer that smooths, sharpens, and the other way round. Their analysis is of the norm in front of attention, the default
here; the bias of a norm keeps its sign. ``sign="negative"`` and ``sign="positive"`` make all weights of one sign, by
turning around those of the other.

The weights are changed once, in their place, and trained on from there. Undoing it turns the same ones around again.
A checkpoint is known by the signs that the remedy adds to `state_dict`; one without them, such as a copy of
`named_parameters` alone, is taken for the plain model's, and its weights are turned around as they are loaded.

Neutral at ``sign="keep"``. Only for blocks with their norms before the branches: after an addition, γ multiplies the
stream itself. Causal: nothing looks across tokens. Cost: none.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, ClassVar, Literal, TypeAlias

import torch
from torch import Tensor, nn

from unsmooth.models.block_parts import adds_one, part
from unsmooth.remedies.base import CausalForm, Edit, remedy
from unsmooth.remedies.norms import are_dropped
from unsmooth.remedies.site import Site

_Which: TypeAlias = Literal["attention", "mlp", "both"]
_WHICH: Mapping[_Which, tuple[int, ...]] = {"attention": (0,), "mlp": (1,), "both": (0, 1)}


@remedy
class NormSigns(Edit):
    """Turn the weights of attention's norm around.

    Example:
        >>> import unsmooth
        >>> layer = torch.nn.TransformerEncoderLayer(2, nhead=1, batch_first=True, norm_first=True)
        >>> model = torch.nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
        >>> _ = unsmooth.apply(model, "norm_signs", layers=1)
        >>> [block.norm1.weight.tolist() for block in model.layers]
        [[1.0, 1.0], [-1.0, -1.0], [1.0, 1.0]]
    """

    name = "norm_signs"
    summary = "the weights of the norm in front of attention change their sign"
    paper = "Dovonon, Bronstein & Kusner 2024, arXiv 2401.04301"
    equation = "x + A·N(x; −γ)·H"
    neutral: ClassVar[Mapping[str, Any] | None] = {"sign": "keep"}
    causal: ClassVar[CausalForm] = "unchanged"
    folds = "it is in the weights from the start"
    cost = "none"
    options: ClassVar[Mapping[str, str]] = {
        "sign": "'flip' (−γ), 'negative' (−|γ|), 'positive' (|γ|) or 'keep'",
        "norm": "whose norm: 'attention' (as in the paper), 'mlp' or 'both'",
    }
    # There would be no weights to turn around again.
    needs_norms: ClassVar[bool] = True

    def __init__(
        self, site: Site, *, sign: Literal["flip", "negative", "positive", "keep"] = "flip", norm: _Which = "attention"
    ) -> None:
        super().__init__(site)
        self.sign = sign
        # Once each: turned around twice, the one that attention and MLP may share would be as it was.
        self.paths = tuple(dict.fromkeys(site.wiring.norms[index] for index in _WHICH[norm]))
        for index, path in enumerate(self.paths):
            # A part of the state, so that a checkpoint of the changed model is told from one of the plain model.
            self.register_buffer(f"signs_{index}", self._signs_for(_weight(site, path)))

    @classmethod
    def refusal(cls, site: Site, options: Mapping[str, Any]) -> str | None:
        """Where a norm's weight multiplies something else than what a branch reads, or is none."""
        if site.wiring.style == "post":
            return "its norms stand after the additions, so that their weights multiply the stream itself"
        if are_dropped(site):
            return "another remedy has dropped its norms"
        first, second = site.wiring.norms
        if first == second and options.get("norm") != "both":
            return 'attention and MLP read one norm; norm="both" works'
        if not (first and second):
            return "attention or MLP reads the stream without a norm"
        for path in (first, second):
            if getattr(part(site.block, path), "weight", None) is None:
                return f"its norm {path!r} has no weights"
            if adds_one(part(site.block, path)):
                return f"its norm {path!r} multiplies by one more than its weights, so that no sign is that of γ"
        return None

    def writes(self, site: Site) -> Iterable[nn.Parameter]:
        """Those of the norms: turned around for two blocks, they would be as they were."""
        return site.weights_at(*(f"{path}.weight" for path in self.paths))

    def install(self, site: Site) -> None:
        """Turn them around."""
        self._turn(site)

    def remove(self, site: Site) -> None:
        """Turn the same ones around again."""
        self._turn(site)

    def fold(self, site: Site) -> None:
        """Nothing is left to do."""

    def folds_into(self, site: Site) -> Iterable[nn.Parameter]:
        """None."""
        return ()

    @torch.no_grad()
    def adopt(self, state: dict[str, Any], prefix: str, block_prefix: str, site: Site) -> None:
        """The weights of a plain checkpoint are turned around too."""
        for path, signs_D in self._each():
            key = f"{block_prefix}{path}.weight"
            found = state.get(key)
            if isinstance(found, Tensor) and found.shape == signs_D.shape:
                signs_D.copy_(self._signs_for(found))
                state[key] = found * signs_D.to(found)
        super().adopt(state, prefix, block_prefix, site)

    def report(self) -> Mapping[str, float]:
        """How many weights were turned around, as a share."""
        return {f"turned of {path}": float((signs_D < 0).float().mean()) for path, signs_D in self._each()}

    def _signs_for(self, weight_D: Tensor) -> Tensor:
        """By what weights are multiplied, 1 or −1, so that once more is back."""
        turned = {
            "flip": torch.ones_like(weight_D, dtype=torch.bool),
            "negative": weight_D > 0,
            "positive": weight_D < 0,
            "keep": torch.zeros_like(weight_D, dtype=torch.bool),
        }[self.sign]
        return 1.0 - 2.0 * turned.to(weight_D.dtype)

    @torch.no_grad()
    def _turn(self, site: Site) -> None:
        for path, signs_D in self._each():
            _weight(site, path).mul_(signs_D)

    def _each(self) -> Iterator[tuple[str, Tensor]]:
        return ((path, getattr(self, f"signs_{index}")) for index, path in enumerate(self.paths))


def _weight(site: Site, path: str) -> Tensor:
    norm: Any = part(site.block, path)
    weight: Tensor = norm.weight.data
    return weight
