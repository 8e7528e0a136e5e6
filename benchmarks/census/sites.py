"""Whether the numbers of each site are those of a tensor that is what the site says."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.census import finder
from benchmarks.census.finder import Call, Stack
from benchmarks.census.library import MEASURES, asked, curves_of, scan
from benchmarks.census.matching import NEAR, match
from benchmarks.census.truth import Answer


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


def _along(one: Tensor, other: Tensor) -> float:
    """How far one tensor is from a multiple of another, 0 to 1."""
    a, b = one.double().reshape(-1), other.double().reshape(-1)
    size = float(b @ b) * float(a @ a)
    if size == 0:
        return 1.0
    return float(1 - (a @ b) ** 2 / size)


class Block:
    """The tensors inside one call of a block that are shaped like its stream, and what they are of each other."""

    def __init__(self, truth: Answer, layer: int, calls: list[Call]) -> None:
        stack: Stack = truth["stack"]
        self.layout, self.real = truth["layout"], truth["real"]
        self.x, self.y = stack.values[layer - 1], stack.values[layer]
        self.calls = within(calls, stack.calls[layer - 1])
        shape = self.x.shape
        self.made = self._distinct(one for call in self.calls for one in call.outputs.values() if one.shape == shape)
        self.read = self._distinct(one for call in self.calls for one in call.inputs.values() if one.shape == shape)
        self.read_by_attention = self._distinct(
            one for call in self.calls if call.attends for one in call.inputs.values() if one.shape == shape
        )
        # What is made of the entry alone before attention, though windows may be cut from it.
        self.read_by_attention += self._distinct(
            one
            for call in self.calls
            if not call.attends
            and any(read.shape == shape and torch.equal(read, self.x) for read in call.inputs.values())
            for one in call.outputs.values()
            if one.shape == shape
        )
        self.attending = self._distinct(
            one for call in self.calls if call.attends for one in call.outputs.values() if one.shape == shape
        )

        joined = list(self._gained())
        self.added = self._distinct(added for _, _, added in joined)
        self.from_entry = [end for start, end, _ in joined if torch.equal(start, self.x)]

    def _gained(self) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Parts of the stream that are an earlier one and a tensor, each times numbers by channel, with what is added.

        So a branch is added that is multiplied by weights of the block itself: no module gives it as it is added. So is
        one to a stream that is multiplied too.
        """
        dim = 1 if self.layout.kind == "places, width second" else self.x.ndim - 1
        for start in (self.x, *self.read[:12]):
            a = start.double().movedim(dim, -1).flatten(0, -2)
            for end in (*self.read[:12], self.y):
                c = end.double().movedim(dim, -1).flatten(0, -2)
                if torch.equal(start, end) or float((c - a).abs().max()) <= 1e-3 * float(a.abs().max()):
                    continue
                for made in self.made[:40]:
                    b = made.double().movedim(dim, -1).flatten(0, -2)
                    keeps, gain = self._by_channel(a, b, c)
                    added = gain * b
                    least, error = 1e-3 * float(c.norm()), float((keeps * a + added - c).norm())
                    if min(float(added.norm()), float((keeps * a).norm())) > least and error <= 1e-2 * least:
                        whole = torch.unflatten(added, 0, made.movedim(dim, -1).shape[:-1])
                        yield start, end, whole.movedim(-1, dim).float()
                        break

    @staticmethod
    def _by_channel(a: Tensor, b: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        """The numbers by channel that bring two tensors, added up, nearest to a third, for all tokens the same."""
        more = c - a
        alone = (more * b).sum(0) / b.square().sum(0).clamp(min=1e-30)
        if float((alone * b - more).norm()) <= 1e-5 * float(more.norm()):
            return torch.ones_like(alone), alone
        aa, bb, ab = a.square().sum(0), b.square().sum(0), (a * b).sum(0)
        apart = (aa * bb - ab.square()).clamp(min=1e-30)
        ca, cb = (c * a).sum(0), (c * b).sum(0)
        return (ca * bb - cb * ab) / apart, (cb * aa - ca * ab) / apart

    @staticmethod
    def _distinct(found: Any) -> list[Tensor]:
        kept: list[Tensor] = []
        for one in found:
            if one.is_floating_point() and not any(torch.equal(one, other) for other in kept):
                kept.append(one)
        return kept[:80]

    def measured(self, one: Tensor) -> dict[str, float]:
        """Both measures of one tensor."""
        return {name: found[0] for name, found in finder.curve([self.layout.tokens(one)], self.real).items()}

    def like(self, numbers: Mapping[str, float], among: list[Tensor]) -> list[Tensor]:
        """Tensors that have these numbers."""
        return [one for one in among if all(abs(self.measured(one)[name] - numbers[name]) <= NEAR for name in numbers)]

    def is_branch(self, one: Tensor) -> bool:
        """Whether something is added to the stream: a sum that another part reads, or that is handed on."""
        starts = [self.x, *self.read, *self.made]
        ends = [self.y, *self.read, *self.made]
        for start in starts:
            if torch.equal(start, one):
                continue
            for end in ends:
                if torch.equal(end, start) or torch.equal(end, one):
                    continue
                if _along(end - start, one) < 1e-8:
                    return True
        if any(_along(added, one) < 1e-8 for added in self.added):
            return True
        # In parallel: two branches make the whole difference.
        return any(
            not torch.equal(other, one) and _along(end - self.x - other, one) < 1e-8
            for end in (self.y, *self.read[:12])
            for other in self.made
        )

    def is_middle(self, one: Tensor) -> bool:
        """Whether a tensor is the stream after attention: the entry and a branch, with or without a norm after."""
        sums = [one]
        for call in self.calls:
            if any(torch.equal(one, made) for made in call.outputs.values() if made.shape == one.shape):
                sums += [read for read in call.inputs.values() if read.shape == one.shape]
        made = [*self.made, *self.added]
        for total in sums:
            if torch.equal(total, self.x):
                continue
            if any(_along(total - self.x, branch) < 1e-8 for branch in made):
                return True
            if any(torch.equal(total, end) for end in self.from_entry):
                return True
            for first in made[:40]:
                if any(_along(total - self.x - first, second) < 1e-8 for second in made[:40] if second is not first):
                    return True
        return any(torch.equal(total, reached) for total in sums for reached in self._behind_attention())

    def _behind_attention(self) -> list[Tensor]:
        """Streams that come of the entry by adding one branch after another, attention's among them."""
        reached, behind = [self.x], [False]
        for read in [one for one in self.read[:16] for _ in range(2)]:
            if any(torch.equal(read, one) for one in reached):
                continue
            for start, attended in zip(list(reached), list(behind), strict=True):
                branch = next((one for one in self.made[:40] if _along(read - start, one) < 1e-8), None)
                if branch is not None:
                    reached.append(read)
                    behind.append(attended or any(torch.equal(branch, one) for one in self.attending))
                    break
        return [one for one, attended in zip(reached, behind, strict=True) if attended]


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
        layers = [(number, layer) for number in group for layer in range(1, len(truths[number]["stack"].calls) + 1)]
        judged: dict[str, str] = {}
        blocks = [Block(truths[number], layer, calls) for number, layer in layers]
        for site in scanned.sites:
            if site == "residual":
                continue
            theirs = curves_of(scanned, site).get(name)
            if theirs is None:
                continue
            if len(theirs[MEASURES[0]]) != len(layers):
                judged[site] = "unproved"
                continue
            verdicts = [
                _site_verdict(site, block, {m: theirs[m][at] for m in MEASURES}) for at, block in enumerate(blocks)
            ]
            judged[site] = next((one for one in ("wrong", "unproved") if one in verdicts), "proved")
        answer["stacks"][name] = judged
    return answer


def _site_verdict(site: str, block: Block, numbers: Mapping[str, float]) -> str:
    everything = [*block.made, *block.read, *block.added, block.x, block.y]
    alike = block.like(numbers, everything)
    if not alike:
        return "wrong"
    if site == "normed":
        return "proved" if block.like(numbers, [*block.read_by_attention, block.x]) else "unproved"
    if site == "mid":
        return "proved" if any(block.is_middle(one) for one in alike) else "unproved"
    return "proved" if any(block.is_branch(one) for one in alike) else "unproved"
