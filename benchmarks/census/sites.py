"""Whether the numbers of each site are those of a tensor that is what the site says."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.census import finder
from benchmarks.census.finder import Call, Stack
from benchmarks.census.library import MEASURES, asked, curves_of, scan
from benchmarks.census.matching import NEAR, match
from benchmarks.census.truth import Answer, vectors


def within(calls: list[Call], number: int) -> list[Call]:
    """Calls made inside one call."""
    inside = {number}
    found = []
    for call in calls[number + 1 :]:
        if call.enclosing in inside:
            inside.add(call.number)
            found.append(call)
        elif call.enclosing < number:
            break
    return found


@dataclass(frozen=True)
class Sight:
    """A tensor of the stream's shape in a block: when it was there first, and whether a module made it."""

    tensor: Tensor
    first: float
    made: bool


@dataclass(frozen=True)
class Sum:
    """A tensor that is another one and what a module made, times a number or one for each feature (LayerScale)."""

    before: Sight
    after: Sight
    added: Tensor
    made: Sight


class Block:
    """The tensors inside one call of a block that are shaped like its stream, and what they are of each other."""

    def __init__(self, truth: Answer, call: Call, calls: list[Call]) -> None:
        stack: Stack = truth["stack"]
        self.layout, self.real = truth["layout"], truth["real"]
        # Between two blocks something may be added: what this one reads is not what the last one handed on.
        x, y = call.inputs.get(stack.slot, vectors(call.inputs)), call.outputs.get(stack.output, vectors(call.outputs))
        assert x is not None, "a block is handed a stream"
        assert y is not None, "a block hands on a stream"
        self.x, self.y = x, y
        shape = self.layout.tokens(y).shape[:2]
        self.real = self.real if self.real.shape == shape else np.ones(shape, dtype=bool)
        self.calls = within(calls, call.number)
        ends = {one.number: max([one.number, *(it.number for it in within(calls, one.number))]) for one in self.calls}
        seen = [Sight(self.x, -1.0, made=False)]
        for one in self.calls:
            seen += [Sight(it, float(one.number), made=False) for it in self._shaped(one.inputs)]
            seen += [Sight(it, ends[one.number] + 0.5, made=True) for it in self._shaped(one.outputs)]
        self.seen: list[Sight] = []
        for sight in sorted((*seen, Sight(self.y, call.number + 1e9, made=False)), key=lambda sight: sight.first):
            known = next((at for at, it in enumerate(self.seen) if torch.equal(it.tensor, sight.tensor)), None)
            if known is None:
                self.seen.append(sight)
            elif sight.made:
                self.seen[known] = replace(self.seen[known], made=True)
        self.read_by_attention = [it for one in self.calls if one.attends for it in self._shaped(one.inputs)]
        # What is made of the entry alone before attention, though windows may be cut from it.
        self.read_by_attention += [
            it
            for one in self.calls
            if not one.attends and any(torch.equal(read, self.x) for read in self._shaped(one.inputs))
            for it in self._shaped(one.outputs)
        ]
        self.attended = min((ends[one.number] + 0.5 for one in self.calls if one.attends), default=0.0)
        # The sum itself, where a last norm makes of it what is handed on.
        self.ends = [self.y] + [
            it
            for one in self.calls
            if any(torch.equal(made, self.y) for made in self._shaped(one.outputs))
            for it in self._shaped(one.inputs)
        ]
        self.sums = list(self._sums()) if self.keeps_shape else []

    @property
    def keeps_shape(self) -> bool:
        """Whether what is handed on has the shape of what was handed in."""
        return self.x.shape == self.y.shape

    def _shaped(self, tensors: Mapping[str, Tensor]) -> list[Tensor]:
        """Those with as many numbers as the stream in rows of its width: some blocks have all tokens in one row."""
        found = []
        for one in tensors.values():
            flat = one.ndim == 2 and one.shape[-1] == self.y.shape[-1] and one.numel() == self.y.numel()
            if one.is_floating_point() and (one.shape == self.y.shape or flat):
                found.append(one.reshape(self.y.shape))
        return found

    def _sums(self) -> Iterator[Sum]:
        """Every sum of two tensors of which one was there before the other, and a third that a module made."""
        rows_NPC = torch.stack([one.tensor.double().movedim(self._axis, -1).flatten(0, -2) for one in self.seen])
        apart_NN = torch.cdist(rows_NPC.flatten(1), rows_NPC.flatten(1), compute_mode="donot_use_mm_for_euclid_dist")
        apart_NN, sizes_N = apart_NN.square(), rows_NPC.square().sum((1, 2))
        # What a stream of float32 rounds off is more than a millionth of a branch that is a thousandth of it.
        within_NN = 1e-8 * apart_NN + 4e-14 * (sizes_N[None] + sizes_N[:, None])
        later_NN = torch.ones_like(apart_NN).triu(1).bool() & (apart_NN > 1e-9 * sizes_N[None])
        for at, one in enumerate(self.seen):
            if not one.made:
                continue
            shares_NC = torch.einsum("npc,pc->nc", rows_NPC, rows_NPC[at])
            size_C = rows_NPC[at].square().sum(0).clamp(min=1e-30)
            explained_NN = ((shares_NC[None] - shares_NC[:, None]).square() / size_C).sum(-1)
            fits_NN = (apart_NN - explained_NN).abs() <= within_NN
            for start, end in (later_NN & fits_NN).nonzero().tolist():
                if at not in (start, end):
                    before, after = self.seen[start], self.seen[end]
                    yield Sum(before, after, after.tensor - before.tensor, one)
        yield from self._weighed_sums(rows_NPC)

    def _weighed_sums(self, rows_NPC: Tensor) -> Iterator[Sum]:
        """Sums in which the stream is multiplied too, by numbers for each channel: by least squares."""
        starts = [at for at, one in enumerate(self.seen) if at == 0 or not one.made][:12]
        for start in starts:
            a = rows_NPC[start]
            for end in [at for at in {*starts, len(self.seen) - 1} if at > start]:
                c = rows_NPC[end]
                for at in [at for at, one in enumerate(self.seen) if one.made and at not in (start, end)][:40]:
                    b = rows_NPC[at]
                    aa, bb, ab = a.square().sum(0), b.square().sum(0), (a * b).sum(0)
                    apart, ca, cb = (aa * bb - ab.square()).clamp(min=1e-30), (c * a).sum(0), (c * b).sum(0)
                    keeps, gain = (ca * bb - cb * ab) / apart, (cb * aa - ca * ab) / apart
                    least, added = 1e-3 * float(c.norm()), gain * b
                    if float((keeps - 1).abs().max()) < 1e-5 or float((keeps * a + added - c).norm()) > 1e-2 * least:
                        continue
                    if min(float(added.norm()), float((keeps * a).norm())) > least:
                        whole = torch.unflatten(added, 0, self.y.movedim(self._axis, -1).shape[:-1])
                        before, after = self.seen[start], self.seen[end]
                        yield Sum(before, after, whole.movedim(-1, self._axis).float(), self.seen[at])

    @property
    def _axis(self) -> int:
        """Where the features of the stream are."""
        return 1 if self.layout.kind == "places, width second" else -1

    def measured(self, one: Tensor) -> dict[str, float]:
        """Both measures of one tensor."""
        return {name: found[0] for name, found in finder.curve([self.layout.tokens(one)], self.real).items()}

    def has(self, numbers: Mapping[str, float], among: Iterable[Tensor]) -> bool:
        """Whether some tensor has these numbers."""
        return any(
            np.allclose([found[name] for name in numbers], [*numbers.values()], rtol=0, atol=NEAR, equal_nan=True)
            for found in map(self.measured, among)
        )

    def branches(self) -> Iterator[Tensor]:
        """What is added to the stream, as it is added: alone, or in parallel, where two make the whole difference."""
        for one in self.sums:
            yield one.added
        made = [one.tensor for one in self.seen if one.made]
        for end in self.ends if self.keeps_shape else ():
            for at, one in enumerate(made):
                for other in made[at + 1 :]:
                    if _along(end - self.x - other, one) < 1e-8:
                        yield from (one, end - self.x - one)

    def middles(self) -> Iterator[Tensor]:
        """The stream after attention: what was there after it, and to which the last branch is added."""
        for one in self.sums:
            is_last = any(torch.equal(one.after.tensor, end) for end in self.ends)
            if is_last and self.attended <= one.before.first < one.made.first:
                yield one.before.tensor


