"""What a loss declares about itself, the table of all losses, and losses as text."""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, ParamSpec, get_args

import torch
from torch import Tensor

from unsmooth.errors import expected, unknown_name
from unsmooth.registry import Registry

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
    def options(self) -> dict[str, Any]:
        """Its options with their defaults; tensors that it reads are none of them."""
        found = self.function.__kwdefaults__ or {}
        return {name: default for name, default in found.items() if not name.endswith(("_BN", "_BND"))}

    def describe(self) -> dict[str, Any]:
        """All of it by name, for lists."""
        facts = ("name", "summary", "equation", "paper", "reads", "cost", "degenerate", "unknown")
        return {**{key: getattr(self, key) for key in facts}, "basis": BASES[self.basis], "options": self.options}


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

    def register(function: Callable[P, Tensor]) -> Callable[P, Tensor]:
        name = function.__name__
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

    def __call__(self, hidden_BND: Tensor, mask_BN: Tensor | None = None, **beside: Tensor) -> Tensor:
        """The weighted loss of hidden states; `beside` is what else it reads."""
        return self.weight * self.loss.function(hidden_BND, mask_BN, **beside, **self.options)

    def try_out(self) -> None:
        """Take the loss of a small made-up batch, so that options which only it can judge are refused before a run.

        >>> parse_loss("dispersion(form=l3)").try_out()
        Traceback (most recent call last):
        unsmooth.errors.UnsmoothError: Expected a known form but got 'l3'. Did you mean 'l2'? Known: ...
        """
        hidden_BND = torch.arange(4 * 64 * 8.0).sin().view(4, 64, 8)  # 64 tokens are a square image too
        beside = {"layers": {"first_BND": hidden_BND.cos()}, "views": {"other_BND": hidden_BND.cos()}}
        self(hidden_BND, **beside.get(self.loss.reads, {}))


_FORM = "a loss such as cosine(weight=0.1)"


def parse_loss(text: str) -> LossTerm:
    """Read ``name`` or ``name(weight=…, layer=…, option=value, …)``; words need no quotes.

    >>> term = parse_loss("dispersion(weight=0.5, form=cosine)")
    >>> term.loss.name, term.weight, term.layer, term.options
    ('dispersion', 0.5, -1, {'form': 'cosine'})
    >>> parse_loss("cosin")
    Traceback (most recent call last):
    unsmooth.errors.UnsmoothError: Expected a known loss but got 'cosin'. Did you mean 'cosine'? Known: ...
    """
    try:
        node = ast.parse(str(text).strip(), mode="eval").body
    except (SyntaxError, ValueError):
        raise expected(_FORM, repr(text), "`unsmooth ls losses`") from None
    if isinstance(node, ast.Name):
        return LossTerm(LOSSES[node.id])
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and not node.args):
        raise expected(_FORM, repr(text), "`unsmooth ls losses`")
    found = LOSSES[node.func.id]
    given: dict[str, Any] = {}
    for keyword in node.keywords:
        option = str(keyword.arg)
        if option in given:
            raise expected(f"{option} once", repr(text), f"one {option}=")
        given[option] = _literal(keyword.value, text)
    defaults = {"weight": 1.0, "layer": -1, **found.options}
    for option, value in given.items():
        if option not in defaults:
            raise unknown_name(f"option of {found.name}", option, defaults)
        _check_kind(option, value, defaults[option])
    weight, layer = float(given.pop("weight", 1.0)), given.pop("layer", -1)
    if not math.isfinite(weight):
        raise expected("weight as a number", weight, "weight=0.1")
    return LossTerm(found, given, weight, layer)


def _check_kind(option: str, value: Any, default: Any) -> None:
    """Refuse an option that is not of the kind of its default; None says nothing about kinds."""
    number, hint = not isinstance(value, bool), f"{option}={default}"
    if isinstance(default, bool) and not isinstance(value, bool):
        raise expected(f"{option} as True or False", repr(value), hint)
    if type(default) is int and not (number and isinstance(value, int)):
        raise expected(f"{option} as a whole number", repr(value), hint)
    if isinstance(default, float) and not (number and isinstance(value, int | float)):
        raise expected(f"{option} as a number", repr(value), hint)
    if isinstance(default, str) and not isinstance(value, str):
        raise expected(f"{option} as a word", repr(value), hint)


def _literal(node: ast.expr, text: str) -> Any:
    if isinstance(node, ast.Name):
        return node.id
    try:
        return ast.literal_eval(node)
    except ValueError:
        raise expected("numbers, words, True, False or None as options", repr(text), "`unsmooth ls losses`") from None
