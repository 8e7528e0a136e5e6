"""Where a block keeps the weights of its queries and keys: with those of its values, or in projections beside them."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from unsmooth.models.block_parts import part
from unsmooth.remedies.site import Site, as_in_out

# What hosts call the projections of queries and keys beside one for values of this name.
_BESIDE = {
    "value": ("query", "key"),
    "v_proj": ("q_proj", "k_proj"),
    "v": ("q", "k"),
    "value_proj": ("query_proj", "key_proj"),
}


def queries_and_keys(site: Site) -> tuple[Tensor, Tensor] | None:
    """The weights of queries and keys as tokens meet them, views that can be written to; None where they are not known.

    Returns:
        (dim, key/value heads, query heads to each, head dim) and (dim, key/value heads, head dim).

    Example:
        >>> from unsmooth.models import find_anatomy
        >>> from unsmooth.remedies.block import site_of
        >>> layer = torch.nn.TransformerEncoderLayer(4, nhead=2, batch_first=True)
        >>> anatomy = find_anatomy(torch.nn.TransformerEncoder(layer, 1, enable_nested_tensor=False))
        >>> query, key = queries_and_keys(site_of(anatomy.host, anatomy.blocks["layers.0"], "layers.0", 0, 1))
        >>> query.shape, torch.equal(key.flatten(1), anatomy.blocks["layers.0"].self_attn.in_proj_weight[4:8].mT)
        (torch.Size([4, 2, 1, 2]), True)
    """
    weights = site.wiring.weights
    heads, layout = weights.heads, weights.layout
    if layout.queries is not None and layout.keys is not None:
        weight_DF = as_in_out(part(site.block, weights.value), weights.value_weight).data
        return layout.queries(weight_DF, heads), layout.keys(weight_DF, heads)
    beside = _beside(site)
    if beside is None:
        return None
    query_DF, key_DF = (as_in_out(module, "weight").data for module in beside)
    if query_DF.shape[1] != heads.query * heads.dim or key_DF.shape[1] != heads.key_value * heads.dim:
        return None
    return (
        torch.unflatten(query_DF, 1, (heads.key_value, weights.group, heads.dim)),
        torch.unflatten(key_DF, 1, (heads.key_value, heads.dim)),
    )


def query_bias(site: Site) -> Tensor | None:
    """What is added to the queries, to be written to; None where nothing is, or where they are not known."""
    weights = site.wiring.weights
    if weights.layout.queries is not None:
        bias: Tensor | None = getattr(part(site.block, weights.value), weights.value_bias)
        return None if bias is None else weights.layout.queries(bias.data, weights.heads)
    beside = _beside(site)
    bias = None if beside is None else getattr(beside[0], "bias", None)
    return None if bias is None else bias.data


def _beside(site: Site) -> tuple[nn.Module, nn.Module] | None:
    """The projections of queries and keys beside that of the values."""
    parent, _, name = site.wiring.weights.value.rpartition(".")
    if name not in _BESIDE:
        return None
    try:
        query, key = (site.block.get_submodule(f"{parent}.{beside}".lstrip(".")) for beside in _BESIDE[name])
    except AttributeError:
        return None
    return query, key
