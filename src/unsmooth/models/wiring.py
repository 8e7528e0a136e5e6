"""How a block is put together, for those who change it: its projections, norms and MLP by path."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor, nn

from unsmooth.errors import UnsmoothError, expected
from unsmooth.models.block_parts import Weights, optional, refuse, weight_at
from unsmooth.models.qkv_layouts import SEPARATE, Heads, Layout, read_values
from unsmooth.models.value_projection import ValueProjection


@dataclass(frozen=True)
class ValueParts:
    """The weights by which attention makes values and writes into the stream, proved; paths are relative to the block.

    Args:
        heads: How many heads of queries and of keys and values, and how wide each is.
        value: The module that holds the weights which make the values.
        layout: Where the values are among the outputs of those weights.
        output: The projection back to the stream; its input is the heads side by side.
        value_weight: The name of the weight inside `value`.
        value_bias: The name of its bias.
        values_at: The module whose output holds the values, where it is not `value` itself.
        heads_at: The module whose input is the heads side by side, where it is not `output` itself.
        logit_scale: What queries times keys are multiplied by; None for the usual 1/√(head dim).
    """

    heads: Heads
    value: str
    layout: Layout
    output: str
    value_weight: str = "weight"
    value_bias: str = "bias"
    values_at: str | None = None
    heads_at: str | None = None
    logit_scale: float | None = None

    @property
    def values_path(self) -> str:
        """The module whose output holds the values."""
        return self.values_at or self.value

    @property
    def heads_path(self) -> str:
        """The module whose input is the heads side by side."""
        return self.heads_at or self.output

    @property
    def group(self) -> int:
        """Query heads that read one value head."""
        return self.heads.query // self.heads.key_value

    def values_of(self, made: Tensor) -> Tensor:
        """The values (batch, tokens, key/value heads, head dim), a view of what the module at `values_at` returned."""
        return (SEPARATE if self.values_at else self.layout).values(made, self.heads)


@dataclass(frozen=True)
class Wiring:
    """The parts of one block, as paths relative to it.

    Args:
        style: "pre" has its norms before the branches, "post" after the additions; in a "parallel" block attention
            and MLP read the same stream (each behind its norm, or both behind one).
        attention: The module inside which attention happens.
        values: The weights that make attention's branch, or why they are not known: then what asks for them raises
            that, and what asks for the branch as a whole does not.
        norms: The norm of attention and the norm of the MLP, which are the same where both read one; "" for none.
        dim: Width of the stream.
        last: The module with weights in which attention's branch ends, where that is known.
        mlp: The MLP's linear maps; the last one writes into the stream.
        experts: In place of `mlp`, where a token is given some of several MLPs: the parameters (experts, out, in) of
            their linear maps.
        output_norms: The norms on what attention and MLP give, before it is added to the stream, "" for none; None
            where both have none, so that the branches end in `last` and the last of `mlp`.
        switch: The attribute by which the block is told where its norms stand, with its values for pre-norm and
            post-norm; None where that is written into its code.
        gains: The parameters (dim,) that what attention and MLP give is multiplied by before it is added (LayerScale),
            as paths, "" for none; None where both have none.
        causal: Whether a token sees only itself and those before it; None where the attention module itself says so.
        windowed: Whether attention works inside windows of the image, so that values and heads are (batch · windows,
            tokens of a window, ...), shifted and filled up, while all else is (batch, tokens, dim).
        dropout: In blocks that are not post-norm, what drops attention's branch after the tap at which edits meet it: a
            module, or a number, as a path; None where nothing does.
        scales: The numbers that what attention and MLP give is multiplied by before it is added to the stream.
    """

    style: Literal["pre", "post", "parallel"]
    attention: str
    values: ValueParts | str
    norms: tuple[str, str]
    dim: int
    last: str | None = None
    mlp: tuple[str, ...] = ()
    experts: tuple[str, ...] = ()
    output_norms: tuple[str, str] | None = None
    switch: tuple[str, str | bool, str | bool] | None = None
    gains: tuple[str, str] | None = None
    causal: bool | None = None
    windowed: bool = False
    dropout: str | None = None
    scales: tuple[float, float] = (1.0, 1.0)

    @property
    def weights(self) -> ValueParts:
        """The weights of attention.

        Raises:
            UnsmoothError: They are not known.
        """
        if isinstance(self.values, ValueParts):
            return self.values
        if self.values.startswith("Expected "):  # it says what to try
            raise UnsmoothError(self.values)
        raise expected("value weights that its numbers prove", self.values, "what needs only attention's branch")

    @property
    def ends(self) -> tuple[str, str]:
        """Where both branches end: their last modules that have weights, or the last parameter of the experts."""
        found = (self.mlp or self.experts)[-1:]
        if not found:
            raise expected("an MLP that ends in a linear map", f"one beside {self.attention!r} that does not", "others")
        if self.last is None:
            got = f"one in {self.attention!r} that does not"
            raise expected("attention's branch to end in a linear map", got, "others")
        first, second = self.output_norms or ("", "")
        return first or self.last, second or found[0]

    @property
    def input_norms(self) -> tuple[str, ...]:
        """The norms of attention and MLP: two, or the one that both read."""
        return tuple(path for path in dict.fromkeys(self.norms) if path)

    @property
    def all_norms(self) -> tuple[str, ...]:
        """Every norm of the block but that of cross-attention."""
        return (*self.input_norms, *(path for path in self.output_norms or () if path))


def wired_values(block: nn.Module, wiring: Wiring) -> ValueProjection:
    """The value and output weights of a block whose wiring is known."""
    if isinstance(wiring.values, str) and not wiring.values.startswith("Expected "):
        raise refuse(block, "weights that its numbers prove", wiring.values)
    parts = wiring.weights
    value: str | Weights = parts.value
    if parts.value_weight != "weight":
        weight = weight_at(block, f"{parts.value}.{parts.value_weight}")
        value = (weight.mT, optional(block, parts.value, parts.value_bias))
    gained = "" if wiring.gains is None else wiring.gains[0]
    gain = weight_at(block, gained).flatten() if gained else None
    values = read_values(
        block,
        value=value,
        output=parts.output,
        layout=parts.layout,
        heads=parts.heads,
        place="post" if wiring.style == "post" else "pre",
        norm=wiring.norms[0] or None,
        output_norm=wiring.output_norms[0] or None if wiring.output_norms else None,
        gain=gain,
    )
    if wiring.scales[0] == 1.0:
        return values
    return replace(values, gain=wiring.scales[0] * (torch.ones_like(values.w_o[0, 0]) if gain is None else gain))
