"""The parts of a block, whatever its class: proposed from one recorded call, accepted only where the numbers agree.

Its branches are those that the sums along the stream show; attention's is the one that follows an attention map. The
weights that make it are accepted where what is read off them, with that map, rebuilds the branch.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Literal

import torch
from torch import Tensor, nn

from unsmooth.errors import UnsmoothError
from unsmooth.models.block_record import (
    OF_BRANCH,
    BlockCall,
    MapCall,
    ModuleCall,
    Record,
    Value,
    hides_later,
    record,
    same,
)
from unsmooth.models.host import Cross, Tap
from unsmooth.models.residual_search import Joined, ends_in, find_steps
from unsmooth.models.value_projection import ValueProjection
from unsmooth.models.value_search import ValueMaps, find_value_maps, is_norm, looks_linear, rounding
from unsmooth.models.wiring import ValueParts, Wiring, wired_values

End = tuple[str, str | None]
_PLAIN: End = ("plain", None)
# What is said of blocks that do not attend: of a state space, a linear recurrence, a convolution or an MLP alone.
NO_MAP = "no attention map that torch can see before a branch"


@dataclass(frozen=True)
class BlockParts:
    """What was found and proved of one kind of block.

    Args:
        taps: Site to where its tensor is.
        wiring: Its parts by path; None where not even its branches were proved. The weights in it may not be.
        attention_module: The module inside which the attention map is formed; None where no map was seen.
        cross: Its cross-attention, where it has some whose weights were proved.
        refused: What was not found or not accepted, with the reason: "block", a site, "weights", "cross weights" or
            "mlp weights".
        rows: The argument of the block that says where each sequence begins, where it is called with several in a row.
    """

    taps: Mapping[str, Tap]
    wiring: Wiring | None = None
    attention_module: str | None = None
    cross: Cross | None = None
    refused: Mapping[str, str] = field(default_factory=dict)
    rows: str | None = None


class NotProved(Exception):  # noqa: N818 - a reason, not an error
    """Why a part is not accepted."""


@dataclass(eq=False)
class _Branch:
    """What is added to the stream at one step, and the attention map that it follows, if any."""

    value: Value
    scale: float
    step: Joined
    times: float | str
    map_call: MapCall | None = None
    maps: ValueMaps | str = ""

    @property
    def made(self) -> int:
        """When a module gave it first."""
        return min((one.order for one in self.value.places if one.end != "input"), default=self.value.first)


def find_parts(call: BlockCall) -> BlockParts:
    """Run a block again on what it was called with, and find its parts; louder where its branches hardly show."""
    try:
        seen = record(call)
        found = resolve(seen)
        if {"attention", "mlp"} & set(found.refused):
            with suppress(Exception):  # not every block can be copied
                found = min(found, resolve(record(call, loud=True)), key=lambda one: len(one.refused))
        return _as_it_runs(found, call, seen)
    except Exception as error:  # a block may do anything when it is run by itself
        return BlockParts({}, refused={"block": f"run again by itself, it raised {type(error).__name__}: {error}"})


def resolve(seen: Record) -> BlockParts:
    """The parts of a block from a record of one of its calls."""
    steps = find_steps(seen)
    if any(not one.given.numel() for one in seen.calls if "." not in one.path):
        steps = "it deals its tokens out to modules, and one of them had none in this pass"
    if isinstance(steps, str):
        inside = (path for call in seen.maps for path in reversed(call.inside) if _has_weights(seen, path))
        return BlockParts(
            {}, None, next(inside, None), None, {"attention": steps if seen.maps else NO_MAP, "mlp": steps}
        )
    return _Search(seen, steps).parts()


class _Search:
    """The search through one record, part by part."""

    def __init__(self, seen: Record, steps: list[Joined]) -> None:
        self.seen, self.steps = seen, steps
        self.refused: dict[str, str] = {}
        self.branches = [
            _Branch(value, scale, step, _origin(seen.block, scale))
            for step in steps
            for value, scale in zip(step.branches, step.scales, strict=True)
        ]
        self.found: dict[str, _Branch] = {}
        for call in seen.maps:
            self._assign(call)
        rest = [one for one in self.branches if one.map_call is None]
        # Without a map, tokens are mixed by something else before it; of several MLPs, the last one is meant.
        after = len(rest) > 1 and self.attention is not None and rest[-1].made > self.attention.made
        if len(rest) == (1 if self.attention is not None else 2) or after:
            self.found["mlp"] = rest[-1]
        else:
            self.refused["mlp"] = f"{len(rest) or 'no'} branches beside attention"
        self.others = len(rest) - 1
        self.unnamed = [one for one in rest if one is not self.mlp]
        if self.attention is None:
            self.refused["attention"] = NO_MAP

    @property
    def attention(self) -> _Branch | None:
        """The branch of attention."""
        return self.found.get("attention")

    @property
    def cross(self) -> _Branch | None:
        """The branch of cross-attention."""
        return self.found.get("cross")

    @property
    def mlp(self) -> _Branch | None:
        """The branch of the MLP."""
        return self.found.get("mlp")

    def _assign(self, call: MapCall) -> None:
        """An attention map belongs to the first branch that appears after it."""
        branch = min((one for one in self.branches if one.made > call.order), key=lambda one: one.made, default=None)
        if branch is None:
            return
        maps = find_value_maps(self.seen, call, branch.made)
        if isinstance(maps, str) and call.maps.ndim == 3 and call.maps.shape[-1] != call.maps.shape[-2]:
            return  # a softmax over something else, as routers of experts have
        if branch.map_call is not None:
            one = isinstance(branch.maps, str) or isinstance(maps, str)
            branch.maps = (branch.maps if isinstance(maps, str) else maps) if one else "more than one map in one branch"
            return
        branch.map_call, branch.maps = call, maps
        others = [] if isinstance(maps, str) else [x for x in self.seen.others if x.ndim == 3 and _equal(x, maps.reads)]
        if self.attention is None and not others:
            self.found["attention"] = branch
        else:
            self.found.setdefault("cross", branch)

    def parts(self) -> BlockParts:
        """All that is found, with what is refused."""
        taps: dict[str, Tap] = {}
        for site, branch in self.found.items():
            if (tap := self._tap_of_branch(branch)) is not None:
                taps[site] = tap
            else:
                self.refused[site] = "no module that is called once gives it as it is added"
        wiring = module = cross = None
        if self.attention is not None:
            module = self._module_of(self.attention)
            if (normed := self._normed(self.attention)) is not None:
                taps["normed"] = normed
            wiring = self._accepted("weights", self.attention)
        if (mid := self._mid()) is not None:
            taps["mid"] = mid
        if self.cross is not None and "cross" in taps:
            proved = self._accepted("cross weights", self.cross)
            cross = (
                None
                if proved is None
                else Cross(proved.attention, partial(wired_values, wiring=proved), proved.last or "")
            )
        order = ("normed", "attention", "cross", "mid", "mlp")
        return BlockParts({s: taps[s] for s in order if s in taps}, wiring, module, cross, self.refused)

    def _accepted(self, what: str, branch: _Branch) -> Wiring | None:
        try:
            return self._wiring(branch) if what == "weights" else self._cross_wiring(branch)
        except (NotProved, UnsmoothError) as reason:
            self.refused[what] = str(reason)
            return None

    # Sites

    def _tap(self, value: Value, end: Literal["input", "output"]) -> Tap | None:
        """The last place where a value is, in a module that is called once."""
        fit = [one for one in value.places if one.end == end and self.seen.called_once(one.module)]
        if not fit:
            return None
        last = max(fit, key=lambda one: one.order)
        return Tap(last.module, end, copied=not same(last.held.reshape(value.tensor.shape), value.tensor))

    def _tap_of_branch(self, branch: _Branch) -> Tap | None:
        """Where a branch is; before a weight (dim,) multiplies it, where no module gives it after."""
        if (tap := self._tap(branch.value, "output")) is not None:
            return replace(tap, times=branch.times)
        for value in reversed(self.seen.values):
            tap = self._tap(value, "output") if branch.scale == 1.0 and value.first <= branch.made else None
            end = None if tap is None else ends_in(branch.value, value.tensor, self.seen)
            if tap is not None and end is not None and end[0] == "gain" and end[1] is not None:
                return replace(tap, times=end[1])
        return None

    def _module_of(self, branch: _Branch) -> str:
        """The innermost module that runs when the map is formed and has weights, those of the values where known."""
        inside = [] if branch.map_call is None else branch.map_call.inside
        fit = [path for path in reversed(inside) if _has_weights(self.seen, path)]
        if isinstance(maps := branch.maps, ValueMaps):
            fit = [path for path in fit if f"{maps.value}.".startswith(f"{path}.")]
        return next(iter(fit), "")

    def _normed(self, branch: _Branch) -> Tap | None:
        """What attention reads: what the norm before it gives, or what goes into its module."""
        reads, module = self._read_by(branch), self._module_of(branch)
        if reads is None:
            self.refused["normed"] = "what attention reads is not of the stream's shape"
        elif norm := self._norm_before(branch, reads):
            return Tap(norm, "output")
        elif any(one.module == module and one.end == "input" for one in reads.places) and self.seen.called_once(module):
            return Tap(module, "input")
        elif (tap := self._tap(reads, "input")) is not None:
            return tap
        else:
            self.refused["normed"] = "no module that is called once is given it"
        return None

    def _read_by(self, branch: _Branch) -> Value | None:
        """What the value weights read; where those are not known, what the module of the map was given."""
        if isinstance(branch.maps, ValueMaps) and (reads := self._stream_of(branch.maps.reads)) is not None:
            return reads
        module = self._module_of(branch)
        given = (v for v in self.seen.values if any(p.module == module and p.end == "input" for p in v.places))
        return next(given, None)

    def _stream_of(self, reads: Tensor) -> Value | None:
        """The value that a linear map read, which may have been turned, or dealt out to windows."""
        for value in self.seen.values:
            x = value.tensor
            if _equal(x, reads):
                return value
            if x.shape[-1] == reads.shape[-1] and x.numel() <= reads.numel() and _rows_within(x, reads):
                return value
        return None

    def _norms(self, given: Value, gave: Value | None) -> list[str]:
        """Norms that are called once, are given one value and give another; None for any."""
        return [
            one.path
            for one in self.seen.calls
            if is_norm(one) and one.given is given.tensor and self.seen.called_once(one.path)
            if gave is None or one.gave is gave.tensor
        ]

    def _norm_before(self, branch: _Branch, reads: Value) -> str | None:
        """The norm that gives `reads` from the stream before a branch; "" where that is read as it is."""
        norms = self._norms(branch.step.before, reads)
        if reads is branch.step.before:  # only an identity can be between
            return norms[0] if norms and self.steps[0].norm is None else ""
        return norms[0] if norms else None

    def _mid(self) -> Tap | None:
        """The stream that the MLP's branch is added to, where that is not what attention's is added to."""
        mlp = self.mlp
        if mlp is None or mlp.step is self.steps[0] or self._is_parallel():
            return None
        before = mlp.step.before
        after = next((one.norm for one in self.steps if one.handed_on is before), None)
        if after is not None:
            return Tap(after, "output")
        norms = self._norms(before, None)
        if norms:
            return Tap(norms[0], "input")
        tap = self._tap(before, "input") or self._tap(before, "output")
        if tap is None:
            self.refused["mid"] = "no module that is called once reads it"
        return tap

    def _is_parallel(self) -> bool:
        """Whether the MLP reads what attention reads, or another norm of it."""
        if self.mlp is None or self.attention is None:
            return False
        start, reads = self.attention.step.before, self._read_by_mlp()
        return self.mlp.step is self.attention.step or reads is start or bool(reads and self._norms(start, reads))

    # Weights

    def _mlp_calls(self) -> list[ModuleCall]:
        """The linear maps of the MLP, in call order."""
        assert self.mlp is not None
        mixing = [one for one in (self.attention, self.cross) if one is not None]
        start = max((one.made for one in mixing if one.made < self.mlp.made), default=0)
        used = {path for one in mixing if isinstance(m := one.maps, ValueMaps) for path in (m.value, m.output)}
        inside = tuple(f"{path}." for one in mixing if (path := self._module_of(one)))
        calls = [one for one in self.seen.calls if looks_linear(one.module) and start < one.began]
        calls = [one for one in calls if one.ended <= self.mlp.made and one.path not in used]
        calls = [one for one in calls if not f"{one.path}.".startswith(inside or "\0")]
        # Of an adapter, the whole and not the parts.
        return [one for one in calls if not any(f"{other.path}." in one.path for other in calls)]

    def _read_by_mlp(self) -> Value | None:
        calls = self._mlp_calls()
        return self._stream_of(calls[0].given) if calls else None

    def _wiring(self, branch: _Branch) -> Wiring:
        """The parts of the block, with the weights of attention where those are proved."""
        if (reads := self._read_by(branch)) is None or branch.map_call is None:
            raise NotProved("what attention reads is not of the stream's shape")
        style, norms = self._place_of_norms(branch, reads, self.mlp)
        mlp, experts, mlp_end = ((), (), _PLAIN) if self.mlp is None else self._mlp_weights(self.mlp)
        last, end = self._end(branch, branch.map_call)
        x, ends = self.seen.stream.tensor, (end, mlp_end)
        wiring = Wiring(
            style,
            self._module_of(branch),
            "none",
            norms,
            x.shape[-1],
            last=last,
            mlp=mlp,
            experts=experts,
            output_norms=_of_kind(ends, "norm"),
            gains=_gains(ends, (branch, self.mlp)),
            windowed=branch.map_call.maps.shape[-2] not in x.shape[:-1],
            causal=_is_causal(branch.map_call),
            dropout=self._dropout(branch),
            scales=_scales(self.seen.block, (branch, self.mlp)),
            keeps=(branch.step.keeps, 1.0 if self.mlp is None else self.mlp.step.keeps),
            has_mlp=self.others >= 0,
            others=tuple(self._tap_of_branch(one) for one in self.unnamed) if self.others > 0 else (),
            switch=self._switch(style),
        )
        try:
            return self._with_weights(wiring, branch)
        except (NotProved, UnsmoothError) as reason:
            self.refused["weights"] = str(reason)
            return replace(wiring, values=str(reason))

    def _end(self, branch: _Branch, call: MapCall) -> tuple[str | None, End]:
        """The last linear map of attention's branch, where it is known, and how the branch follows from it."""
        calls = [one for one in self.seen.calls if call.order < one.began and one.ended <= branch.made]
        maps = branch.maps
        known = [] if isinstance(maps, str) else [(maps.output, maps.gave)]
        for path, gave in (*known, *((one.path, one.gave) for one in reversed(calls) if looks_linear(one.module))):
            if (end := ends_in(branch.value, gave, self.seen)) is not None:
                return path, end
        norm = next((one.path for one in calls if is_norm(one) and one.gave is branch.value.tensor), None)
        return None, _PLAIN if norm is None else ("norm", norm)

    def _with_weights(self, wiring: Wiring, branch: _Branch) -> Wiring:
        """With the weights that make attention's branch, proved."""
        maps = branch.maps
        if isinstance(maps, str):
            raise NotProved(maps)
        if self._stream_of(maps.reads) is None:
            raise NotProved(f"{maps.value!r} reads neither the stream nor a norm of it: no one linear map makes values")
        x = self.seen.stream.tensor
        windowed = maps.reads.shape[:-1] not in (x.shape[:-1], x.transpose(0, 1).shape[:-1])
        end = None if windowed else ends_in(branch.value, maps.gave, self.seen)
        # Behind a norm, where one gives the branch.
        normed = [one.given for one in self.seen.calls if is_norm(one) and one.gave is branch.value.tensor]
        ends = [branch.value.tensor, *normed] if windowed else []
        if end is None and not any(_rows_within(one, maps.gave) for one in ends):
            raise NotProved(f"what {maps.output!r} gives does not go into the stream as it is, normed or scaled")
        values = replace(_parts_of(maps), logit_scale=self._logit_scale(branch, maps))
        wiring = replace(wiring, values=values, last=maps.output, windowed=windowed)
        within = rounding(self.seen.block)
        prove(wired_values(self.seen.block, wiring), maps, branch.value.tensor * branch.scale, windowed, within)
        return wiring

    def _cross_wiring(self, branch: _Branch) -> Wiring:
        """Cross-attention, proved as attention is; a norm before it is on its queries alone."""
        maps = branch.maps
        if isinstance(maps, str):
            raise NotProved(maps)
        if ends_in(branch.value, maps.gave, self.seen) != _PLAIN:
            raise NotProved(f"what {maps.output!r} gives does not go into the stream as it is")
        after = branch.step.norm
        style: Literal["pre", "post"] = "post" if after else "pre"
        dim = self.seen.stream.tensor.shape[-1]
        wiring = Wiring(style, self._module_of(branch), _parts_of(maps), (after or "", ""), dim, last=maps.output)
        prove(wired_values(self.seen.block, wiring), maps, branch.value.tensor * branch.scale, False)
        return wiring

    def _place_of_norms(
        self, attention: _Branch, reads: Value, mlp: _Branch | None
    ) -> tuple[Literal["pre", "post", "parallel"], tuple[str, str]]:
        """Where the norms stand, and which they are."""
        after = [step.norm for step in self.steps]
        if all(after):
            if reads is not attention.step.before:
                raise NotProved("norms both before and after the additions")
            return "post", (str(attention.step.norm), "" if mlp is None else str(mlp.step.norm))
        if any(after[:-1]) or (after[-1] and not self.others):
            raise NotProved("a norm on the stream after some of the additions")
        first = self._norm_before(attention, reads)
        if first is None:
            raise NotProved("what attention reads is no norm of the stream before it")
        if mlp is None:
            return "pre", (first, "")
        parallel = self._is_parallel()
        second = self._norms((attention if parallel else mlp).step.before, self._read_by_mlp())
        if parallel:
            return "parallel", (first, second[-1] if second else first)
        return "pre", (first, second[0] if second else "")

    def _mlp_weights(self, branch: _Branch) -> tuple[tuple[str, ...], tuple[str, ...], End]:
        """The linear maps of the MLP, or its experts, and how the branch follows from the last one."""
        for place in reversed([one for one in branch.value.places if one.end == "output"]):
            module = self.seen.block.get_submodule(place.module)
            experts = tuple(f"{place.module}.{name}" for name, p in module.named_parameters() if p.ndim == 3)
            if len(experts) > 1 and self._doubles(place.module, experts[-1]):
                return (), experts, _PLAIN
            if experts:
                self.refused["mlp weights"] = f"the branch is not in proportion to {experts[-1]!r} (experts, out, in)"
                return (), (), _PLAIN
        calls = self._mlp_calls()
        for last in reversed(calls):
            if (end := ends_in(branch.value, last.gave, self.seen)) is not None:
                return tuple(dict.fromkeys(one.path for one in calls if one.ended <= last.ended)), (), end
        self.refused["mlp weights"] = "the branch does not follow from the last of its linear maps"
        return (), (), _PLAIN

    def _doubles(self, path: str, last: str) -> bool:
        """Whether a module gives twice as much with its last weight doubled."""
        call = next(one for one in self.seen.calls if one.path == path)
        weight = self.seen.block.get_parameter(last)
        if weight.is_meta:  # offloaded, and cannot be doubled
            return False
        with torch.no_grad():
            twice = {last.removeprefix(f"{path}."): 2 * weight.detach()}
            try:
                gave = torch.func.functional_call(call.module, twice, (call.given,))
            except Exception:  # it takes more than what it was seen to be given
                return False
        gave = gave[0] if isinstance(gave, tuple) else gave
        return weight.shape[-2] == call.gave.shape[-1] and same(gave.reshape(call.gave.shape), 2 * call.gave)

    def _logit_scale(self, branch: _Branch, maps: ValueMaps) -> float | None:
        module, usual = self.seen.block.get_submodule(self._module_of(branch)), maps.heads.dim**-0.5
        said = [getattr(module, name, None) for name in ("scaling", "scale", "softmax_scale")]
        given = next((one for one in said if isinstance(one, float)), maps.map_call.scale)
        return None if given is None or abs(given - usual) < 1e-6 * usual else float(given)

    def _dropout(self, branch: _Branch) -> str | None:
        """What drops attention's branch after the tap: a module that other branches share, or a number."""
        places = [one for one in branch.value.places if one.end == "output"]
        tapped = max((one.order for one in places if self.seen.called_once(one.module)), default=0)
        if after := [one.module for one in places if one.order > tapped]:
            return after[-1]
        for one in self.seen.dropouts:
            if one.share and one.order > tapped and same(one.given, branch.value.tensor):
                return _number_at(self.seen.block, one.inside, one.share)
        return None

    def _switch(self, style: str) -> tuple[str, str | bool, str | bool] | None:
        """The attribute by which a block is told where its norms stand, where it is one of those that are known."""
        for name, pre, post in (("norm_first", True, False), ("style", "pre", "post")):
            if getattr(self.seen.block, name, None) == {"pre": pre, "post": post}.get(style, object()):
                return name, pre, post
        return None


