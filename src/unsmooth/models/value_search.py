"""The value and output weights of an attention call, found by its numbers: which map reads them, in what order.

The output projection is the linear map that reads the heads side by side. What a head holds is its row of the
attention map times a column of some linear map before it, so every column it can be is tried and the order of values
in that map comes out, whatever it is called: alone, after queries and keys, group by group.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from unsmooth.errors import UnsmoothError
from unsmooth.models.block_parts import linear_weights, part
from unsmooth.models.block_record import OF_BRANCH, MapCall, ModuleCall, Record, same
from unsmooth.models.qkv_layouts import BY_GROUP, CONCATENATED, SEPARATE, Heads, Layout, size_of
from unsmooth.models.stored import is_quantised

QUANTISED = 5e-2


@dataclass(frozen=True)
class ValueMaps:
    """The two linear maps of an attention call, proved.

    Args:
        map_call: The call.
        value: Path of the module with the value weights.
        output: Path of the projection back to the stream.
        layout: Where the values are among what `value` gives.
        heads: Heads of queries, and of keys and values.
        reads: What `value` was given.
        gave: What `output` gave.
        maps: The attention maps (batch, heads, queries, keys), in the space of `reads`.
        own: Whether it is torch's own attention, which holds both.
    """

    map_call: MapCall
    value: str
    output: str
    layout: Layout
    heads: Heads
    reads: Tensor
    gave: Tensor
    maps: Tensor
    own: bool = False


def find_value_maps(record: Record, call: MapCall, until: int) -> ValueMaps | str:
    """The linear maps of one attention call, whose branch was made at `until`; or why there are none."""
    if call.value is not None:
        return _of_torch(record, call)
    linears = [one for one in record.calls if _is_linear(record, one)]
    # Of a map in a wrapper (an adapter), the wrapper begins first and ends last, and is what counts.
    outputs = sorted((one for one in linears if call.order < one.began < until), key=lambda one: one.began)
    values = [one for one in linears if one.ended < call.order]
    if call.maps.ndim not in (3, 4, 5) or not outputs or not values:
        odd = f"a map of shape {tuple(call.maps.shape)}" if outputs and values else None
        return odd or f"no linear map {'before' if outputs else 'after'} the attention map in its branch"
    for one in record.calls:
        if (
            one.began > call.order
            and is_norm(one)
            and same(one.gave, outputs[0].given)
            and not same(one.given, one.gave)
        ):
            return f"a norm, {one.path!r}, between the heads and {outputs[0].path!r}"
    best, reason = -1.0, f"{outputs[0].path!r} does not read the heads of the map side by side"
    for output in outputs:
        for maps_BHNM, heads_BNHE in _as_heads(call.maps, output.given):
            for value in reversed(values):
                made, reads = _as_tokens(value.gave, maps_BHNM), _as_tokens(value.given, maps_BHNM)
                if made is None or reads is None:
                    continue
                maps = maps_BHNM[..., : made.shape[1]]
                columns_HE, share = _columns(maps, made, heads_BNHE)
                if columns_HE is not None:
                    found = _layout_of(columns_HE, made.shape[-1])
                    if isinstance(found, str):
                        return f"{found} in {value.path!r}"
                    return ValueMaps(call, value.path, output.path, *found, reads, output.gave, maps)
                if _is_gated(maps, made, heads_BNHE):
                    best, reason = 1.0, f"a gate between the heads and {output.path!r}"
                elif share > best:
                    best, of = share, f"{share:.0%} of what {output.path!r} reads are values of {value.path!r} mixed"
                    reason = f"only {of} by the map"
            hidden = (one for one in record.calls if one.ended < call.order and one not in values)
            for one in hidden:
                made = _as_tokens(one.gave, maps_BHNM)
                if made is not None and _columns(maps_BHNM[..., : made.shape[1]], made, heads_BNHE)[0] is not None:
                    return _why_not_read(record, one)
    return reason


def _why_not_read(record: Record, call: ModuleCall) -> str:
    """What is said of a module that makes the values and is no linear map that can be read."""
    try:
        linear_weights(record.block, call.path)
    except UnsmoothError as error:
        return str(error)
    return f"a {type(call.module).__name__} at {call.path!r} that is no linear map"


def _of_torch(record: Record, call: MapCall) -> ValueMaps | str:
    """Torch's own attention has both of its projections in one function."""
    path = next(iter(reversed(call.inside)), "")
    module = part(record.block, path)
    if call.value is None or not isinstance(module, nn.MultiheadAttention):
        return "torch's attention called without its module"
    if getattr(module, "in_proj_weight", None) is None:
        return "keys or values of another width than the queries, so no one in_proj_weight"
    if module.bias_k is not None or module.add_zero_attn:
        return "an extra key (add_bias_kv or add_zero_attn)"
    gave = next((one.gave for one in record.calls if one.path == path and one.began < call.order < one.ended), None)
    if gave is None:
        return "attention that gives no tensor"
    heads = Heads(module.num_heads, module.num_heads, module.head_dim)
    return ValueMaps(call, path, f"{path}.out_proj", CONCATENATED, heads, call.value, gave, call.maps, own=True)


