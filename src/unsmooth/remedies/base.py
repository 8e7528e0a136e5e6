"""What a remedy is: an edit of one block, a module with its own parameters that lives in the block it changes.

A remedy is one class. It declares where it comes from and what it costs, takes its options as keyword-only arguments
of `__init__`, and overrides the methods of the places where it acts. Everything else (hooks, masks, caches, undoing,
saving) is done for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, Literal

from torch import Tensor, nn

from unsmooth.errors import UnsmoothError, expected
from unsmooth.models.value_projection import ValueProjection
from unsmooth.registry import Registry
from unsmooth.remedies.call import Call
from unsmooth.remedies.mixing import Mix
from unsmooth.remedies.site import Site
from unsmooth.spec import options_of

PLACES: Mapping[str, str] = {
    "on_entering": "the stream before the block, which may be given more tokens",
    "on_values": "the values, (batch, tokens, key/value heads, head dim), before attention mixes them",
    "on_mixing": "attention itself, given as a function that may run again with other queries, keys, values or logits",
    "on_heads": "what each head gives, (batch, tokens, query heads, head dim), before the output projection",
    "on_attention": "the attention branch, (batch, tokens, dim), before it is added to the stream",
    "on_cross": "the branch of cross-attention, in blocks that have one, before it is added to the stream",
    "on_mlp": "the MLP branch before it is added to the stream",
    "on_other": "each further branch, such as that of a convolution, before it is added to the stream, by its number",
    "on_attention_sum": "the stream with the attention branch added; what is returned is added to it",
    "on_mlp_sum": "in post-norm blocks, the stream with the MLP branch added; what is returned is added to it",
    "on_attention_norm_input": "what attention's norm reads; the stream, where it goes on beside it, stays as it is",
    "on_mlp_norm_input": "the same of the MLP's norm",
    "on_attention_norm": "the output of attention's norm: what attention reads, or the stream after the addition",
    "on_mlp_norm": "the output of the MLP's norm",
    "on_block": "what the block hands on",
    "on_leaving": "the same after all edits of it, which may lose the tokens that it was given",
}

CausalForm = Literal["unchanged", "prefix mean", "masked", "none"]


class Edit(nn.Module):
    """What one remedy does to one block.

    Args:
        site: The block. Nothing may be changed in it before `install`.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    paper: ClassVar[str]
    equation: ClassVar[str]
    # Options at which the model does exactly what it did before; None where there are none.
    neutral: ClassVar[Mapping[str, Any] | None] = None
    # How it keeps from seeing the future in a decoder: nothing to keep, a prefix mean, a causal mask; or it cannot.
    causal: ClassVar[CausalForm]
    # How it becomes plain weights, in words; None where it cannot.
    folds: ClassVar[str | None] = None
    cost: ClassVar[str]
    # What each option means.
    options: ClassVar[Mapping[str, str]] = {}
    # Those that compute a weight fold before those that scale one.
    fold_order: ClassVar[int] = 1

    # Set when it is applied: the options it was given, its place in the order of what was applied, and the pattern
    # over module paths by which the blocks were found, where one was given.
    chosen: dict[str, Any]
    order: int
    pattern: str | None = None
    # Whether it would let a token see later ones where nobody has allowed that.
    would_leak: bool = False

    def __init__(self, site: Site) -> None:
        super().__init__()

    # What it does while the model runs: overridden where it acts.

    def on_entering(self, stream_BND: Tensor, call: Call) -> Tensor:
        """Edit the stream before the block reads it; the call is known but for what comes of that."""
        raise NotImplementedError

    def on_values(self, values_BNKE: Tensor, call: Call) -> Tensor:
        """Edit the values before attention mixes them."""
        raise NotImplementedError

    def on_mixing(self, mix: Mix, call: Call) -> Tensor:
        """What each head gives, (batch, query heads, tokens, head dim), in place of `mix()`, what the host computes."""
        raise NotImplementedError

    def on_heads(self, heads_BNHE: Tensor, call: Call) -> Tensor:
        """Edit what each head gives; `call.values` has this call's values."""
        raise NotImplementedError

    def on_attention(self, branch_BND: Tensor, call: Call) -> Tensor:
        """Edit the attention branch before it is added to the stream."""
        raise NotImplementedError

    def on_cross(self, branch_BND: Tensor, call: Call) -> Tensor:
        """Edit the branch of cross-attention before it is added to the stream."""
        raise NotImplementedError

    def on_mlp(self, branch_BND: Tensor, call: Call) -> Tensor:
        """Edit the MLP branch before it is added to the stream."""
        raise NotImplementedError

    def on_other(self, branch_BND: Tensor, call: Call, number: int) -> Tensor:
        """Edit a branch beside these, counted from 0."""
        raise NotImplementedError

    def on_attention_sum(self, sum_BND: Tensor, call: Call) -> Tensor:
        """What to add to the stream once the attention branch is in it, after all edits of that branch."""
        raise NotImplementedError

    def on_mlp_sum(self, sum_BND: Tensor, call: Call) -> Tensor:
        """What to add to the stream of a post-norm block once the MLP branch is in it, before the norm."""
        raise NotImplementedError

    def on_attention_norm_input(self, read_BND: Tensor, call: Call) -> Tensor:
        """Edit what attention's norm reads: the stream, or in post-norm blocks its sum with the branch."""
        raise NotImplementedError

    def on_mlp_norm_input(self, read_BND: Tensor, call: Call) -> Tensor:
        """Edit what the MLP's norm reads."""
        raise NotImplementedError

    def on_attention_norm(self, normed_BND: Tensor, call: Call) -> Tensor:
        """Edit the output of attention's norm."""
        raise NotImplementedError

    def on_mlp_norm(self, normed_BND: Tensor, call: Call) -> Tensor:
        """Edit the output of the MLP's norm."""
        raise NotImplementedError

    def on_block(self, out_BND: Tensor, call: Call) -> Tensor:
        """Edit what the block hands on."""
        raise NotImplementedError

    def on_leaving(self, out_BND: Tensor, call: Call) -> Tensor:
        """Edit what the block hands on, after all that edit it as it is."""
        raise NotImplementedError

    def places(self) -> tuple[str, ...]:
        """Where this edit acts: the methods above that its class overrides, or fewer where options say so."""
        return tuple(place for place in PLACES if getattr(type(self), place) is not getattr(Edit, place))

    def hands_on(self) -> str | None:
        """The name under which its blocks hand each other, in one pass, something with a place for every token.

        Blocks with the same name must have the same tokens. None where nothing is handed on.
        """
        return None

    @classmethod
    def prepare(cls, edits: Sequence[Edit]) -> None:
        """Called before each pass of the stack with all its edits of this class: for what is done for all at once."""

    # What it does to the block once.

    @classmethod
    def refusal(cls, site: Site, options: Mapping[str, Any]) -> str | None:
        """Why this block cannot have it, or None where it can."""
        return None

    @classmethod
    def recorded(cls, options: Mapping[str, Any]) -> dict[str, Any]:
        """The options of a saved model, which may be of an earlier version, as this one has them."""
        return dict(options)

    @classmethod
    def leaks(cls, options: Mapping[str, Any]) -> bool:
        """Whether a token would see later ones in a causal model, with these options."""
        return cls.causal == "none"

    @classmethod
    def keeps_to_map(cls) -> bool:
        """Whether, where it does the mixing, no token gets anything of one that attention's own map hides from it.

        So it is where the map's own mask hides the future; then it may do the mixing inside windows of an image too.
        """
        return cls.causal == "masked"

    def writes(self, site: Site) -> Iterable[nn.Parameter]:
        """The weights of the block that `install` writes to, which it is not given where other modules hold them too.

        Those that are only read, or taken away for a while, are none of them.
        """
        return ()

    def alters(self, site: Site) -> Iterable[nn.Module]:
        """The modules of the block in which `install` changes more than weights: what they do, or read.

        It is not given where they are a part of another block too, which would be changed along with this one.
        """
        return ()

    def install(self, site: Site) -> None:
        """Change weights, where the remedy does; called once, after all checks have passed."""

    def remove(self, site: Site) -> None:
        """Put everything back that `install` changed."""

    @classmethod
    def arrange(cls, edits: Sequence[Edit], sites: Sequence[Site]) -> None:
        """Called once, with all the edits that one call of `apply` put into a stack: for what none settles alone."""

    @classmethod
    def calibrate(cls, edits: Sequence[Edit], run: Callable[[], object]) -> None:
        """Set what depends on data, for a stack's edits of this class; `run` passes the data through the model."""

    def fold(self, site: Site) -> None:
        """Write what the edit does into the block's own weights; then it is taken out."""
        raise NotImplementedError

    def folds_into(self, site: Site) -> Iterable[nn.Parameter]:
        """The weights of the block that `fold` writes to, refused where other modules hold them too; by default all."""
        return site.block.parameters()

    def why_not_foldable(self) -> str | None:
        """Why this edit cannot become plain weights, or None where it can."""
        return None if self.folds else "what it does depends on the tokens, which no weight can hold"

    def adopt(self, state: dict[str, Any], prefix: str, block_prefix: str, site: Site) -> None:
        """Make a plain checkpoint fit: called where `state` has nothing under `prefix`, the edit's own.

        By default the edit keeps the parameters it has.
        """
        for key, value in self.state_dict().items():
            state[prefix + key] = value

    def effective(self, values: ValueProjection) -> ValueProjection:
        """The value and output weights with what this edit does to them, for those who explain a model."""
        return values

    def effective_cross(self, values: ValueProjection) -> ValueProjection:
        """The same of cross-attention."""
        return values

    def report(self) -> Mapping[str, float]:
        """Numbers worth knowing about this edit: distances, condition numbers."""
        return {}