def prove(values: ValueProjection, maps: ValueMaps, branch: Tensor, windowed: bool, within: float = OF_BRANCH) -> None:
    """Rebuild a branch from weights as they are read, and the map, with whatever norm or gate stands between.

    Raises:
        NotProved: It is another, or heads in another order give it too.
    """
    exact = [None if x is None else x.double() for x in (values.b_v, values.b_o, values.gain)]
    weights = replace(values, w_v=values.w_v.double(), w_o=values.w_o.double())
    weights = replace(weights, b_v=exact[0], b_o=exact[1], gain=exact[2])
    if windowed:
        weights, branch = replace(weights, output_norm=None, gain=None), maps.gave
    queries = (maps.maps.shape[0], maps.maps.shape[2])
    turns = [branch, branch.transpose(0, 1)] if branch.ndim == 3 else [branch.reshape(*queries, -1)]
    wanted = [one.double() for one in turns if one.shape[:2] == queries]

    def error(one: ValueProjection) -> float:
        rebuilt = one.attention_output(maps.maps, maps.reads.double())
        return min(float((rebuilt - turn).abs().max() / turn.abs().max()) for turn in wanted)

    if not (found := error(weights)) <= within:
        raise NotProved(
            f"attention rebuilt from its weights differs from the branch by {found:.1e} of its largest entry"
        )
    shifted, none = (replace(weights, w_o=w_o) for w_o in (weights.w_o.roll(1, 0), torch.zeros_like(weights.w_o)))
    # Of what heads make: biases, which may be far larger, are the same in any order.
    if weights.heads > 1 and error(shifted) < min(100 * within, 0.2) * min(1.0, error(none)):
        raise NotProved("heads in another order give the same branch, so the batch cannot tell them apart")


