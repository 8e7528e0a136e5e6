"""How a block is put together, for those who change it: its projections, norms and MLP by path."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor, nn

from unsmooth.errors import UnsmoothError, expected
from unsmooth.models.block_parts import Weights, linear_weights, norm_at, optional, refuse, weight_at
from unsmooth.models.host import Tap, multiplier
from unsmooth.models.qkv_layouts import SEPARATE, GateParts, Heads, LatentParts, Layout, read_values
from unsmooth.models.value_projection import Gate, Latent, Norm, ValueProjection


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
        scale: A number that values are multiplied by.
        latent: The first half of the value weights with the norm after it, where `value` is the second half.
        value_norm: The norm of each head's values.
        gate: What the heads are multiplied by.
        heads_norm: The norm on the heads side by side.
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
    scale: float = 1.0
    latent: LatentParts | None = None
    value_norm: str | None = None
    gate: GateParts | None = None
    heads_norm: str | None = None

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
        gains: The parameters (dim,) or (1,) that what attention and MLP give is multiplied by before it is added
            (LayerScale), as paths, or "tanh" and a path, "" for none; None where both have none.
        causal: Whether a token sees only itself and those before it; None where the attention module itself says so.
        windowed: Whether attention works inside windows of the image, so that values and heads are (batch · windows,
            tokens of a window, ...), shifted and filled up, while all else is (batch, tokens, dim).
        dropout: In blocks that are not post-norm, what drops attention's branch after the tap at which edits meet it: a
            module, or a number, as a path; None where nothing does.
        scales: The numbers, the same for every block of its kind, that it is multiplied by too.
        keeps: What the stream is multiplied by where attention's and the MLP's branch are added: a number, or the path
            of a weight (dim,).
        has_mlp: Whether there is a branch beside attention and cross-attention.
        others: Where branches beside attention, cross-attention and MLP are; None for one that no module gives.
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
    keeps: tuple[float | str, float | str] = (1.0, 1.0)
    has_mlp: bool = True
    others: tuple[Tap | None, ...] = ()

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
    def ends(self) -> tuple[str, ...]:
        """Where both branches end: their last modules that have weights, or the last parameter of the experts."""
        found = (self.mlp or self.experts)[-1:]
        if self.has_mlp and not found:
            raise expected("an MLP that ends in a linear map", f"one beside {self.attention!r} that does not", "others")
        if self.last is None:
            got = f"one in {self.attention!r} that does not"
            raise expected("attention's branch to end in a linear map", got, "others")
        first, second = self.output_norms or ("", "")
        return (first or self.last, second or found[0]) if self.has_mlp else (first or self.last,)

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
    layout, latent = parts.layout, None
    if parts.latent is not None or parts.value_norm is not None:
        value, latent = _with_norm_inside(block, parts)
        layout = SEPARATE
    elif parts.scale != 1.0:
        weight, bias = linear_weights(block, value) if isinstance(value, str) else value
        value = (parts.scale * weight, None if bias is None else parts.scale * bias)
    values = read_values(
        block,
        value=value,
        output=parts.output,
        layout=layout,
        heads=parts.heads,
        place="post" if wiring.style == "post" else "pre",
        norm=wiring.norms[0] or None,
        output_norm=wiring.output_norms[0] or None if wiring.output_norms else None,
    )
    values = replace(values, latent=latent, gate=_gate(block, parts))
    if isinstance(kept := wiring.keeps[0], str):
        values = replace(values, unseen=(f"the weight {kept!r} on the stream",))
    elif kept != 1.0:
        values = replace(values, keeps=kept)
    if parts.heads_norm is not None:
        values = _with_norm_on_heads(values, norm_at(block, parts.heads_norm))
    ones_D, gained, scale = torch.ones_like(values.w_o[0, 0]), wiring.gains and wiring.gains[0], wiring.scales[0]
    if gained:
        return replace(values, gain=scale * multiplier(block, gained, weight_at) * ones_D)
    return values if scale == 1.0 else replace(values, gain=scale * ones_D)


def _with_norm_inside(block: nn.Module, parts: ValueParts) -> tuple[Weights, Latent]:
    """Value weights with the norm inside them left out, values alone; and the two halves with that norm."""
    weight, bias = linear_weights(block, parts.value)
    given_GRE = parts.layout.values(weight, parts.heads).movedim(1, 0)
    b_GE = weight.new_zeros(given_GRE.shape[::2]) if bias is None else parts.layout.values(bias, parts.heads)
    norm = norm_at(block, parts.latent.norm if parts.latent is not None else str(parts.value_norm))
    if parts.latent is None:
        down_GDR, bias_GR = given_GRE, b_GE
        eye = torch.eye(parts.heads.dim, dtype=weight.dtype, device=weight.device)
        up_GRE, b_GE = eye.expand(len(given_GRE), -1, -1), torch.zeros_like(b_GE)
    else:
        width = slice(parts.latent.start, parts.latent.start + weight.shape[0])
        down, down_bias = linear_weights(block, parts.latent.down)
        down_GDR, up_GRE = down[None, :, width], given_GRE
        bias_GR = down.new_zeros(1, weight.shape[0]) if down_bias is None else down_bias[None, width]
    if norm.bias is not None:
        b_GE = b_GE + norm.bias @ up_GRE
    up_GRE, b_GE = (up_GRE if norm.weight is None else norm.weight[:, None] * up_GRE) * parts.scale, b_GE * parts.scale
    if norm.kind == "layer":
        down_GDR, bias_GR = (one - one.mean(dim=-1, keepdim=True) for one in (down_GDR, bias_GR))
    values = (down_GDR @ up_GRE).movedim(0, 1).flatten(1), b_GE.flatten() if bool(b_GE.any()) else None
    of_head = torch.arange(parts.heads.query, device=weight.device) // parts.group
    if parts.latent is None:
        down_GDR, bias_GR = down_GDR[of_head], bias_GR[of_head]
    bare = Norm(norm.kind, None, None, norm.eps)
    return values, Latent(down_GDR, bias_GR if bool(bias_GR.any()) else None, up_GRE[of_head], bare)


def _with_norm_on_heads(values: ValueProjection, norm: Norm) -> ValueProjection:
    """With all of a norm on the heads in the output weights but what it divides a token by."""
    w_FD, b_o = values.w_o.flatten(0, 1), values.b_o
    if norm.bias is not None:
        b_o = norm.bias @ w_FD if b_o is None else b_o + norm.bias @ w_FD
    if norm.weight is not None:
        w_FD = norm.weight[:, None] * w_FD
    if norm.kind == "layer":
        w_FD = w_FD - w_FD.mean(dim=0)
    bare = Norm(norm.kind, None, None, norm.eps)
    return replace(values, w_o=torch.unflatten(w_FD, 0, values.w_o.shape[:2]), b_o=b_o, heads_norm=bare)


def _gate(block: nn.Module, parts: ValueParts) -> Gate | None:
    """The gate on the heads, where there is one."""
    if parts.gate is None:
        return None
    weight_DC, bias_C = linear_weights(block, parts.gate.linear)
    columns_HE = parts.gate.columns(parts.heads.query).to(weight_DC.device)
    bias_HE = None if bias_C is None else bias_C[columns_HE]
    return Gate(weight_DC[:, columns_HE].movedim(1, 0), bias_HE, parts.gate.function)