def is_norm(call: ModuleCall) -> bool:
    """Whether a call may be of a norm: a module without others in it that keeps the shape, and is no linear map."""
    if call.given.shape != call.gave.shape or next(call.module.children(), None) or looks_linear(call.module):
        return False
    says = "norm" in type(call.module).__name__.lower() or "norm" in call.path.rpartition(".")[2].lower()
    return says or type(call.module) is nn.Identity


def looks_linear(module: nn.Module) -> bool:
    """Whether a module may be a linear map, by the name of its class, or an adapter around one."""
    kinds = {base.__name__ for base in type(module).__mro__}
    return bool(kinds & {"Linear", "Conv1D", "FalconLinear", "Linear8bitLt"}) or hasattr(module, "base_layer")


def _is_linear(record: Record, call: ModuleCall) -> bool:
    """Whether a call was of a linear map whose weights can be read; the outermost of wrapped ones comes first."""
    if not looks_linear(call.module) or call.given.ndim < 2:
        return False
    try:
        weight_DF, bias_F = linear_weights(record.block, call.path)
    except UnsmoothError:
        return False
    if weight_DF.shape != (call.given.shape[-1], call.gave.shape[-1]):
        return False
    made = (call.given.double() @ weight_DF.double()).reshape(call.gave.shape)
    made = made if bias_F is None else made + bias_F
    return bool((made - call.gave).abs().max() <= rounding(call.module) * made.abs().max())


def rounding(module: nn.Module) -> float:
    """What a branch may differ from the exact one by: maps whose weights are quantised may round what they read too."""
    return QUANTISED if is_quantised(module) else OF_BRANCH


