"""The parts of a block, whatever its class: proposed from one recorded call, accepted only where the numbers agree.

Its branches are those that the sums along the stream show; attention's is the one that follows an attention map. The
weights that make it are accepted where what is read off them, with that map, rebuilds the branch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn

from unsmooth.errors import UnsmoothError
from unsmooth.models.block_parts import norm_at
from unsmooth.models.block_record import OF_BRANCH, BlockCall, MapCall, ModuleCall, Record, Value, record, same
from unsmooth.models.host import Cross, Tap
from unsmooth.models.qkv_layouts import read_values
from unsmooth.models.residual_search import Joined, ends_in, find_steps, is_norm
from unsmooth.models.value_projection import ValueProjection
from unsmooth.models.value_search import ValueMaps, find_value_maps
from unsmooth.models.wiring import Wiring, wired_values


@dataclass(frozen=True)
class BlockParts:
    """What was found and proved of one kind of block.

    Args:
        taps: Site to where its tensor is.
        wiring: Its parts by path; None where they were not proved.
        attention_module: The module inside which the attention map is formed; None where no map was seen.
        cross: Its cross-attention, where it has some whose weights were proved.
        refused: What was not found or not accepted, with the reason: a site, "weights", "cross weights" or "mlp weights".
    """

    taps: Mapping[str, Tap]
    wiring: Wiring | None = None
    attention_module: str | None = None
    cross: Cross | None = None
    refused: Mapping[str, str] = field(default_factory=dict)


@dataclass
class _Branch:
    """One branch: what it adds, where, and the attention call it follows, if any."""

    value: Value
    scale: float
    step: Joined
    place: int
    call: MapCall | None = None


class NotProved(Exception):  # noqa: N818 - a reason, not an error
    """Why a part is not accepted."""


def find_parts(call: BlockCall) -> BlockParts:
    """Run a block again on what it was called with, and find its parts; louder where its branches hardly show."""
    try:
        found = resolve(record(call))
        if {"attention", "mlp"} & set(found.refused):
            louder = resolve(record(call, loud=True))
            return min(found, louder, key=lambda one: len(one.refused))
        return found
    except Exception as error:  # a block may do anything when it is run by itself
        return BlockParts({}, refused={"block": f"run again by itself, it raised {type(error).__name__}: {error}"})


def resolve(seen: Record) -> BlockParts:
    """The parts of a block from a record of one of its calls."""
    refused: dict[str, str] = {}
    steps = find_steps(seen)
    if isinstance(steps, str):
        refused["attention"] = refused["mlp"] = steps
        return BlockParts({}, None, _where_maps_are(seen), None, refused)
    return _Search(seen, steps, refused).parts()


def _where_maps_are(seen: Record) -> str | None:
    return next((path for call in seen.maps for path in reversed(call.inside) if _has_weights(seen, path)), None)


def _has_weights(seen: Record, path: str) -> bool:
    return any(p.ndim > 1 for p in seen.block.get_submodule(path).parameters())


class _Search:
    """The search through one record, part by part."""

    def __init__(self, seen: Record, steps: list[Joined], refused: dict[str, str]) -> None:
        self.seen, self.steps, self.refused = seen, steps, refused
        self.branches = [
            _Branch(value, scale, step, place)
            for place, step in enumerate(steps)
            for value, scale in zip(step.branches, step.scales, strict=True)
        ]
        self.found: dict[str, ValueMaps | str] = {}
        self.attention = self.cross = self.mlp = None
        self._assign()

    def _assign(self) -> None:
        """Each attention map belongs to the first branch that appears after it; the last one that is left is the MLP's."""
        self.attention: _Branch | None
        self.cross: _Branch | None
        self.mlp: _Branch | None
        for call in self.seen.maps:
            later = [one for one in self.branches if self._made(one) > call.order]
            if not later:
                continue
            branch = min(later, key=self._made)
            maps = find_value_maps(self.seen, call, self._made(branch))
            if isinstance(maps, str) and call.maps.ndim == 3 and call.maps.shape[-1] != call.maps.shape[-2]:
                continue  # a softmax over something else, as routers of experts have
            if branch.call is not None and (isinstance(maps, str) or not isinstance(self.found[self._name(branch)], str)):
                if not isinstance(maps, str):
                    self.found[self._name(branch)] = "more than one attention map in one branch"
                continue
            reads_other = not isinstance(maps, str) and any(_holds(one, maps.reads) for one in self.seen.others)
            if branch.call is None:
                branch.call = call
                if reads_other and self.cross is None:
                    self.cross = branch
                elif self.attention is None:
                    self.attention = branch
                else:
                    self.cross = self.cross or branch
            self.found[self._name(branch)] = maps
        rest = [one for one in self.branches if one.call is None]
        if len(rest) == (1 if self.attention is not None else 2):
            self.mlp = rest[-1]  # without a map, tokens are mixed by something else before it
        elif rest:
            self.refused["mlp"] = f"{len(rest)} branches beside attention"
        else:
            self.refused["mlp"] = "no branch beside attention"
        if self.attention is None:
            self.refused["attention"] = "no attention map that torch can see before a branch"

    def _made(self, branch: _Branch) -> int:
        return min((one.order for one in branch.value.places if one.end != "input"), default=branch.value.first)

    def _name(self, branch: _Branch) -> str:
        return "cross" if branch is self.cross else "attention"

    def parts(self) -> BlockParts:
        """All that is found, with what is refused."""
        taps: dict[str, Tap] = {}
        maps = self.found.get("attention")
        for site, branch in (("attention", self.attention), ("cross", self.cross), ("mlp", self.mlp)):
            if branch is not None:
                tap = self._tap(branch.value, ("output",))
                if tap is None and (gained := self._before_gain(branch)) is not None:
                    taps[site] = gained
                elif tap is None:
                    self.refused[site] = "no module that is called once gives it as it is added"
                else:
                    taps[site] = replace(tap, times=branch.scale)
        if self.attention is not None and (normed := self._normed(maps)) is not None:
            taps["normed"] = normed
        if (mid := self._mid()) is not None:
            taps["mid"] = mid
        wiring = None
        if self.attention is not None and "attention" in taps:
            try:
                wiring = self._wiring(maps)
            except (NotProved, UnsmoothError) as reason:
                self.refused["weights"] = str(reason)
        cross = None
        if self.cross is not None and "cross" in taps:
            try:
                cross = self._cross(self.found["cross"])
            except (NotProved, UnsmoothError) as reason:
                self.refused["cross weights"] = str(reason)
        attention_module = None if self.attention is None else self._attention_module(self.attention, maps)
        order = ("normed", "attention", "cross", "mid", "mlp")
        return BlockParts({s: taps[s] for s in order if s in taps}, wiring, attention_module, cross, self.refused)

    # --- sites -----------------------------------------------------------------------------------------------------

    def _tap(self, value: Value, ends: tuple[str, ...]) -> Tap | None:
        """The last place where a value is, in a module that is called once."""
        fit = [one for one in value.places if one.end in ends and self.seen.called_once(one.module)]
        if not fit:
            return None
        last = max(fit, key=lambda one: one.order)
        return Tap(last.module, "output" if last.end == "output" else "input", copied=not same(last.held.reshape(value.tensor.shape), value.tensor))

    def _before_gain(self, branch: _Branch) -> Tap | None:
        """Where a branch is before a weight (dim,) multiplies it, where no module that is called once gives it after."""
        for value in reversed(self.seen.values):
            tap = self._tap(value, ("output",))
            if tap is None or branch.scale != 1.0 or self._made(branch) < value.first:
                continue
            how = ends_in(branch.value, value.tensor, self.seen)
            if how is not None and how[0] == "gain" and how[1] is not None:
                return replace(tap, times=how[1])
        return None

    def _attention_module(self, branch: _Branch, maps: ValueMaps | str | None) -> str | None:
        """The innermost module that runs when the map is formed and has weights, those of the values where known."""
        assert branch.call is not None
        inside = [path for path in reversed(branch.call.inside) if _has_weights(self.seen, path)]
        if isinstance(maps, ValueMaps):
            inside = [path for path in inside if maps.value == path or maps.value.startswith(f"{path}.")]
        return next(iter(inside), "")

    def _normed(self, maps: ValueMaps | str | None) -> Tap | None:
        """What attention reads: what the norm before it gives, or what goes into its module."""
        assert self.attention is not None
        reads = self._read_by_attention(maps)
        if reads is None:
            self.refused["normed"] = "what attention reads is not of the stream's shape"
            return None
        norm = self._norm_before(self.attention, reads)
        if norm:
            return Tap(norm, "output")
        module = self._attention_module(self.attention, maps)
        fit = [one for one in reads.places if one.end == "input" and self.seen.called_once(one.module)]
        if not fit:
            self.refused["normed"] = "no module that is called once is given it"
            return None
        own = next((one for one in fit if one.module == module), fit[-1])
        return Tap(own.module, "input")

    def _read_by_attention(self, maps: ValueMaps | str | None) -> Value | None:
        assert self.attention is not None and self.attention.call is not None
        if isinstance(maps, ValueMaps) and (reads := self._stream_of(maps.reads)) is not None:
            return reads
        # The weights are not known: what the module of the map was given, if a norm of the stream gave that.
        module = self._attention_module(self.attention, maps)
        for value in self.seen.values:
            if any(one.module == module and one.end == "input" for one in value.places):
                return value
        return None

    def _stream_of(self, reads: Tensor) -> Value | None:
        """The value that a linear map read, which may have been turned, or dealt out to windows."""
        for value in self.seen.values:
            x = value.tensor
            if x.ndim == 3 and (same(x, reads.to(x.dtype)) or same(x.transpose(0, 1), reads.to(x.dtype))):
                return value
            if x.shape[-1] == reads.shape[-1] and x.numel() <= reads.numel() and _rows_within(x, reads):
                return value
        return None

    def _norm_before(self, branch: _Branch, reads: Value) -> str | None:
        """The norm that gives `reads` from the stream before a branch; "" where that is read as it is."""
        stream = self._stream_before(branch)
        if reads is stream:
            idle = [c for c in self.seen.calls if type(c.module) is nn.Identity and c.given is stream.tensor]
            idle = [c for c in idle if "norm" in c.path.rpartition(".")[2] and c.ended < self._made(branch)]
            return idle[-1].path if idle and self.steps[0].norm is None else ""
        for one in self.seen.calls:
            if is_norm(one) and one.given is stream.tensor and one.gave is reads.tensor:
                if self.seen.called_once(one.path):
                    return one.path
        return None

    def _stream_before(self, branch: _Branch) -> Value:
        return branch.step.before

    def _mid(self) -> Tap | None:
        if self.mlp is None or self.mlp.place == 0 or (self.attention is not None and self._is_parallel()):
            return None
        before = self.mlp.step.before
        if self.steps[0].norm is not None:
            norm = next((one.norm for one in self.steps if one.handed_on is before), None)
            return None if norm is None else Tap(norm, "output")
        norm = self._norm_before(self.mlp, before) or next(
            (c.path for c in self.seen.calls if is_norm(c) and c.given is before.tensor and self.seen.called_once(c.path)),
            None,
        )
        if norm:
            return Tap(norm, "input")
        tap = self._tap(before, ("input", "output"))
        if tap is None:
            self.refused["mid"] = "no module that is called once reads it"
        return tap

    def _is_parallel(self) -> bool:
        """Whether the MLP reads what attention reads, or a norm of it."""
        assert self.mlp is not None and self.attention is not None
        if self.mlp.step is self.attention.step:
            return True
        return self.mlp.place > self.attention.place and self._mlp_reads() is not None and self._reads_start()

    def _mlp_calls(self) -> list[ModuleCall]:
        """The linear maps of the MLP, in call order."""
        assert self.mlp is not None
        last = self._made(self.mlp)
        attention = [one for one in (self.attention, self.cross) if one is not None]
        start = max((self._made(one) for one in attention if self._made(one) < last), default=-1)
        prefixes = [
            path for one in attention if (path := self._attention_module(one, self.found.get(self._name(one))))
        ]
        used = [path for one in self.found.values() if isinstance(one, ValueMaps) for path in (one.value, one.output)]
        first_map = min((one.call.order for one in attention if one.call is not None), default=-1)
        calls = []
        for one in self.seen.calls:
            linear = isinstance(one.module, nn.Linear) or type(one.module).__name__ in ("Conv1D", "FalconLinear")
            linear = linear or hasattr(one.module, "base_layer")
            if not linear or one.path in used or any(one.path.startswith(f"{path}.") for path in prefixes):
                continue
            if ".base_layer" in one.path or ".lora_" in one.path:
                continue
            if start < one.began and one.ended <= last or (start == -1 and one.ended <= last and one.began > 0):
                calls.append(one)
        return calls if first_map else []

    def _mlp_reads(self) -> Value | None:
        calls = self._mlp_calls()
        return self._stream_of(calls[0].given) if calls else None

    def _reads_start(self) -> bool:
        assert self.mlp is not None and self.attention is not None
        reads, start = self._mlp_reads(), self.attention.step.before
        assert reads is not None
        if reads is start:
            return True
        return any(is_norm(c) and c.given is start.tensor and c.gave is reads.tensor for c in self.seen.calls)

    # --- weights ---------------------------------------------------------------------------------------------------

    def _wiring(self, maps: ValueMaps | str | None) -> Wiring:
        """The parts of the block, proved."""
        if not isinstance(maps, ValueMaps):
            raise NotProved(str(maps))
        assert self.attention is not None
        reads = self._stream_of(maps.reads)
        if reads is None:
            raise NotProved(f"{maps.value!r} reads neither the stream nor a norm of it: values are no one linear map of it")
        batch_and_tokens = {self.seen.stream.tensor.shape[:-1], self.seen.stream.tensor.transpose(0, 1).shape[:-1]}
        windowed = maps.reads.shape[:-1] not in batch_and_tokens
        end = None if windowed else ends_in(self.attention.value, maps.gave, self.seen)
        if end is None and not (windowed and _rows_within(self.attention.value.tensor, maps.gave)):
            raise NotProved(f"what {maps.output!r} gives does not go into the stream as it is, normed or scaled")
        style, norms = self._norms(reads)
        mlp, experts, mlp_end = self._mlp_weights()
        pairs = [end or ("plain", None), mlp_end]
        wiring = Wiring(
            style=style,
            heads=maps.heads,
            attention=self._attention_module(self.attention, maps) or "",
            value=maps.value,
            layout=maps.layout,
            output=maps.output,
            norms=norms,
            mlp=mlp,
            experts=experts,
            output_norms=_both(pairs, "norm"),
            gains=_both(pairs, "gain"),
            windowed=windowed,
            causal=self._causal(maps),
            logit_scale=self._logit_scale(maps),
            dropout=self._dropout(),
            scales=(self.attention.scale, self.mlp.scale if self.mlp is not None else 1.0),
            switch=self._switch(style),
        )
        if maps.own:
            wiring = replace(
                wiring,
                value_weight="in_proj_weight",
                value_bias="in_proj_bias",
                values_at=f"{maps.value}.values",
                heads_at=f"{maps.value}.heads",
            )
        prove(wired_values(self.seen.block, wiring), maps, self.attention.value.tensor * self.attention.scale, windowed)
        return wiring

    def _norms(self, reads: Value) -> tuple[str, tuple[str, str]]:
        """Where the norms stand, and which they are."""
        assert self.attention is not None
        after = [step.norm for step in self.steps]
        if all(after):
            if reads is not self.attention.step.before:
                raise NotProved("norms both before and after the additions")
            if self.mlp is None:
                raise NotProved("no branch of an MLP")
            return "post", (str(self.attention.step.norm), str(self.mlp.step.norm))
        if any(after):
            raise NotProved("a norm on the stream after some of the additions")
        first = self._norm_before(self.attention, reads)
        if first is None:
            raise NotProved("what attention reads is no norm of the stream before it")
        if self.mlp is None:
            raise NotProved(self.refused.get("mlp", "no branch of an MLP"))
        mlp_reads = self._mlp_reads()
        if self._is_parallel():
            start = self.attention.step.before
            fit = [
                c.path for c in self.seen.calls if is_norm(c) and c.given is start.tensor and mlp_reads is not None
                and c.gave is mlp_reads.tensor and self.seen.called_once(c.path)
            ]  # fmt: skip
            return "parallel", (first, fit[-1] if fit else first)
        before = self.mlp.step.before
        for one in self.seen.calls:
            if is_norm(one) and one.given is before.tensor and self.seen.called_once(one.path):
                if mlp_reads is None or one.gave is mlp_reads.tensor:
                    return "pre", (first, one.path)
        return "pre", (first, "")

    def _mlp_weights(self) -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, str | None]]:
        """The linear maps of the MLP, or its experts, and how the branch follows from the last one."""
        assert self.mlp is not None
        value = self.mlp.value
        holders = [one.module for one in value.places if one.end == "output"]
        for holder in reversed(holders):
            module = self.seen.block.get_submodule(holder)
            experts = tuple(f"{holder}.{n}" for n, p in module.named_parameters() if p.ndim == 3)
            if len(experts) > 1:
                if self._doubled(holder, experts[-1]):
                    return (), experts, ("plain", None)
                self.refused["mlp weights"] = f"the branch is not in proportion to {experts[-1]!r}"
                return (), (), ("plain", None)
        calls = self._mlp_calls()
        for last in reversed(calls):
            end = ends_in(value, last.gave, self.seen)
            if end is not None:
                mlp = tuple(dict.fromkeys(one.path for one in calls if one.ended <= last.ended))
                return mlp, (), end
        self.refused["mlp weights"] = "the branch does not follow from the last of its linear maps"
        return (), (), ("plain", None)

    def _doubled(self, holder: str, last: str) -> bool:
        """Whether a module gives twice as much with its last weight doubled."""
        call = next(one for one in self.seen.calls if one.path == holder)
        weight = self.seen.block.get_parameter(last)
        swapped = {last.removeprefix(f"{holder}."): 2 * weight.detach()}
        with torch.no_grad():
            gave = torch.func.functional_call(call.module, swapped, (call.given,))
        gave = gave[0] if isinstance(gave, tuple) else gave
        return weight.shape[-2] == call.gave.shape[-1] and same(gave.reshape(call.gave.shape), 2 * call.gave)

    def _causal(self, maps: ValueMaps) -> bool | None:
        queries, keys = maps.maps.shape[-2:]
        if queries == keys > 1 and not bool(maps.maps.triu(1).any()):
            return True
        return None if maps.own else False

    def _logit_scale(self, maps: ValueMaps) -> float | None:
        module = self.seen.block.get_submodule(self._attention_module(self.attention, maps) or "")  # type: ignore[arg-type]
        usual = maps.heads.dim**-0.5
        said = [getattr(module, name, None) for name in ("scaling", "scale", "softmax_scale")]
        given = next((one for one in said if isinstance(one, float)), maps.map_call.scale)
        return None if given is None or abs(given - usual) < 1e-6 * usual else float(given)

    def _dropout(self) -> str | None:
        """What drops attention's branch after the tap: a module that other branches share, or a number."""
        assert self.attention is not None
        places = [one for one in self.attention.value.places if one.end == "output"]
        tapped = max((one.order for one in places if self.seen.called_once(one.module)), default=0)
        after = [one.module for one in places if one.order > tapped]
        if after:
            return after[-1]
        for one in self.seen.dropouts:
            if one.share and one.order > tapped and same(one.given, self.attention.value.tensor):
                return _number_at(self.seen.block, one.inside, one.share)
        return None

    def _switch(self, style: str) -> tuple[str, str | bool, str | bool] | None:
        """The attribute by which a block is told where its norms stand, where it is one of those that are known."""
        for name, pre, post in (("norm_first", True, False), ("style", "pre", "post")):
            if getattr(self.seen.block, name, None) == {"pre": pre, "post": post}.get(style, object()):
                return name, pre, post
        return None

    def _cross(self, maps: ValueMaps | str) -> Cross:
        """Cross-attention, proved as attention is."""
        if not isinstance(maps, ValueMaps):
            raise NotProved(maps)
        assert self.cross is not None
        if (ends_in(self.cross.value, maps.gave, self.seen) or ("", ""))[0] != "plain":
            raise NotProved(f"what {maps.output!r} gives does not go into the stream as it is")
        read = CrossValues(maps.value, maps.output, maps.layout, maps.heads, self.cross.step.norm, maps.own)
        prove(read(self.seen.block), maps, self.cross.value.tensor * self.cross.scale, False)
        return Cross(self._attention_module(self.cross, maps) or "", read)