def _parts_of(maps: ValueMaps) -> ValueParts:
    """Where the weights are that a search found."""
    if not maps.own:
        between = {name: getattr(maps, name) for name in ("scale", "latent", "value_norm", "gate", "heads_norm")}
        return ValueParts(maps.heads, maps.value, maps.layout, maps.output, heads_at=maps.heads_norm, **between)
    there = (f"{maps.value}.values", f"{maps.value}.heads")
    return ValueParts(maps.heads, maps.value, maps.layout, maps.output, "in_proj_weight", "in_proj_bias", *there)


def _is_causal(call: MapCall) -> bool | None:
    queries, keys = call.maps.shape[-2:]  # one key more where each head has a sink
    if keys in (queries, queries + 1) and queries > 1 and not bool(call.maps[..., :queries].triu(1).any()):
        return True
    return None if call.value is not None else False


def _as_it_runs(found: BlockParts, call: BlockCall, seen: Record) -> BlockParts:
    """With what a block whose map is not understood shows of the future when it runs on other tokens."""
    wiring = found.wiring
    if wiring is None or isinstance(wiring.values, ValueParts) or wiring.causal is not False:
        return found
    x, tokens = seen.stream.tensor, {one.maps.shape[-2] for one in seen.maps}
    turned = x.ndim == 3 and x.shape[0] in tokens and x.shape[1] not in tokens
    return replace(found, wiring=replace(wiring, causal=hides_later(call, 0 if turned else 1)))


