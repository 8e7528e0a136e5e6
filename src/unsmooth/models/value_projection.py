"""The value and output weights of any attention layer in one shape, with the norm that meets them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor, nn

from unsmooth.errors import expected
from unsmooth.models.anatomy import find_anatomy
from unsmooth.models.remedied import with_edits

if TYPE_CHECKING:
    from unsmooth.models.anatomy import Anatomy


@dataclass(frozen=True)
class Norm:
    """A norm on token vectors.

    Args:
        kind: "layer" subtracts the feature mean first, "rms" does not, "none" is the identity.
        weight: (d,) what the normalised vector is multiplied by, (1 + w) already formed; None for ones.
        bias: (d,) or None.
        eps: Added to the variance or mean square.
    """

    kind: Literal["layer", "rms", "none"]
    weight: Tensor | None
    bias: Tensor | None
    eps: float

    def apply(self, x: Tensor) -> Tensor:
        """Normalise (..., d).

        >>> Norm("rms", torch.tensor([1.0, 2.0]), None, 0.0).apply(torch.tensor([1.0, -7.0]))  # ‖x‖²/2 = 25
        tensor([ 0.2000, -2.8000])
        """
        if self.kind != "none":
            centred = x - x.mean(dim=-1, keepdim=True) if self.kind == "layer" else x
            x = centred / self.scale(x)[..., None]
        if self.weight is not None:
            x = x * self.weight
        return x if self.bias is None else x + self.bias

    def scale(self, x: Tensor) -> Tensor:
        """What it divides each of (..., d) by; ones where it does nothing."""
        if self.kind == "none":
            return x.new_ones(x.shape[:-1])
        centred = x - x.mean(dim=-1, keepdim=True) if self.kind == "layer" else x
        return (centred.square().mean(dim=-1) + self.eps).sqrt()


@dataclass(frozen=True)
class Latent:
    r"""A norm between two halves of the value weights, which divides each token, or each head of it, by its size.

    .. math:: v = \mathrm{norm}(x W_{down} + b)\,W_{up}

    Multi-head latent attention has it, whose heads share one latent; a norm of each head's values is another.

    Args:
        down: (query heads or 1, d, r), without its mean where the norm takes that away.
        bias: (query heads or 1, r) or None, likewise.
        up: (query heads, r, d_h), times the norm's weight.
        norm: The norm without weight and bias.
    """

    down: Tensor
    bias: Tensor | None
    up: Tensor
    norm: Norm

    def values(self, x_BND: Tensor) -> Tensor:
        """What comes of tokens, (batch, query heads, tokens, d_h)."""
        made_BGNR = torch.einsum("bnd,gdr->bgnr", x_BND, self.down.to(x_BND))
        made_BGNR = made_BGNR if self.bias is None else made_BGNR + self.bias.to(x_BND)[:, None]
        return self.norm.apply(made_BGNR) @ self.up.to(x_BND)

    def scale(self, x_ND: Tensor) -> Tensor:
        """What the norm divides a token by (tokens,), the mean over heads."""
        made_GND = x_ND @ self.down.to(x_ND)
        made_GND = made_GND if self.bias is None else made_GND + self.bias.to(x_ND)[:, None]
        return self.norm.scale(made_GND).mean(dim=0)


# What a gate may be of a linear map.
GATES: Mapping[str, Callable[[Tensor], Tensor]] = {
    "sigmoid": torch.sigmoid,
    "softplus": nn.functional.softplus,
    "silu": nn.functional.silu,
    "tanh": torch.tanh,
}


@dataclass(frozen=True)
class Gate:
    """What heads are multiplied by before they are projected, by what the token reads: f(x W + b).

    Args:
        weight: (query heads, d, d_h), or one number for a whole head, (query heads, d, 1).
        bias: (query heads, d_h or 1) or None.
        function: f, a name in `GATES`.
    """

    weight: Tensor
    bias: Tensor | None
    function: str

    def of(self, x_BND: Tensor) -> Tensor:
        """For tokens (batch, query heads, tokens, d_h or 1)."""
        made_BHNE = torch.einsum("bnd,hde->bhne", x_BND, self.weight.to(x_BND))
        return GATES[self.function](made_BHNE if self.bias is None else made_BHNE + self.bias.to(x_BND)[:, None])


@dataclass(frozen=True)
class ValueProjection:
    r"""What an attention layer does to values, tokens as rows.

    .. math:: \mathrm{out} = \sum_h A_h (X W_V^h + b_V^h) W_O^h + b_O, \qquad H_h = W_V^h W_O^h

    H_h is the d×d matrix whose spectrum decides, in P1 (arXiv 2401.04301), whether the layer smooths. The tensors
    may share memory with the model, so they are for reading. A norm inside (`latent`, `heads_norm`) is folded into w_v
    or w_o but for what it divides each token by, so that H is that of tokens which it leaves the size they have, as
    with `norm`. A `gate` is not in H, which is that of an open one.

    Args:
        w_v: (query heads, d, d_h), expanded for grouped heads.
        w_o: (query heads, d_h, d).
        kv_of_head: (query heads,) which key/value head each query head reads.
        b_v: (query heads, d_h) or None.
        b_o: (d,) or None.
        place: Whether the norm stands before the branch ("pre") or after the addition ("post").
        norm: That norm.
        output_norm: A norm on the branch's output before it is added (Gemma 2 and 3), or None.
        gain: (d,) what the branch is multiplied by before it is added (LayerScale), or None.
        keeps: What the stream is multiplied by where the branch is added.
        unseen: What else acts that no weight here shows, such as remedies, by name.
        latent: A norm between two halves of w_v, or on values, or None.
        gate: What the heads are multiplied by, or None.
        heads_norm: A norm without weight on the heads side by side, or None.

    Example:
        >>> eye = torch.eye(2)
        >>> heads = ValueProjection(
        ...     w_v=torch.stack([eye, eye]), w_o=torch.stack([-eye, 3 * eye]), kv_of_head=torch.tensor([0, 0]),
        ...     b_v=None, b_o=torch.tensor([1.0, 0.0]), place="pre", norm=Norm("none", None, None, 0.0),
        ... )
        >>> heads.head(0).diag().tolist(), heads.summed().tolist()  # -I, and -I + 3 I
        ([-1.0, -1.0], [[2.0, 0.0], [0.0, 2.0]])
        >>> maps_BHNN = torch.full((1, 2, 2, 2), 0.5)  # both heads average the tokens (2, 0) and (0, 4)
        >>> heads.attention_output(maps_BHNN, torch.tensor([[[2.0, 0.0], [0.0, 4.0]]])).tolist()
        [[[3.0, 4.0], [3.0, 4.0]]]
    """

    w_v: Tensor
    w_o: Tensor
    kv_of_head: Tensor
    b_v: Tensor | None
    b_o: Tensor | None
    place: Literal["pre", "post"]
    norm: Norm
    output_norm: Norm | None = None
    gain: Tensor | None = None
    keeps: float = 1.0
    unseen: tuple[str, ...] = ()
    latent: Latent | None = None
    gate: Gate | None = None
    heads_norm: Norm | None = None

    @property
    def heads(self) -> int:
        """Query heads."""
        return self.w_v.shape[0]

    @property
    def dim(self) -> int:
        """Width of the stream, d."""
        return self.w_v.shape[1]

    @property
    def head_dim(self) -> int:
        """Width of a head's values, d_h."""
        return self.w_v.shape[2]

    def head(self, h: int) -> Tensor:
        """H_h of one query head (d, d), times diag(gain) where there is one: they sum to `summed()`."""
        return self._gained(self.w_v[h] @ self.w_o[h])

    def summed(self) -> Tensor:
        """Σ_h H_h (d, d), times diag(gain): exact for modes in which all tokens are equal, whatever each A_h is."""
        # One product of (d, H d_h) and (H d_h, d), not H of them.
        return self._gained(self.w_v.transpose(0, 1).flatten(1) @ self.w_o.flatten(0, 1))

    def drift(self) -> Tensor | None:
        r"""The same push on every token that biases give, invisible to spectra; None where there are no biases.

        .. math:: c = \Big(\sum_h (\beta W_V^h + b_V^h) W_O^h + b_O\Big)\,\mathrm{diag}(gain)

        β is the bias of a norm before the branch. Rows of attention that sum to one are assumed. An `output_norm`,
        which is not linear, comes after it and is left out.
        """
        beta = self.norm.bias if self.place == "pre" else None
        if beta is None and self.b_v is None and self.b_o is None:
            return None
        push_D = torch.zeros(self.dim, dtype=self.w_o.dtype, device=self.w_o.device)
        if self.b_v is not None:
            push_D = push_D + torch.einsum("he,hed->d", self.b_v, self.w_o)
        if beta is not None:
            push_D = push_D + torch.einsum("c,hce,hed->d", beta, self.w_v, self.w_o)
        return self._gained(push_D if self.b_o is None else push_D + self.b_o)

    def attention_output(self, maps_BHNN: Tensor, normed_BND: Tensor) -> Tensor:
        """The branch as it joins the stream, from attention maps and what attention reads (site "normed").

        Equal to the site "attention", so after `output_norm` and `gain` where the layer has them. Cross-attention reads
        its values off the other stack: its maps are (B, H, N, M) for M tokens there, and the result is site "cross".
        """
        mixed_BHNE = self.mixed(maps_BHNN, normed_BND)
        if self.heads_norm is not None:
            heads_BNF = self.heads_norm.apply(mixed_BHNE.transpose(1, 2).flatten(2))
            mixed_BHNE = torch.unflatten(heads_BNF, 2, (self.heads, -1)).transpose(1, 2)
        out_BND = torch.einsum("bhne,hed->bnd", mixed_BHNE, self.w_o)
        if self.b_o is not None:
            out_BND = out_BND + self.b_o
        return self._gained(out_BND if self.output_norm is None else self.output_norm.apply(out_BND))

    def mixed(self, maps_BHNN: Tensor, normed_BND: Tensor) -> Tensor:
        """What each head gives (batch, query heads, tokens, d_h), with the gate and before a norm on it."""
        x_BND = normed_BND.to(self.w_v.dtype)
        values_BHNE = (
            torch.einsum("bnd,hde->bhne", x_BND, self.w_v) if self.latent is None else self.latent.values(x_BND)
        )
        if self.b_v is not None:
            values_BHNE = values_BHNE + self.b_v[:, None]
        mixed_BHNE = maps_BHNN.to(self.w_v.dtype) @ values_BHNE
        return mixed_BHNE if self.gate is None else mixed_BHNE * self.gate.of(x_BND)

    def _gained(self, x: Tensor) -> Tensor:
        return x if self.gain is None else x * self.gain