def _as_heads(maps: Tensor, given: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """The map (batch, heads, queries, keys) beside heads (batch, queries, heads, head dim), in each way that fits."""
    queries = maps.shape[-2]
    shapes = [given] if given.ndim == 3 else [given.reshape(given.shape[0], -1, given.shape[-1])]
    if given.ndim == 3 and given.shape[0] == queries:
        shapes.append(given.transpose(0, 1))
    if given.ndim == 2 and given.shape[0] % queries == 0:
        shapes = [given.reshape(-1, queries, given.shape[-1])]
    for heads_BNM in shapes:
        batch = heads_BNM.shape[0]
        if heads_BNM.shape[1] != queries:
            continue
        if maps.ndim == 5:
            whole = maps.flatten(1, 2) if maps.shape[0] == batch else None
        elif maps.ndim == 4:
            whole = maps if maps.shape[0] == batch else None
        else:
            whole = torch.unflatten(maps, 0, (batch, -1)) if maps.shape[0] % batch == 0 else None
        if whole is not None and heads_BNM.shape[-1] % whole.shape[1] == 0:
            yield whole.double(), torch.unflatten(heads_BNM, -1, (whole.shape[1], -1)).double()


def _as_tokens(gave: Tensor, maps_BHNM: Tensor) -> Tensor | None:
    """What a linear map gave as (batch, keys, features); a map may have one more column, as attention sinks have."""
    batch, keys = maps_BHNM.shape[0], maps_BHNM.shape[-1]
    for tokens in (keys, keys - 1):
        if gave.ndim == 3 and gave.shape[:2] == (batch, tokens):
            return gave.double()
        if gave.ndim == 3 and gave.shape[:2] == (tokens, batch):
            return gave.transpose(0, 1).double()
        if gave.numel() == batch * tokens * gave.shape[-1]:
            return gave.reshape(batch, tokens, -1).double()
    return None


def _columns(maps_BHNM: Tensor, made_BMC: Tensor, heads_BNHE: Tensor) -> tuple[Tensor | None, float]:
    """Which column of a linear map each place of each head is, and for which share of them there is one."""
    mixed_HPC = torch.einsum("bhnm,bmc->hbnc", maps_BHNM, made_BMC).flatten(1, 2)
    heads_HPE = heads_BNHE.permute(2, 0, 1, 3).flatten(1, 2)
    apart_HCE = (
        mixed_HPC.square().sum(1)[:, :, None] + heads_HPE.square().sum(1)[:, None] - 2 * mixed_HPC.mT @ heads_HPE
    )
    columns_HE = apart_HCE.argmin(dim=1)
    chosen_HPE = mixed_HPC.gather(2, columns_HE[:, None].expand(-1, mixed_HPC.shape[1], -1))
    error_HE = (chosen_HPE - heads_HPE).abs().amax(dim=1)
    fits_HE = error_HE <= OF_BRANCH * heads_HPE.abs().amax(dim=1).clamp(min=heads_HPE.abs().max() * 1e-2)
    share = float(fits_HE.double().mean())
    return (columns_HE if share == 1.0 else None), share


def _is_gated(maps_BHNM: Tensor, made_BMC: Tensor, heads_BNHE: Tensor) -> bool:
    """Whether heads are values mixed by the map, each number times one between 0 and 1."""
    heads, dim = heads_BNHE.shape[-2:]
    if made_BMC.shape[-1] % dim or heads % (made_BMC.shape[-1] // dim):
        return False
    values_BHME = (
        torch.unflatten(made_BMC, -1, (-1, dim)).repeat_interleave(heads * dim // made_BMC.shape[-1], 2).transpose(1, 2)
    )
    share_BNHE = heads_BNHE / (maps_BHNM @ values_BHME).transpose(1, 2)
    return bool(((share_BNHE > 0) & (share_BNHE < 1)).all())


def _layout_of(columns_HE: Tensor, size: int) -> tuple[Layout, Heads] | str:
    """The order of values by its name, from the column that each place of each query head reads."""
    starts = columns_HE[:, 0].tolist()
    dim = columns_HE.shape[1]
    if not torch.equal(columns_HE, columns_HE[:, :1] + torch.arange(dim, device=columns_HE.device)):
        return "values whose places are no run of columns"
    distinct = list(dict.fromkeys(starts))
    heads = Heads(len(starts), len(distinct), dim)
    if heads.query % heads.key_value or starts != [
        one for one in distinct for _ in range(heads.query // heads.key_value)
    ]:
        return f"query heads that read values in the order {starts[:8]}"
    places = torch.arange(size)
    for layout in (SEPARATE, CONCATENATED, BY_GROUP):
        if layout.size(heads) == size and layout.values(places, heads)[:, 0].tolist() == distinct:
            return layout, heads
    step = distinct[1] - distinct[0] if len(distinct) > 1 else dim
    if distinct != [distinct[0] + step * head for head in range(len(distinct))] or step < dim:
        return f"values at columns {distinct[:8]}"
    name = f"values from column {distinct[0]}, a head every {step}"
    return Layout(name, partial(size_of, size), partial(_every, distinct[0], step)), heads


def _every(start: int, step: int, x: Tensor, heads: Heads) -> Tensor:
    """A view of heads that begin at `start` and every `step` after it."""
    stop = start + step * (heads.key_value - 1) + heads.dim
    return x[..., start:stop].unfold(-1, heads.dim, step)