def _of_kind(ends: tuple[End, End], kind: str) -> tuple[str, str] | None:
    """The paths of one kind of end, "" where one of the branches does not have it."""
    first, second = ((path or "") if what == kind else "" for what, path in ends)
    return (first, second) if first or second else None


def _origin(block: nn.Module, scale: float) -> float | str:
    """A number that a branch is multiplied by, or the weight of one number that it comes of, which may be learned."""
    for path, weight in block.named_parameters() if scale != 1.0 else ():
        if weight.numel() == 1 and not weight.is_meta:
            number = weight.detach().double()
            for name, value in ((path, float(number)), (f"tanh {path}", float(number.tanh()))):
                if abs(value - scale) <= OF_BRANCH * abs(scale):
                    return name
    return scale


def _gains(ends: tuple[End, End], branches: tuple[_Branch, _Branch | None]) -> tuple[str, str] | None:
    """The weights that multiply both branches, where their ends are or in the sum."""
    found = _of_kind(ends, "gain") or ("", "")
    times = [one.times if one is not None and isinstance(one.times, str) else "" for one in branches]
    if any(one and other for one, other in zip(found, times, strict=True)):
        raise NotProved("a branch that is multiplied by two weights")
    first, second = (one or other for one, other in zip(found, times, strict=True))
    return (first, second) if first or second else None


