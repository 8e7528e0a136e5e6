"""The value and output weights of an attention call, found by its numbers: which map reads them, in what order.

The output projection is the linear map that reads the heads side by side. What a head holds is its row of the
attention map times a column of some linear map before it, so every column it can be is tried and the order of values
in that map comes out, whatever it is called: alone, after queries and keys, group by group. What may stand between is
found by its numbers too: a norm of the values, one in the middle of their weights, and a gate or a norm on the heads.
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
from unsmooth.models.qkv_layouts import (
    BY_GROUP,
    CONCATENATED,
    SEPARATE,
    GateParts,
    Heads,
    LatentParts,
    Layout,
    size_of,
)
from unsmooth.models.stored import is_quantised
from unsmooth.models.value_projection import GATES

QUANTISED = 5e-2
# Tokens by which columns of weights are told apart.
_TELLING = 256


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
        scale: A number that values are multiplied by.
        latent: A norm in the middle of the value weights.
        value_norm: Path of a norm of each head's values.
        gate: What the heads are multiplied by.
        heads_norm: Path of a norm on the heads side by side.
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
    scale: float = 1.0
    latent: LatentParts | None = None
    value_norm: str | None = None
    gate: GateParts | None = None
    heads_norm: str | None = None


@dataclass(frozen=True)
class _Heads:
    """What an output projection reads, or what that was made of by a gate or a norm."""

    given: Tensor
    gate: Tensor | None = None
    norm: str | None = None


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
    best, reason = -1.0, f"{outputs[0].path!r} does not read the heads of the map side by side"
    norms = [one for one in record.calls if one.ended < call.order and is_norm(one) and one.gave.ndim == 4]
    for output in outputs:
        for heads in _heads_of(record, call, output):
            for maps_BHNM, heads_BNHE in _as_heads(call.maps, heads.given):
                for value in (*reversed(values), *reversed(norms)):
                    made = _as_tokens(value.gave, maps_BHNM)
                    if made is None:
                        continue
                    maps = maps_BHNM[..., : made.shape[1]]
                    columns_HE, share, scale = _columns(maps, made, heads_BNHE)
                    if columns_HE is not None:
                        return _found(record, call, output, heads, maps, value, columns_HE, scale)
                    if heads.norm is not None and best < 1.0:
                        best, reason = 1.0, f"a norm, {heads.norm!r}, between the heads and {output.path!r}"
                    elif share > best:
                        best, what = share, f"{output.path!r} reads are values of {value.path!r} mixed by the map"
                        reason = f"only {share:.0%} of what {what}"
                if heads.given is not output.given:
                    continue
                for one in (one for one in record.calls if one.ended < call.order and one not in (*values, *norms)):
                    made = _as_tokens(one.gave, maps_BHNM)
                    if made is not None and _columns(maps_BHNM[..., : made.shape[1]], made, heads_BNHE)[0] is not None:
                        return _why_not_read(record, one)
    return reason


def _heads_of(record: Record, call: MapCall, output: ModuleCall) -> Iterator[_Heads]:
    """What a projection reads as it is; then what a norm made it of, or what a gate did."""
    given = output.given
    yield _Heads(given)
    for one in record.calls:
        if one.began > call.order and is_norm(one) and same(one.gave, given) and not same(one.given, given):
            yield _Heads(one.given, norm=one.path)
    for product in record.products:
        if not call.order < product.order < output.began or product.gave.numel() != given.numel():
            continue
        for axes in ((1, 1), (1, 2)):  # heads after tokens, or before them
            if product.gave.ndim > max(axes) and same(product.gave.transpose(*axes).reshape(given.shape), given):
                wide = [one.broadcast_to(product.gave.shape).transpose(*axes) for one in product.factors]
                left, right = (factor.reshape(given.shape) for factor in wide)
                yield _Heads(left, gate=right)
                yield _Heads(right, gate=left)
                break


def _found(
    record: Record,
    call: MapCall,
    output: ModuleCall,
    heads: _Heads,
    maps: Tensor,
    value: ModuleCall,
    columns_HE: Tensor,
    scale: float,
) -> ValueMaps | str:
    """The maps, with all that stands between them; `value` is what makes the columns, a linear map or a norm."""
    norm, value_norm = value, None
    if not looks_linear(value.module):
        value_norm = value.path
        before = _run_of(record, norm, maps)
        if before is None:
            return f"values that {norm.path!r} does not make of a linear map in this block"
        value, columns_C = before
        columns_HE = columns_C[columns_HE]
    laid = _layout_of(columns_HE, value.gave.shape[-1])
    if isinstance(laid, str):
        return f"{laid} in {value.path!r}"
    reads, latent = _as_tokens(value.given, maps), None
    if value_norm is None and record.find(value.given) is None and (found := _latent(record, value, maps)) is not None:
        reads, latent = found
    if reads is None:
        return f"{value.path!r} reads other tokens than the map"
    gate = None
    if heads.gate is not None:
        gate = _gate(record, output, next(_as_heads(maps, heads.gate))[1], reads)
        if gate is None:
            return f"a gate between the heads and {output.path!r} that is no function of one linear map"
    layout, numbers = laid
    return ValueMaps(
        call,
        value.path,
        output.path,
        layout,
        numbers,
        reads,
        output.gave,
        maps,
        scale=scale,
        latent=latent,
        value_norm=value_norm,
        gate=gate,
        heads_norm=heads.norm,
    )


def _run_of(record: Record, norm: ModuleCall, maps: Tensor) -> tuple[ModuleCall, Tensor] | None:
    """The linear map before a norm, and which of its columns each number is that the norm reads."""
    reads = _as_tokens(norm.given, maps)
    if reads is None:
        return None
    for one in reversed([one for one in record.calls if one.ended <= norm.began and _is_linear(record, one)]):
        made = _as_tokens(one.gave, maps)
        if made is not None and made.shape[1] == reads.shape[1]:
            columns = _same_columns(reads.flatten(0, 1), made.flatten(0, 1))
            if columns is not None:
                return one, columns
    return None


def _latent(record: Record, value: ModuleCall, maps: Tensor) -> tuple[Tensor, LatentParts] | None:
    """What the first of two value maps reads, and where it and the norm between them are."""
    for norm in record.calls:
        fits = norm.ended < value.began and norm.gave.numel() == value.given.numel() and is_norm(norm)
        if fits and same(norm.gave.reshape(value.given.shape), value.given):
            before = _run_of(record, norm, maps)
            reads = None if before is None else _as_tokens(before[0].given, maps)
            if before is not None and reads is not None:
                start, columns = int(before[1][0]), before[1]
                if torch.equal(columns, torch.arange(start, start + len(columns), device=columns.device)):
                    return reads, LatentParts(before[0].path, start, norm.path)
    return None


def _gate(record: Record, output: ModuleCall, gate_BNHE: Tensor, reads: Tensor) -> GateParts | None:
    """The linear map of what attention reads that a gate is a function of."""
    heads, dim = gate_BNHE.shape[-2:]
    whole = bool((gate_BNHE == gate_BNHE[..., :1]).all())
    wanted_PT = gate_BNHE[..., : 1 if whole else dim].flatten(0, 1).flatten(1)
    for one in record.calls:
        if one.began > output.began or one.given.shape[-1] != reads.shape[-1] or not _is_linear(record, one):
            continue
        given = one.given.reshape(reads.shape) if one.given.numel() == reads.numel() else None
        if given is None or not same(given.to(reads), reads):
            continue
        for name, function in GATES.items():
            columns = _same_columns(wanted_PT, function(one.gave.double()).reshape(len(wanted_PT), -1))
            if columns is not None:
                columns_HE = columns.reshape(heads, -1)
                start, step = int(columns_HE[0, 0]), int(columns_HE[min(1, heads - 1), 0] - columns_HE[0, 0])
                parts = GateParts(one.path, start, step, columns_HE.shape[1], name)
                return parts if torch.equal(parts.columns(heads).to(columns_HE), columns_HE) else None
    return None


def _same_columns(wanted_PT: Tensor, made_PC: Tensor) -> Tensor | None:
    """Which column of one matrix each column of another is; None where some is none."""
    some = slice(None, None, max(len(wanted_PT) // 64, 1))  # which tell columns apart
    wanted_TP, made_CP = wanted_PT[some].T, made_PC[some].T
    columns_T = torch.cdist(wanted_TP, made_CP, compute_mode="donot_use_mm_for_euclid_dist").argmin(dim=1)
    error = (made_PC[:, columns_T] - wanted_PT).abs().max()
    return columns_T if bool(error <= OF_BRANCH * wanted_PT.abs().max()) else None


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
    if not looks_linear(call.module) or call.given.ndim < 2 or not call.given.numel():
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
        if gave.ndim == 4 and gave.shape[0] == batch and tokens in gave.shape[1:3]:  # heads after tokens, or before
            return (gave if gave.shape[1] == tokens else gave.transpose(1, 2)).flatten(2).double()
    return None


def _columns(maps_BHNM: Tensor, made_BMC: Tensor, heads_BNHE: Tensor) -> tuple[Tensor | None, float, float]:
    """Which column of a linear map each place of each head is, for which share of them there is one, times what."""
    # A few hundred tokens tell columns apart; what is found is proved on all of them.
    tokens = maps_BHNM.shape[2]
    few, step = slice(max(2, _TELLING // tokens)), slice(None, None, max(2 * tokens // _TELLING, 1))
    maps_BHNM, made_BMC, heads_BNHE = maps_BHNM[few, :, step], made_BMC[few], heads_BNHE[few, step]
    mixed_HPC = torch.einsum("bhnm,bmc->hbnc", maps_BHNM, made_BMC).flatten(1, 2)
    heads_HPE = heads_BNHE.permute(2, 0, 1, 3).flatten(1, 2)
    sizes_HC1, products_HCE = mixed_HPC.square().sum(1)[:, :, None], mixed_HPC.mT @ heads_HPE
    columns_HE = (sizes_HC1 - 2 * products_HCE).argmin(dim=1)
    share = _share(mixed_HPC, heads_HPE, columns_HE)
    if share == 1.0:
        return columns_HE, share, 1.0
    times_HCE = products_HCE / sizes_HC1.clamp(min=1e-30)
    other_HE = (times_HCE * products_HCE).argmax(dim=1)
    times = float(f"{float(times_HCE.gather(1, other_HE[:, None]).median()):.6g}")  # as far as rounding can tell
    found = _share(times * mixed_HPC, heads_HPE, other_HE) == 1.0
    return (other_HE if found else None), share, times


def _share(mixed_HPC: Tensor, heads_HPE: Tensor, columns_HE: Tensor) -> float:
    """For which share of places a column is what is there."""
    chosen_HPE = mixed_HPC.gather(2, columns_HE[:, None].expand(-1, mixed_HPC.shape[1], -1))
    error_HE = (chosen_HPE - heads_HPE).abs().amax(dim=1)
    fits_HE = error_HE <= OF_BRANCH * heads_HPE.abs().amax(dim=1).clamp(min=heads_HPE.abs().max() * 1e-2)
    return float(fits_HE.double().mean())


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