@dataclass(frozen=True)
class CrossValues:
    """Reads the weights of cross-attention off a block; a norm before it is on its queries alone."""

    value: str
    output: str
    layout: object
    heads: object
    norm: str | None
    own: bool

    def __call__(self, block: nn.Module) -> ValueProjection:
        """The weights of `block`."""
        from unsmooth.models.block_parts import optional, weight_at

        value: object = self.value
        if self.own:
            value = (weight_at(block, f"{self.value}.in_proj_weight").mT, optional(block, self.value, "in_proj_bias"))
        return read_values(
            block,
            value=value,  # type: ignore[arg-type]
            output=self.output,
            layout=self.layout,  # type: ignore[arg-type]
            heads=self.heads,  # type: ignore[arg-type]
            place="pre" if self.norm is None else "post",
            norm=self.norm,
        )


def prove(values: ValueProjection, maps: ValueMaps, branch: Tensor, windowed: bool) -> None:
    """Rebuild a branch from weights as they are read and the map; refuse where it is another, or another order fits too."""
    weights = replace(
        values,
        **{name: None if (t := getattr(values, name)) is None else t.double() for name in ("w_v", "w_o", "b_v", "b_o", "gain")},
    )
    if windowed:
        weights, branch = replace(weights, output_norm=None, gain=None), maps.gave
    turned = branch.ndim == 3 and branch.shape[:2] != (maps.maps.shape[0], maps.maps.shape[2])
    wanted = (branch.transpose(0, 1) if turned else branch).double().reshape(*maps.reads.shape[0:1], -1, branch.shape[-1])

    def error(one: ValueProjection) -> float:
        rebuilt = one.attention_output(maps.maps, maps.reads.double())
        return float((rebuilt - wanted).abs().max() / wanted.abs().max())

    if (found := error(weights)) > OF_BRANCH:
        raise NotProved(f"attention rebuilt from its weights differs from the branch by {found:.1e} of its largest number")
    shifted = replace(weights, w_o=weights.w_o.roll(1, 0))
    if weights.heads > 1 and error(shifted) < 100 * OF_BRANCH:
        raise NotProved("heads in another order give the same branch, so the batch cannot tell them apart")