def _scales(block: nn.Module, branches: tuple[_Branch, _Branch | None]) -> tuple[float, float]:
    """The numbers that multiply both branches, where no weight of the block can be what they come of."""
    first, second = (1.0 if one is None or isinstance(one.times, str) else one.times for one in branches)
    numbers = [first, second, *(one.step.keeps for one in branches if one is not None)]
    if any(one != 1.0 and not isinstance(one, str) for one in numbers) and any(
        p.numel() == 1 for p in block.parameters()
    ):
        said = ", ".join(f"{one:g}" for one in numbers if not isinstance(one, str) and one != 1.0)
        raise NotProved(f"branches or the stream multiplied by {said}, which may come of weights of one number")
    return first, second


def _number_at(block: nn.Module, inside: tuple[str, ...], share: float) -> str | None:
    """The path of the number by which a function drops a branch, in the modules that were running or their config."""
    for path in ("", *inside)[::-1]:
        module = block.get_submodule(path)
        for home, holder in (("", module), ("config.", getattr(module, "config", None))):
            names = [n for n, v in (vars(holder) if holder is not None else {}).items() if "drop" in n and v == share]
            if names:
                return f"{path}.{home}{names[0]}".lstrip(".")
    return None


def _has_weights(seen: Record, path: str) -> bool:
    return any(p.ndim > 1 for p in seen.block.get_submodule(path).parameters())


def _equal(x: Tensor, reads: Tensor) -> bool:
    """Whether two tensors are the same, or are so with batch and tokens turned."""
    reads = reads.to(x.dtype)
    return same(x, reads) or (x.ndim == 3 and same(x.transpose(0, 1), reads))


def _rows_within(x: Tensor, others: Tensor) -> bool:
    """Whether token vectors are among others, wherever those stand; there may be more of them."""
    rows, pool = x.reshape(-1, x.shape[-1]).double(), others.reshape(-1, others.shape[-1]).double()
    rows = rows[:: max(len(rows) // 64, 1)]
    nearest = torch.cdist(rows, pool, compute_mode="donot_use_mm_for_euclid_dist").min(dim=1).values
    return bool((nearest <= 1e-4 * rows.norm(dim=1).max()).all())
