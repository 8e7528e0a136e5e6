"""What is looked at inside the members of an ensemble: tokens, samples and gradients by layer."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 - as everywhere

from unsmooth.training.ensemble import Ensemble


def observe(ensemble: Ensemble, inputs: Tensor, labels: Tensor, *, gradients: bool = False) -> dict[str, Tensor]:
    r"""By layer (the embedding first) and for each member, the means over samples that all members see.

    - ``log_tdiv``, ``log_tdiv_patches``: the natural logarithm of :math:`\|X-\bar x\|^2 / \|X\|^2`, over all tokens and
      over those but the class token; ``tdiv`` is the mean without the logarithm, over all tokens.
    - ``cosine``: the mean over pairs of tokens. ``norm``: the root mean square of an element.
    - ``inputs``: how far samples can be told apart, :math:`\|Z-\bar z\|^2 / \|Z\|^2` over samples, of the class token;
      ``inputs_mean`` of the mean token.
    - ``gradient``: the norm of the loss's gradient to the stream.

    Without layers: ``logits`` (members, samples, classes), each sample's less their mean, ``loss``, and with gradients
    ``gradient_norm``, that of all weights.

    Args:
        ensemble: Whose members.
        inputs: (samples, ...).
        labels: (samples,).
        gradients: Whether the backward pass is looked at too.
    """
    members, samples = ensemble.size, len(labels)
    blocks: Any = ensemble.network.stack.blocks  # type: ignore[union-attr]
    streams: list[Tensor] = []
    handles = [blocks[0].register_forward_pre_hook(lambda _, args: streams.append(args[0]))]
    handles += [block.register_forward_hook(lambda _, args, out: streams.append(out)) for block in blocks]
    try:
        with torch.set_grad_enabled(gradients):
            logits = ensemble(inputs.expand(members, *inputs.shape))
            each = F.cross_entropy(logits.flatten(0, 1), labels.repeat(members), reduction="none")
            losses = each.view(members, -1).mean(dim=1)
    finally:
        for handle in handles:
            handle.remove()
    found: dict[str, Tensor] = {}
    if gradients:
        leaves = list(ensemble.leaves.values())
        made = torch.autograd.grad(losses.sum(), [*streams, *leaves])
        of_weights = sum(
            (one.flatten(1).square().sum(dim=1) for one in made[len(streams) :]), losses.new_zeros(members)
        )
        found["gradient_norm"] = of_weights.sqrt()
        by_layer = [one.reshape(members, -1).norm(dim=1) for one in made[: len(streams)]]
        found["gradient"] = torch.stack(by_layer, dim=1)
    with torch.no_grad():
        layers = [_of_stream(torch.unflatten(stream.detach(), 0, (members, samples))) for stream in streams]
        found |= {name: torch.stack([layer[name] for layer in layers], dim=1) for name in layers[0]}
        found["logits"] = logits.detach() - logits.detach().mean(dim=-1, keepdim=True)
        found["loss"] = losses.detach()
    return found


def _of_stream(x_MBND: Tensor) -> dict[str, Tensor]:
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
        "inputs": diversity(x_MBND[:, :, 0], 1),
        "inputs_mean": diversity(x_MBND.mean(dim=2), 1),
    }


def diversity(x: Tensor, dim: int) -> Tensor:
    r"""The share :math:`\|X-\bar x\|^2 / \|X\|^2` of vectors, on the last axis, along another axis, over both.

    >>> diversity(torch.tensor([[3.0, 0.0], [1.0, 0.0]]), 0)  # mean 2: (1 + 1) of (9 + 1)
    tensor(0.2000)
    """
    away = (x - x.mean(dim=dim, keepdim=True)).square().sum(dim=(dim, -1))
    return away / x.square().sum(dim=(dim, -1)).clamp(min=torch.finfo(x.dtype).tiny)