def option_defaults(kind: type[Edit]) -> dict[str, Any]:
    """The options of a remedy with their defaults: the keyword-only arguments of its `__init__`."""
    return {name: option.default for name, option in options_of(kind.__init__).items()}


def _accept(found: Any) -> tuple[str, type[Edit]]:
    """What an entry point may name: a remedy that says what it is."""
    if not (isinstance(found, type) and issubclass(found, Edit)):
        raise expected("a subclass of unsmooth.remedies.Edit", repr(found), "the class itself")
    missing = [name for name in ("name", "summary", "paper", "equation", "causal", "cost") if not hasattr(found, name)]
    missing += [f"options[{name!r}]" for name in option_defaults(found) if name not in found.options]
    if missing:
        raise expected(f"a remedy that says its {', '.join(missing)}", f"{found.__name__} without", "adding them")
    return found.name, found


REMEDIES = Registry[type[Edit]]("remedy", home="unsmooth.remedies.catalogue", group="unsmooth.remedies", accept=_accept)


def remedy(edit: type[Edit]) -> type[Edit]:
    """Register an edit under its name, as a class decorator."""
    return REMEDIES.add(edit.name, edit)


def leak(where: str, kind: type[Edit]) -> UnsmoothError:
    """What to raise where a remedy would let a token see later ones and nobody has allowed it."""
    what, hint = f"a remedy with a causal form {where}", "allow_leak=True if that is what you want"
    if kind.causal == "none":
        return expected(what, f"{kind.name}, which lets a token see later ones", hint)
    return expected(
        what, f"{kind.name} with options that let a token see later ones", f"its default options, or {hint}"
    )