def _along(one: Tensor, other: Tensor) -> float:
    """How far one tensor is from a multiple of another, 0 to 1."""
    a, b = one.double().reshape(-1), other.double().reshape(-1)
    size = float(b @ b) * float(a @ a)
    if size == 0:
        return 1.0
    return float(1 - (a @ b) ** 2 / size)


def ask_sites(model: nn.Module, data: Any, truths: list[Answer], calls: list[Call]) -> Answer:
    """Each site of each stack: "proved", "unproved" (nothing speaks for it), "wrong" (no tensor has its numbers)."""
    said, scanned = asked(lambda: scan(model, data, sites="all"))
    if scanned is None:
        return {"said": said}
    found, _ = match(curves_of(scanned), truths)
    answer: Answer = {"said": "done", "stacks": {}}
    for name, group in found.items():
        if any(truths[number]["stack"].slot == "rows" for number in group):
            continue
        judged: dict[str, str] = {}
        blocks: list[Block] = []
        for site in scanned.sites:
            if site == "residual":
                continue
            theirs = curves_of(scanned, site).get(name)
            if theirs is None:
                continue
            blocks = blocks or _blocks(truths, group, calls, len(theirs[MEASURES[0]]))
            if len(theirs[MEASURES[0]]) != len(blocks):
                judged[site] = "unproved"
                continue
            verdicts = [
                _site_verdict(site, block, {m: theirs[m][at] for m in MEASURES}) for at, block in enumerate(blocks)
            ]
            judged[site] = next((one for one in ("wrong", "unproved") if one in verdicts), "proved")
        answer["stacks"][name] = judged
    return answer


def _blocks(truths: list[Answer], group: list[int], calls: list[Call], count: int) -> list[Block]:
    """The blocks of some stacks, or of the reading of their stages as one stack that has so many."""
    own = [(truths[number], calls[block]) for number in group for block in truths[number]["stack"].calls]
    first = truths[group[0]]
    for other in first["others"].values() if len(own) != count else ():
        if len(other.get("blocks", ())) == count:
            own = [(first, call) for call in other["blocks"]]
    return [Block(truth, call, calls) for truth, call in own]


def _site_verdict(site: str, block: Block, numbers: Mapping[str, float]) -> str:
    if site == "normed":
        proofs: Iterable[Tensor] = [*block.read_by_attention, block.x]
    else:
        proofs = block.middles() if site == "mid" else block.branches()
    if block.has(numbers, proofs):
        return "proved"
    everything = [*(one.tensor for one in block.seen), *(one.added for one in block.sums)]
    return "unproved" if block.has(numbers, everything) else "wrong"
