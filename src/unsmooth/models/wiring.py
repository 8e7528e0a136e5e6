"""How a block is put together, for those who change it: its projections, norms and MLP by path."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor, nn

from unsmooth.errors import expected
from unsmooth.models.block_parts import Weights, optional, weight_at
from unsmooth.models.host import multiplier
from unsmooth.models.qkv_layouts import SEPARATE, Heads, Layout, read_values
from unsmooth.models.value_projection import ValueProjection


@dataclass(frozen=True)
class Wiring:
    """The parts of one block, as paths relative to it.

    Args:
        style: "pre" has its norms before the branches, "post" after the additions; in a "parallel" block attention
            and MLP read the same stream (each behind its norm, or both behind one).
        heads: How many heads of queries and of keys and values, and how wide each is.
        attention: The module inside which attention happens.
        value: The module that holds the weights which make the values.
        layout: Where the values are among the outputs of those weights.
        output: The projection back to the stream; its input is the heads side by side.
        norms: The norm of attention and the norm of the MLP, which are the same where both read one; "" for none.
        mlp: The MLP's linear maps; the last one writes into the stream.
        experts: In place of `mlp`, where a token is given some of several MLPs: the parameters (experts, out, in) of
            their linear maps.
        value_weight: The name of the weight inside `value`.
        value_bias: The name of its bias.
        values_at: The module whose output holds the values, where it is not `value` itself.
        heads_at: The module whose input is the heads side by side, where it is not `output` itself.
        output_norms: The norms on what attention and MLP give, before it is added to the stream, "" for none; None
            where both have none, so that the branches end in `output` and the last of `mlp`.
        switch: The attribute by which the block is told where its norms stand, with its values for pre-norm and
            post-norm; None where that is written into its code.
        gains: The parameters (dim,) or (1,) that what attention and MLP give is multiplied by before it is added
            (LayerScale), as paths, or "tanh" and a path, "" for none; None where both have none.
        causal: Whether a token sees only itself and those before it; None where the attention module itself says so.
        logit_scale: What queries times keys are multiplied by; None for the usual 1/√(head dim).
        windowed: Whether attention works inside windows of the image, so that values and heads are (batch · windows,
            tokens of a window, ...), shifted and filled up, while all else is (batch, tokens, dim).
        dropout: In blocks that are not post-norm, what drops attention's branch after the tap at which edits meet it: a
            module, or a number, as a path; None where nothing does.
        scales: The numbers, the same for every block of its kind, that it is multiplied by too.
    """

    style: Literal["pre", "post", "parallel"]
    heads: Heads
    attention: str
    value: str
    layout: Layout
    output: str
    norms: tuple[str, str]
    mlp: tuple[str, ...] = ()
    experts: tuple[str, ...] = ()
    value_weight: str = "weight"
    value_bias: str = "bias"
    values_at: str | None = None
    heads_at: str | None = None
    output_norms: tuple[str, str] | None = None
    switch: tuple[str, str | bool, str | bool] | None = None
    gains: tuple[str, str] | None = None
    causal: bool | None = None
    logit_scale: float | None = None
    windowed: bool = False
    dropout: str | None = None
    scales: tuple[float, float] = (1.0, 1.0)

    @property
    def ends(self) -> tuple[str, str]:
        """Where both branches end: their last modules that have weights, or the last parameter of the experts."""
        last = (self.mlp or self.experts)[-1:]
        if not last:
            raise expected("an MLP that ends in a linear map", f"one beside {self.attention!r} that does not", "others")
        first, second = self.output_norms or ("", "")
        return first or self.output, second or last[0]

    @property
    def values_path(self) -> str:
        """The module whose output holds the values."""
        return self.values_at or self.value

    @property
    def heads_path(self) -> str:
        """The module whose input is the heads side by side."""
        return self.heads_at or self.output

    @property
    def input_norms(self) -> tuple[str, ...]:
        """The norms of attention and MLP: two, or the one that both read."""
        return tuple(path for path in dict.fromkeys(self.norms) if path)

    @property
    def all_norms(self) -> tuple[str, ...]:
        """Every norm of the block but that of cross-attention."""
        return (*self.input_norms, *(path for path in self.output_norms or () if path))

    @property
    def group(self) -> int:
        """Query heads that read one value head."""
        return self.heads.query // self.heads.key_value

    def values_of(self, made: Tensor) -> Tensor:
        """The values (batch, tokens, key/value heads, head dim), a view of what the module at `values_at` returned."""
        return (SEPARATE if self.values_at else self.layout).values(made, self.heads)


def wired_values(block: nn.Module, wiring: Wiring) -> ValueProjection:
    """The value and output weights of a block whose wiring is known."""
    value: str | Weights = wiring.value
    if wiring.value_weight != "weight":
        weight = weight_at(block, f"{wiring.value}.{wiring.value_weight}")
        value = (weight.mT, optional(block, wiring.value, wiring.value_bias))
    values = read_values(
        block,
        value=value,
        output=wiring.output,
        layout=wiring.layout,
        heads=wiring.heads,
        place="post" if wiring.style == "post" else "pre",
        norm=wiring.norms[0] or None,
        output_norm=wiring.output_norms[0] or None if wiring.output_norms else None,
    )
    ones_D, gained, scale = torch.ones_like(values.w_o[0, 0]), wiring.gains and wiring.gains[0], wiring.scales[0]
    if gained:
        return replace(values, gain=scale * multiplier(block, gained, weight_at) * ones_D)
    return values if scale == 1.0 else replace(values, gain=scale * ones_D)
