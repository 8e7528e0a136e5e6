"""What is looked at inside the members of an ensemble: tokens, samples and gradients by layer."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - as everywhere

from unsmooth.evidence.studies.bases import shape_of
from unsmooth.models import find_anatomy, value_projection
from unsmooth.models.value_projection import ValueProjection
from unsmooth.training.ensemble import Ensemble


def observe(ensemble: Ensemble, inputs: Tensor, labels: Tensor, *, gradients: bool = False) -> dict[str, Tensor]:
    r"""By layer (the embedding first) and for each member, the means over samples that all members see.

    - ``log_tdiv``, ``log_tdiv_patches``: the natural logarithm of :math:`\|X-\bar x\|^2 / \|X\|^2`, over all tokens and
      over those but the first, the class token of an image; ``tdiv`` is the mean without the logarithm, over all.
    - ``cosine``: the mean over pairs of tokens. ``norm``: the root mean square of an element.
    - ``inputs``: how far samples can be told apart, :math:`\|Z-\bar z\|^2 / \|Z\|^2` over samples, of the token that
      is read, the first of an image and the last of a text; ``inputs_mean`` of the mean token.
    - ``gradient``: the norm of the loss's gradient to the stream.

    Without layers: ``logits`` (members, predictions, classes), each prediction's less their mean, ``loss``, and with
    gradients ``gradient_norm``, that of all weights. A network without blocks has no more than that.

    Args:
        ensemble: Whose members.
        inputs: (samples, ...).
        labels: (samples, ...).
        gradients: Whether the backward pass is looked at too.
    """
    members, samples = ensemble.size, len(labels)
    stack: Any = getattr(ensemble.network, "stack", None)
    blocks = () if stack is None else stack.blocks
    streams: list[Tensor] = []
    handles = [blocks[0].register_forward_pre_hook(lambda _, args: streams.append(args[0]))] if blocks else []
    handles += [block.register_forward_hook(lambda _, args, out: streams.append(out)) for block in blocks]
    try:
        with torch.set_grad_enabled(gradients):
            logits = ensemble(inputs.expand(members, *inputs.shape))
            every = labels.expand(members, *labels.shape).flatten()
            each = F.cross_entropy(logits.flatten(0, -2), every, reduction="none")
            losses = each.view(members, -1).mean(dim=1)
    finally:
        for handle in handles:
            handle.remove()
    found: dict[str, Tensor] = {}
    if gradients:
        made = torch.autograd.grad(losses.sum(), [*streams, *ensemble.leaves.values()])
        found["gradient_norm"] = ensemble.flat(made[len(streams) :]).norm(dim=1)
        by_layer = [one.reshape(members, -1).norm(dim=1) for one in made[: len(streams)]]
        if by_layer:
            found["gradient"] = torch.stack(by_layer, dim=1)
    with torch.no_grad():
        read = 0 if labels.ndim == 1 else -1
        layers = [_of_stream(torch.unflatten(stream.detach(), 0, (members, samples)), read) for stream in streams]
        found |= {name: torch.stack([layer[name] for layer in layers], dim=1) for name in (layers or [{}])[0]}
        flat = logits.detach().flatten(1, -2)
        found["logits"] = flat - flat.mean(dim=-1, keepdim=True)
        found["loss"] = losses.detach()
    return found


@torch.no_grad()
def attention_of(ensemble: Ensemble, inputs: Tensor) -> dict[str, Tensor]:
    r"""By block and for each member, what P2's bound on the escalation of similarity speaks of.

    - ``second``: the mean over samples and heads of :math:`|\lambda_2|^2` of the attention map A; ``gap`` of
      :math:`\|(I-\Pi)A\|_2^2`, what one step can leave of what is not the mean.
    - ``variance``: :math:`\|H\|_F^2 / d` of the summed map of values and output, σ² of a random one.
    - ``before``: ``log_tdiv`` of the stream that enters the block, and ``attended`` of it with attention's branch in
      it, before any norm; both of the same samples.

    Blocks whose remedies change what attention reads or gives are looked at as they are without: `attended` knows.

    Args:
        ensemble: Whose members.
        inputs: (samples, ...).
    """
    members = ensemble.size
    blocks: Any = ensemble.network.stack.blocks  # type: ignore[union-attr]
    found: list[dict[str, Tensor]] = []
    streams: list[Tensor] = []

    def on_block(module: Any, args: Any) -> None:
        streams.append(args[0])

    def on_attention(module: Any, args: Any) -> None:
        query, key, _ = module.split(module.qkv(args[0]))
        map_BHNN = (query @ key.mT / query.shape[-1] ** 0.5).softmax(dim=-1)
        sizes = torch.linalg.eigvals(map_BHNN).abs().sort(dim=-1).values
        left = map_BHNN - map_BHNN.mean(dim=-2, keepdim=True)
        norms = torch.linalg.matrix_norm(left, 2)
        dim = module.out.weight.shape[-1]
        value = module.qkv.weight[..., -dim:, :]
        found.append(
            {
                "second": _by_member(sizes[..., -2].square(), members),
                "gap": _by_member(norms.square(), members),
                "variance": (module.out.weight @ value).square().sum(dim=(-2, -1)).expand(members) / dim,
            }
        )

    def on_branch(module: Any, args: Any, out: Tensor) -> None:
        for name, stream in (("before", streams[-1]), ("attended", streams[-1] + out)):
            own = torch.unflatten(stream, 0, (members, -1))
            found[-1][name] = diversity(own, 2).clamp(min=torch.finfo(own.dtype).tiny).log().mean(dim=1)

    handles = [block.register_forward_pre_hook(on_block) for block in blocks]
    handles += [block.attention.register_forward_pre_hook(on_attention) for block in blocks]
    handles += [block.attention_path.register_forward_hook(on_branch) for block in blocks]
    try:
        ensemble(inputs.expand(members, *inputs.shape))
    finally:
        for handle in handles:
            handle.remove()
    return {name: torch.stack([one[name] for one in found], dim=1) for name in found[0]}


def _by_member(values: Tensor, members: int) -> Tensor:
    return values.reshape(members, -1).mean(dim=1)


@torch.no_grad()
def spectra_of(network: nn.Module, weights: Mapping[str, Tensor]) -> list[dict[str, float]]:
    """Of each layer's summed H, what `shape_of` says, with the spectral radius.

    Args:
        network: That was started from.
        weights: Of one member after training.
    """
    trained = deepcopy(network).cpu()
    for name, parameter in trained.named_parameters():
        parameter.copy_(weights[name])
    trained.eval()
    return [_spectrum(value_projection(trained, block)) for block in range(len(find_anatomy(trained).blocks))]


def _spectrum(values: ValueProjection) -> dict[str, float]:
    h_DD = (values.w_v.transpose(0, 1).flatten(1) @ values.w_o.flatten(0, 1)).double()
    return {**shape_of(values), "radius": float(torch.linalg.eigvals(h_DD).abs().max())}


def _of_stream(x_MBND: Tensor, read: int) -> dict[str, Tensor]:
    tokens = x_MBND.shape[2]
    tiny = torch.finfo(x_MBND.dtype).tiny
    every, patches = diversity(x_MBND, 2), diversity(x_MBND[:, :, 1:], 2)
    units = F.normalize(x_MBND, dim=-1, eps=tiny)
    cosine = (units.sum(dim=2).square().sum(dim=-1) - tokens) / (tokens * (tokens - 1))
    return {
        "log_tdiv": every.clamp(min=tiny).log().mean(dim=1),
        "log_tdiv_patches": patches.clamp(min=tiny).log().mean(dim=1),
        "tdiv": every.mean(dim=1),
        "cosine": cosine.mean(dim=1),
        "norm": x_MBND.square().mean(dim=(1, 2, 3)).sqrt(),
        "inputs": diversity(x_MBND[:, :, read], 1),
        "inputs_mean": diversity(x_MBND.mean(dim=2), 1),
    }


def diversity(x: Tensor, dim: int) -> Tensor:
    r"""The share :math:`\|X-\bar x\|^2 / \|X\|^2` of vectors, on the last axis, along another axis, over both.

    >>> diversity(torch.tensor([[3.0, 0.0], [1.0, 0.0]]), 0)  # mean 2: (1 + 1) of (9 + 1)
    tensor(0.2000)
    """
    away = (x - x.mean(dim=dim, keepdim=True)).square().sum(dim=(dim, -1))
    return away / x.square().sum(dim=(dim, -1)).clamp(min=torch.finfo(x.dtype).tiny)
