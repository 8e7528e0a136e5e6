"""How a block's branches join its stream, found by sums: which tensor is added to which, with norms between or not.

Tensors that modules gave or were given are the candidates. From what enters the block, sums and norms lead to what it
hands on; only sums that hold for every token, to rounding, are steps on that way.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from unsmooth.models.block_record import OF_BRANCH, OF_STREAM, Place, Record, Value, same
from unsmooth.models.value_search import is_norm

# How many numbers of each tensor are compared before all of them are.
_SKETCH = 512
# What a branch must be of the stream at least, for its sum to say anything.
VISIBLE = 1e-3


@dataclass(frozen=True)
class Joined:
    """A step along the stream: branches are added, each times a number.

    Args:
        before: The stream they are added to.
        after: The sum.
        branches: What is added: one, or two at once.
        scales: The number that each is multiplied by.
        keeps: What the stream is multiplied by there: a number, or the path of a weight (dim,).
        norm: The norm that the sum goes through (post-norm), if any, and then `handed_on` is what it gives.
        handed_on: The stream after this step.
    """

    before: Value
    after: Value
    branches: tuple[Value, ...]
    scales: tuple[float, ...]
    norm: str | None
    handed_on: Value
    keeps: float | str = 1.0


def find_steps(record: Record) -> list[Joined] | str:
    """The steps from what enters a block to what it hands on, or why there are none."""
    if record.output.tensor.shape != record.stream.tensor.shape:
        shapes = (tuple(one.tensor.shape) for one in (record.output, record.stream))
        return "a block that hands on {} where {} enters".format(*shapes)
    found = _way(record, _Table(record), record.stream, (record.stream,))
    if not found and (more := list(_times_weights(record))):
        record.values.extend(more)
        found = _way(record, _Table(record), record.stream, (record.stream,))
    for looser in (("weights",), ("weights", "pairs")):
        found = found or _way(record, _Table(record, looser), record.stream, (record.stream,))
    if not found and (more := list(_unseen(record))):
        record.values.extend(more)
        found = _way(record, _Table(record), record.stream, (record.stream,))
        found = found if sum(one in more for step in found for one in step.branches) == 1 else []
    if found:
        return found
    largest = float(record.stream.tensor.abs().max())
    if float((record.output.tensor - record.stream.tensor).abs().max()) <= VISIBLE * largest:
        return "a block that adds less than a thousandth to its stream"
    return "no sum of the stream and what modules in it give is what the block hands on"


def _times_weights(record: Record) -> Iterator[Value]:
    """What modules gave times a weight (dim,) that the block holds outside of norms and linear maps (LayerScale)."""
    for weight in _own_weights(record).values():
        for value in list(record.values):
            places = [one for one in value.places if one.end == "output" and record.called_once(one.module)]
            if places:
                tensor = value.tensor * weight
                yield Value(tensor, [Place("", "times", max(one.order for one in places), tensor)])


def _own_weights(record: Record) -> dict[str, Tensor]:
    """The weights (dim,) that the block holds outside of norms and linear maps, by path."""
    inner = {id(p) for m in record.block.modules() if next(m.children(), None) is None for p in m.parameters()}
    own = {path: weight.detach() for path, weight in record.block.named_parameters() if id(weight) not in inner}
    return {path: weight.flatten() for path, weight in own.items() if weight.numel() == record.stream.tensor.shape[-1]}


def _unseen(record: Record) -> Iterator[Value]:
    """What would lead from the stream to what norms read, where no module gives that: no site, but one step."""
    for one in record.calls:
        reads = record.find(one.given) if is_norm(one) else None
        if reads is not None and reads is not record.stream:
            tensor = one.given - record.stream.tensor
            yield Value(tensor, [Place("", "unseen", reads.first, tensor)])


def _way(record: Record, table: _Table, now: Value, passed: tuple[Value, ...]) -> list[Joined]:
    """The longest way from `now` to the output."""
    best: list[Joined] = []
    for step in (*table.sums(now, passed), *table.pairs(now, passed)):
        for norm, handed_on in ((None, step.after), *table.norms_of(step.after)):
            one = Joined(step.before, step.after, step.branches, step.scales, norm, handed_on, step.keeps)
            if handed_on is record.output:
                rest: list[Joined] = []
            elif any(handed_on is other for other in passed) or len(passed) > 6:
                continue
            else:
                rest = _way(record, table, handed_on, (*passed, step.after, handed_on))
                if not rest:
                    continue
            if _rank([one, *rest]) > _rank(best):
                best = [one, *rest]
    return best


def _rank(steps: list[Joined]) -> tuple[int, int, int]:
    """More branches seen apart are better, then fewer numbers that branches are multiplied by, then more steps."""
    plain = sum(scale == 1.0 for step in steps for scale in step.scales)
    plain += sum(step.keeps == 1.0 for step in steps) - len(steps)
    branches = sum(len(step.branches) for step in steps)
    return branches, plain - branches, len(steps)


class _Table:
    """The tensors of a record as rows of a few numbers each.

    Args:
        record: The record.
        looser: "weights" where the stream may be multiplied, too, before a branch is added; "pairs" where two branches
            that are added at once may each be multiplied by a number of its own.
    """

    def __init__(self, record: Record, looser: tuple[str, ...] = ()) -> None:
        self.record = record
        self.values = record.values
        self.looser, self.weights = looser, _own_weights(record) if looser else {}
        self.step = max(record.stream.tensor.numel() // _SKETCH, 1)
        self.rows_VK = torch.stack([self._sketch(one.tensor) for one in self.values])
        self.norms = [one for one in record.calls if is_norm(one)]

    def _row(self, value: Value) -> Tensor:
        return self.rows_VK[next(i for i, one in enumerate(self.values) if one is value)]

    def _sketch(self, tensor: Tensor) -> Tensor:
        return tensor.flatten()[:: self.step].double()

    def sums(self, now: Value, passed: tuple[Value, ...]) -> Iterator[Joined]:
        """Every value that is `now` and a multiple of another value; each times something where that is looked for."""
        yield from self._sums(now, passed, 1.0, now.tensor)
        if not self.looser:
            return
        for path, weight in self.weights.items():
            yield from self._sums(now, passed, path, now.tensor * weight)
        for keeps in self._factors(now):
            yield from self._sums(now, passed, keeps, now.tensor * keeps)

    def _factors(self, now: Value) -> Iterator[float]:
        """The numbers a of which a·now and a multiple of another value are a third, by least squares."""
        row_K, rows_VK = self._row(now), self.rows_VK
        own, sizes_V, along_V = row_K @ row_K, rows_VK.square().sum(1), rows_VK @ row_K
        products_VV = rows_VK @ rows_VK.T  # sum, branch
        apart_V = (own * sizes_V - along_V.square()).clamp(min=1e-12 * float(own) ** 2)
        keeps_VV = (along_V[:, None] * sizes_V - products_VV * along_V) / apart_V
        scales_VV = (products_VV * own - along_V[:, None] * along_V) / apart_V
        left_VV = sizes_V[:, None] - keeps_VV * along_V[:, None] - scales_VV * products_VV
        fits_VV = (left_VV <= 1e-10 * sizes_V[:, None]) & (keeps_VV > 0.05) & (scales_VV.abs() > 1e-3)
        found = keeps_VV[fits_VV & ((keeps_VV - 1.0).abs() > 1e-4)].tolist()
        yield from {round(one, 6): one for one in found}.values()

    def _sums(self, now: Value, passed: tuple[Value, ...], keeps: float | str, kept: Tensor) -> Iterator[Joined]:
        gaps_VK, rows_VK = self.rows_VK - self._sketch(kept), self.rows_VK
        sizes_V = rows_VK.square().sum(1)
        products_VV = gaps_VK @ rows_VK.T
        scales_VV = products_VV / sizes_V.clamp(min=1e-30)
        left_VV = gaps_VK.square().sum(1)[:, None] - scales_VV * products_VV
        for after, branch in (left_VV <= 1e-8 * gaps_VK.square().sum(1)[:, None] + 1e-12 * sizes_V[:, None]).nonzero():
            sum_of, added = self.values[int(after)], self.values[int(branch)]
            if added is now or sum_of is now or added is sum_of or any(sum_of is one for one in passed):
                continue
            gap = sum_of.tensor - kept
            scale = _whole(float(scales_VV[after, branch]))
            if _is_sum(kept, sum_of.tensor, gap, scale * added.tensor):
                yield Joined(now, sum_of, (added,), (scale,), None, sum_of, keeps)

    def pairs(self, now: Value, passed: tuple[Value, ...]) -> Iterator[Joined]:
        """Every value that is `now` and two other values, each times the same number, or one of its own."""
        targets = [one for one in (self.record.output, *self._before_norms()) if one is not now]
        used = [one for one in self.values if one is not now and one is not self.record.output]
        if "pairs" in self.looser:
            yield from self._unequal_pairs(now, passed)
        elif len(passed) > 1:
            return
        rows_VK = torch.stack([self._row(one) for one in used]) if len(used) > 1 else self.rows_VK[:0]
        for after in dict.fromkeys(map(id, targets)):
            sum_of = next(one for one in targets if id(one) == after)
            gap_K = self._row(sum_of) - self._row(now)
            for i, one in enumerate(used):
                both_VK = rows_VK[i + 1 :] + rows_VK[i]
                scales_V = (both_VK @ gap_K) / both_VK.square().sum(1).clamp(min=1e-30)
                left_V = (scales_V[:, None] * both_VK - gap_K).square().sum(1)
                for j in (left_V <= 1e-8 * gap_K.square().sum()).nonzero().flatten().tolist():
                    other, scale = used[i + 1 + j], _whole(float(scales_V[j]))
                    gap = sum_of.tensor - now.tensor
                    if not all(_shows(scale * added.tensor, now.tensor, sum_of.tensor) for added in (one, other)):
                        continue
                    if _is_sum(now.tensor, sum_of.tensor, gap, scale * (one.tensor + other.tensor)):
                        yield Joined(now, sum_of, (one, other), (scale, scale), None, sum_of)

    def _unequal_pairs(self, now: Value, passed: tuple[Value, ...]) -> Iterator[Joined]:
        """Every value that norms read, or that is handed on, and is `now` and two others, each times a number."""
        read = [found for one in self.norms if (found := self.record.find(one.given)) is not None]
        targets = {id(one): one for one in (self.record.output, *read) if one is not now}
        gone = {id(one) for one in (now, self.record.output, *passed)}
        for sum_of in targets.values():
            used = [one for one in self.values if id(one) not in gone and one is not sum_of]
            if any(sum_of is one for one in passed) or len(used) < 2:
                continue
            rows_VK = torch.stack([self._row(one) for one in used])
            gap, gap_K = sum_of.tensor - now.tensor, self._row(sum_of) - self._row(now)
            sizes_V, products_VV, along_V = rows_VK.square().sum(1), rows_VK @ rows_VK.T, rows_VK @ gap_K
            apart_VV = (sizes_V[:, None] * sizes_V - products_VV.square()).clamp(min=1e-12 * float(sizes_V.max()) ** 2)
            first_VV = (along_V[:, None] * sizes_V - products_VV * along_V) / apart_VV
            left_VV = gap_K @ gap_K - first_VV * along_V[:, None] - first_VV.mT * along_V
            for i, j in (left_VV <= 1e-8 * (gap_K @ gap_K)).triu(1).nonzero().tolist():
                one, other = used[i], used[j]
                scales = _whole(float(first_VV[i, j])), _whole(float(first_VV[j, i]))
                shown = [scale * added.tensor for scale, added in zip(scales, (one, other), strict=True)]
                if not all(_shows(added, now.tensor, sum_of.tensor) for added in shown):
                    continue
                if _is_sum(now.tensor, sum_of.tensor, gap, shown[0] + shown[1]):
                    yield Joined(now, sum_of, (one, other), scales, None, sum_of)

    def _before_norms(self) -> list[Value]:
        """What norms read whose output the block hands on."""
        return [
            found
            for one in self.norms
            if one.gave is self.record.output.tensor and (found := self.record.find(one.given)) is not None
        ]

    def norms_of(self, value: Value) -> Iterator[tuple[str, Value]]:
        """The norms that read a value and what they give."""
        for one in self.norms:
            if one.given is value.tensor and self.record.called_once(one.path):
                found = next(other for other in self.values if other.tensor is one.gave)
                if found is not value:
                    yield one.path, found


def _whole(scale: float) -> float:
    """One where it is one but for rounding."""
    return round(scale) if round(scale) == 1 and abs(scale - round(scale)) < 1e-4 else scale


def _is_sum(before: Tensor, after: Tensor, gap: Tensor, added: Tensor) -> bool:
    """Whether a sum holds for every token, and the branch is large enough for that to say anything."""
    error = (gap - added).abs()
    if not bool((error <= OF_BRANCH * gap.abs().max() + OF_STREAM * torch.maximum(before.abs(), after.abs())).all()):
        return False
    return _shows(gap, before, after)


def _shows(branch: Tensor, *streams: Tensor) -> bool:
    """Whether a branch is large enough beside the stream before and after it for their sum to say anything."""
    return all(bool(branch.abs().max() > VISIBLE * stream.abs().max()) for stream in streams)


def ends_in(branch: Value, gave: Tensor, record: Record) -> tuple[str, str | None] | None:
    """How a branch follows from what its last linear map gave.

    Returns:
        ("plain", None), ("norm", its path) or ("gain", the path of the weight (dim,) that it was multiplied by); None
        where it does not follow.
    """
    if same(branch.tensor, gave) or (gave.ndim == 3 and same(branch.tensor, gave.transpose(0, 1))):
        return "plain", None
    for one in record.calls:
        if is_norm(one) and one.gave is branch.tensor and same(one.given, gave):
            return "norm", one.path
    dim = gave.shape[-1]
    for path, weight in record.block.named_parameters():
        if weight.numel() == dim and same(branch.tensor, gave * weight.detach().reshape(-1)):
            return "gain", path
    return None
