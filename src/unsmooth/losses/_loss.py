"""What a loss declares about itself, the table of all losses, and losses as text."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, ParamSpec, get_args

import torch
from torch import Tensor

from unsmooth.errors import expected
from unsmooth.functional._metric import with_checked_options
from unsmooth.registry import Registry
from unsmooth.spec import Option, Spec, checked, options_of, read

P = ParamSpec("P")

Reads = Literal["tokens", "layers", "views"]
"""What a loss is handed: the tokens of one layer, or the rows of a matrix; also those of the first layer; also those
of the same sequences in another pass."""
Basis = Literal["paper", "code", "reconstructed"]
BASES: Mapping[str, str] = {
    "paper": "as the paper writes it",
    "code": "as the authors' code does it",
    "reconstructed": "reconstructed: we know of no public source for the formula",
}


@dataclass(frozen=True)
class Loss:
    """A loss and what it declares: enough to print, test and use it without reading its code."""

    name: str
    function: Callable[..., Tensor]
    summary: str
    equation: str
    paper: str
    basis: Basis
    reads: Reads
    cost: str
    degenerate: str
    unknown: str = ""
    capturable: bool = True

    @property
    def options(self) -> dict[str, Option]:
        """Its options, with their defaults and what they may be; tensors that it reads are none of them."""
        found = options_of(self.function)
        return {name: option for name, option in found.items() if not name.endswith(("_BN", "_BND"))}

    def describe(self) -> dict[str, Any]:
        """All of it by name, for lists."""
        facts = ("name", "summary", "equation", "paper", "reads", "cost", "degenerate", "unknown")
        options = {name: option.default for name, option in self.options.items()}
        return {**{key: getattr(self, key) for key in facts}, "basis": BASES[self.basis], "options": options}


# Functions by the declaration above them: an entry point names the function.
_DECLARED: dict[Callable[..., Tensor], Loss] = {}


def _accept(found: Any) -> tuple[str, Loss]:
    """What an entry point may name: a function with `loss` above it."""
    declared = _DECLARED.get(found) if callable(found) else None
    if declared is None:
        raise expected("a function with @unsmooth.losses.loss(…) above it", repr(found), "the function itself")
    if declared.reads not in get_args(Reads):
        raise expected(f"reads as one of {', '.join(get_args(Reads))}", repr(declared.reads), "reads='tokens'")
    return declared.name, declared


LOSSES = Registry[Loss]("loss", group="unsmooth.losses", accept=_accept)


def loss(
    *,
    summary: str,
    equation: str,
    paper: str,
    cost: str,
    degenerate: str,
    basis: Basis = "paper",
    reads: Reads = "tokens",
    unknown: str = "",
    capturable: bool = True,
) -> Callable[[Callable[P, Tensor]], Callable[P, Tensor]]:
    """Register a function as a loss under its own name.

    Args:
        summary: What it does, in one line.
        equation: Its formula, for the default options.
        paper: Where it comes from.
        cost: Order of time for n tokens of d features.
        degenerate: What a single token, a single sequence and an empty mask give.
        basis: What the formula rests on, see `BASES`.
        reads: "tokens" for hidden states alone, "layers" with ``first_BND``, "views" with ``other_BND``.
        unknown: What the source leaves open, and what is done here.
        capturable: Whether a CUDA graph can hold it: it never waits for the device.
    """

    def register(plain: Callable[P, Tensor]) -> Callable[P, Tensor]:
        function, name = with_checked_options(plain), plain.__name__
        declared = Loss(name, function, summary, equation, paper, basis, reads, cost, degenerate, unknown, capturable)
        _DECLARED[function] = LOSSES.add(name, declared)
        return function

    return register


@dataclass(frozen=True)
class LossTerm:
    """A loss with its options fixed and its weight, as a recipe asks for it: ``cosine(weight=0.1, layer=-1)``.

    Args:
        loss: Which one.
        options: Its options that were given.
        weight: What it is multiplied by before it is added.
        layer: After which block: 1 is the first, 0 what enters it, -1 the last.
    """

    loss: Loss
    options: Mapping[str, Any] = field(default_factory=dict)
    weight: float = 1.0
    layer: int = -1

    def __str__(self) -> str:
        beside = {name: given for name, option in _OF_TERM.items() if (given := getattr(self, name)) != option.default}
        return str(Spec(self.loss.name, {**self.options, **beside}))

    def __call__(self, hidden_BND: Tensor, mask_BN: Tensor | None = None, **beside: Tensor) -> Tensor:
        """The weighted loss of hidden states; `beside` is what else it reads."""
        return self.weight * self.loss.function(hidden_BND, mask_BN, **beside, **self.options)

    def try_out(self) -> None:
        """Take the loss of a small made-up batch, so that options which only it can judge are refused before a run.

        >>> parse_loss("layer_contrast(neighbourhood=4)").try_out()
        Traceback (most recent call last):
        unsmooth.errors.UnsmoothError: Expected neighbourhood as an odd number from 3 on, or 0 but got 4. Try ...
        """
        hidden_BND = torch.arange(4 * 64 * 8.0).sin().view(4, 64, 8)  # 64 tokens are a square image too
        beside = {"layers": {"first_BND": hidden_BND.cos()}, "views": {"other_BND": hidden_BND.cos()}}
        self(hidden_BND, **beside.get(self.loss.reads, {}))


_OF_TERM = {name: Option.of(name, getattr(LossTerm, name), kind) for name, kind in (("weight", float), ("layer", int))}


def parse_loss(text: str) -> LossTerm:
    """Read ``name`` or ``name(weight=…, layer=…, option=value, …)``; words need no quotes.

    >>> term = parse_loss("dispersion(weight=0.5, form=cosine)")
    >>> term.loss.name, term.weight, term.layer, term.options
    ('dispersion', 0.5, -1, {'form': 'cosine'})
    >>> parse_loss("cosin")
    Traceback (most recent call last):
    unsmooth.errors.UnsmoothError: Expected a known loss but got 'cosin'. Did you mean 'cosine'? Known: ...
    """
    spec = read(text, "a loss such as cosine(weight=0.1)", "`unsmooth ls losses`")
    found = LOSSES[spec.name]
    given = checked(found.name, {**_OF_TERM, **found.options}, spec.options)
    of_term = {name: given.pop(name) for name in _OF_TERM if name in given}
    return LossTerm(found, given, **of_term)