def _number_at(block: nn.Module, inside: tuple[str, ...], share: float) -> str | None:
    """The path of the number by which a function drops a branch, in the modules that were running or their config."""
    for path in ("", *inside)[::-1]:
        module = block.get_submodule(path)
        for home, holder in (("", module), ("config.", getattr(module, "config", None))):
            names = [n for n, v in (vars(holder) if holder is not None else {}).items() if "drop" in n and v == share]
            if names:
                return f"{path}.{home}{names[0]}".lstrip(".")
    return None


def _both(ends: list[tuple[str, str | None]], kind: str) -> tuple[str, str] | None:
    """The paths of one kind of end, where both branches have it."""
    paths = [path for what, path in ends if what == kind and path is not None]
    if len(paths) == 1:
        raise NotProved(f"a {kind} on one branch alone")
    return (paths[0], paths[1]) if paths else None


def _holds(tensor: Tensor, reads: Tensor) -> bool:
    if tensor.ndim != 3 or not tensor.dtype.is_floating_point:
        return False
    return same(tensor, reads.to(tensor.dtype)) or same(tensor.transpose(0, 1), reads.to(tensor.dtype))


def _rows_within(x: Tensor, others: Tensor) -> bool:
    """Whether token vectors are among others, wherever those stand; there may be more of them."""
    rows, pool = x.reshape(-1, x.shape[-1]).double(), others.reshape(-1, others.shape[-1]).double()
    rows = rows[:: max(len(rows) // 64, 1)]
    nearest = torch.cdist(rows, pool, compute_mode="donot_use_mm_for_euclid_dist").min(dim=1).values
    return bool((nearest <= 1e-4 * rows.norm(dim=1).max()).all())


__all__ = ["BlockParts", "Tensor", "find_parts", "norm_at", "prove", "resolve"]