def value_projection(
    model: nn.Module,
    block: int,
    *,
    blocks: str | None = None,
    stack: str | None = None,
    site: Literal["attention", "cross"] = "attention",
) -> ValueProjection:
    """Read the value and output weights of one block, whatever library it is from.

    Where remedies are applied, the weights are those that act with them.

    Args:
        model: Any module with blocks of a known family.
        block: From 0, over the blocks that `find_anatomy` finds.
        blocks: Pattern over module paths, as in `find_anatomy`.
        stack: One stack of several by its name, such as "vision".
        site: "cross" for the weights of cross-attention. A norm in front of it is on its queries alone, so there is
            none here.

    Returns:
        Detached tensors in float32 or better on the model's device.

    Raises:
        UnsmoothError: The family is unknown, or the weights are not laid out as that family's are.

    Example:
        >>> layer = nn.TransformerEncoderLayer(4, nhead=2, batch_first=True)
        >>> values = value_projection(nn.TransformerEncoder(layer, 3, enable_nested_tensor=False), 2)
        >>> values.heads, values.dim, values.head_dim, values.place
        (2, 4, 2, 'post')
    """
    return values_of_block(find_anatomy(model, blocks, stack), block, site)


def values_of_block(anatomy: Anatomy, block: int, site: Literal["attention", "cross"] = "attention") -> ValueProjection:
    """The same where the blocks are found already."""
    from unsmooth.models.wiring import wired_values

    paths, host = list(anatomy.blocks), anatomy.host
    if not 0 <= block < len(paths):
        raise expected(f"a block from 0 to {len(paths) - 1}", block, f"block={len(paths) - 1} for the last one")
    found = anatomy.blocks[paths[block]]
    if site == "cross":
        if "cross" not in host.taps(found):
            raise expected(f"cross-attention in block {paths[block]!r}", type(found).__name__, 'site="attention"')
        return with_edits(found, host.cross(found).values(found), site)
    if host.wiring is None:
        raise expected(
            f"a known layout of value weights in block {paths[block]!r}",
            f"{type(found).__name__}, of which only the residual stream is known",
            "a model of a family that `unsmooth ls models` lists",
        )
    return with_edits(found, wired_values(found, host.wiring(found)))
