"""What is asked of the library for one model, and whether its answers are right by the finder's tensors."""

from __future__ import annotations

import re
import time
import warnings
from collections.abc import Callable, Collection, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.census import finder
from benchmarks.census.finder import Call, Layout, Stack

NEAR = 1e-4
PARTS = ("padding", "remedies", "explain", "weights", "sites")
MEASURES = ("token_similarity", "mean_cosine")
Answer = dict[str, Any]


def examine(
    model: nn.Module,
    batch: Mapping[str, Any],
    sequences: int = 3,
    save: Callable[[Answer], None] = lambda answer: None,
    data: Any = None,
    parts: Collection[str] = PARTS,
) -> Answer:
    """All that the census asks of the library about one model.

    Args:
        model: In evaluation mode.
        batch: What it is called with.
        sequences: How many are in the batch.
        save: Is handed what is known after each part.
        data: What is handed to the library; default the batch.
        parts: What is asked beside the scan.
    """
    data = dict(batch) if data is None else data
    recorder = finder.Recorder(model)
    calls = recorder.run(batch)
    stacks = finder.stacks_in(calls)
    answer: Answer = {"stacks": [], "attends": any(call.attends for call in calls)}
    if not stacks:
        answer["verdict"] = "no stack"
        answer["scan"] = _asked(lambda: _scan(model, data))[0]
        return answer
    moved = {}
    for name in masks_of(batch):
        other = changed_padding(batch, [name])
        if other is not None:
            moved[name] = {stack.key: stack for stack in finder.find(model, other)}
    other_padding = changed_padding(batch)
    truths = [truth(stack, model, batch, moved, sequences) for stack in stacks]
    answer["stacks"] = [one["about"] for one in truths]
    answer["static"] = static_agreement(model, calls, stacks)
    save(answer)
    started = time.perf_counter()
    scanned = _ask_scan(model, data, truths)
    answer["scan_seconds"] = round(time.perf_counter() - started, 3)
    answer |= scanned
    save(answer)
    if scanned["verdict"] in ("right", "left out"):
        answer["padding"] = _ask_padding(model, batch, other_padding, truths) if "padding" in parts else "not asked"
    for part, ask in (
        ("remedies", lambda: _ask_remedies(model, batch, stacks)),
        ("explain", lambda: _ask_explain(model, data, stacks)),
        ("weights", lambda: _ask_weights(model, batch, truths, calls)),
        ("sites", lambda: _ask_sites(model, data, truths, calls)),
    ):
        if part in parts and part != "sites" or part in parts and scanned["verdict"] in ("right", "left out"):
            answer[part] = ask()
            save(answer)
    return answer


# The truth ------------------------------------------------------------------------------------------------------------


def _inner(batch: Mapping[str, Any]) -> Mapping[str, Any]:
    """The fields, where a model takes them as one dict."""
    (only, *others) = batch.values()
    return only if not others and isinstance(only, Mapping) else batch


def masks_of(batch: Mapping[str, Any]) -> list[str]:
    """Fields that mark padding, and do mark some."""
    batch = _inner(batch)
    return [
        name
        for name, mask in batch.items()
        if isinstance(mask, Tensor) and "mask" in name and mask.ndim == 2 and not bool((mask != 0).all())
    ]


def changed_padding(batch: Mapping[str, Any], only: list[str] | None = None) -> dict[str, Any] | None:
    """The batch with other values wherever a mask marks padding; None where no mask marks any."""
    outer, batch = batch, _inner(batch)
    new = dict(batch)
    changed = False
    for name in masks_of(batch) if only is None else only:
        mask = batch[name]
        for field, value in batch.items():
            if field == name or not isinstance(value, Tensor) or value.shape[0] != mask.shape[0]:
                continue
            if field in ("mm_token_type_ids", "bbox", "token_type_ids", "position_ids") or "mask" in field:
                continue
            if field.startswith("decoder") != name.startswith("decoder"):
                continue
            axis = next((axis for axis in range(1, value.ndim) if value.shape[axis] == mask.shape[1]), None)
            if axis is None:
                continue
            where = (mask == 0).reshape(mask.shape[0], *(mask.shape[1] if at == axis else 1 for at in range(1, value.ndim)))
            # Another id of the batch, so that none is special.
            other = value.flip(0) if value.is_floating_point() else value.roll(1, 1)
            other = other + 1.0 if value.is_floating_point() else other
            if not value.is_floating_point():
                ordinary = value[mask != 0] if value.ndim == 2 else value
                other = ordinary.reshape(-1)[-1] * torch.ones_like(value)
                other = torch.where(other == value, ordinary.reshape(-1)[-2], other)
            new[field] = torch.where(where, other, value)
            changed = True
    if not changed:
        return None
    return new if outer is batch else dict.fromkeys(outer, new)


def truth(
    stack: Stack, model: nn.Module, batch: Mapping[str, Any], moved: Mapping[str, Mapping[Any, Stack]], sequences: int
) -> Answer:
    """The right curve of a stack, and which tokens count in it."""
    ids = _inner(batch).get("input_ids")
    layout = finder.layout_of(stack, model, sequences, ids.shape[1] if isinstance(ids, Tensor) and ids.ndim == 2 else None)
    about: Answer = {
        "path": stack.path, "layers": len(stack.calls), "shape": list(stack.shape), "output": stack.output,
        "layout": layout.kind if layout else None, "attending": sum(stack.attends), "touched": list(stack.touched),
        "modules": len(set(stack.paths)),
    }  # fmt: skip
    if layout is None:
        return {"stack": stack, "layout": None, "about": about}
    values = [layout.tokens(one) for one in stack.values]
    real, how = _real_tokens(stack, layout, values[0], batch, moved)
    about |= {"real": int(real.sum()), "tokens": int(real.size), "mask": how}
    about["curve"] = {name: [round(one, 7) for one in found] for name, found in finder.curve(values, real).items()}
    others = {}
    for name, other in finder.other_layouts(layout).items():
        read = [other.tokens(one) for one in stack.values]
        others[name] = finder.curve(read, np.ones(read[0].shape[:2], dtype=bool))
    others |= _other_ends(values, real, how, batch)
    curve = finder.curve(values, real)
    return {"stack": stack, "layout": layout, "real": real, "curve": curve, "others": others, "about": about}


def _other_ends(values: list[np.ndarray], real: np.ndarray, how: str, batch: Mapping[str, Any]) -> dict[str, Any]:
    """Curves where a frame that touches padding counts, or where lengths are divided and rounded.

    A mask of sound is finer than the frames; models and libraries differ about the frame at the edge.
    """
    found = {}
    batch = _inner(batch)
    count, tokens = real.shape
    for name in masks_of(batch):
        lengths = (batch[name] != 0).sum(1).double() * tokens / batch[name].shape[1]
        if how in ("none", "all") or batch[name].shape[1] <= tokens or batch[name].shape[0] != count:
            continue
        for way in (torch.ceil, torch.floor):
            ends = way(lengths).numpy()[:, None]
            found[f"{name}, {way.__name__}"] = finder.curve(values, np.arange(tokens)[None] < ends)
    return found


def _real_tokens(
    stack: Stack, layout: Layout, entered: np.ndarray, batch: Mapping[str, Any], moved: Mapping[str, Mapping[Any, Stack]]
) -> tuple[np.ndarray, str]:
    """Tokens that are not padding: those that stay when padding is changed; else by the mask that the blocks are handed."""
    everything = np.ones(entered.shape[:2], dtype=bool)
    batch = _inner(batch)
    if not masks_of(batch):
        return everything, "none"
    # A mask as wide as the stack is about its tokens; of others (of samples, say) each may be.
    own = [name for name in moved if batch[name].shape[1] == everything.shape[1]]
    differs = np.zeros_like(everything)
    for name in own or moved:
        one = moved[name].get(stack.key)
        if one is not None and one.shape == stack.shape:
            differs |= np.abs(layout.tokens(one.values[0]) - entered).max(-1) > 1e-7
    if differs.any() and not differs.all(1).any():
        for name in moved:
            width = batch[name].shape[1]
            added = entered[:, width:]
            if not own and width < differs.shape[1] and (differs[:, :width] == (batch[name] == 0).numpy()).all():
                if added.size and np.ptp(added, axis=0).max() < 1e-6:
                    # The model fills windows up with tokens of its own.
                    differs[:, width:] = True
        return ~differs, "by changing padding"
    count, tokens = everything.shape
    for mask in stack.masks:
        if mask.shape[0] != count or mask.shape[-1] != tokens or mask.numel() == count * tokens * stack.shape[-1]:
            continue
        seen = mask if mask.dtype == torch.bool else (mask == 1) if bool((mask >= 0).all()) and bool((mask > 0).any()) else mask == 0
        keys = seen.reshape(count, -1, tokens).any(1).numpy()
        if not keys.all() and keys.any(1).all():
            return keys, "by the blocks' own mask"
    return everything, "all"


# Asking ---------------------------------------------------------------------------------------------------------------


def _asked(call: Callable[[], Any]) -> tuple[str, Any]:
    """What came of a call: "done", "refused: …" in the library's words, or "crashed: …"."""
    from unsmooth import UnsmoothError

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return "done", call()
    except UnsmoothError as error:
        return "refused: " + str(error).replace("\n", " ")[:600], None
    except Exception as error:
        import traceback

        where = traceback.extract_tb(error.__traceback__)[-1]
        at = f"{where.filename.rsplit('/', 1)[-1]}:{where.lineno}"
        return f"crashed: {type(error).__name__} at {at}: {error}".replace("\n", " ")[:400], None


def _scan(model: nn.Module, data: Any, **options: Any) -> Any:
    import unsmooth

    return unsmooth.scan(
        model, data, metrics=list(MEASURES), tokens="all", progress=False, confounds=False, fingerprint=False, **options
    )


def curves_of(scan: Any, site: str = "residual") -> dict[str, dict[str, list[float]]]:
    """The library's numbers: stack to measure to one number for each layer."""
    frame = scan.to_frame()
    frame = frame[frame["site"] == site]
    if "stack" not in frame:
        frame = frame.assign(stack="")
    found: dict[str, dict[str, list[float]]] = {}
    for (stack, metric), rows in frame.groupby(["stack", "metric"], sort=False):
        ordered = rows.sort_values("layer")
        found.setdefault(str(stack), {})[str(metric)] = [float(one) for one in ordered["mean"]]
    return found


def _agree(ours: Mapping[str, list[float]], theirs: Mapping[str, list[float]]) -> bool:
    return all(
        len(ours[name]) == len(theirs[name]) and np.allclose(ours[name], theirs[name], atol=NEAR, rtol=0) for name in MEASURES
    )


def _families(truths: list[Answer]) -> list[list[int]]:
    """Stacks that may be one: each alone, then runs of those whose paths differ in numbers alone (stages)."""
    alone = [[number] for number, one in enumerate(truths) if "curve" in one]
    by_path: dict[str, list[int]] = {}
    for number, one in enumerate(truths):
        if "curve" in one:
            by_path.setdefault(re.sub(r"\d+", "*", one["stack"].path), []).append(number)
    return alone + [group for group in by_path.values() if len(group) > 1]


def _joined(truths: list[Answer], group: list[int]) -> list[dict[str, list[float]]]:
    """The curve of stages as one stack: what enters is there at the first alone, or at every stage."""
    if len(group) == 1:
        return [truths[group[0]]["curve"], *truths[group[0]]["others"].values()]
    curves = [truths[number]["curve"] for number in group]
    short = {name: curves[0][name] + [one for curve in curves[1:] for one in curve[name][1:]] for name in MEASURES}
    long = {name: [one for curve in curves for one in curve[name]] for name in MEASURES}
    return [short, long]


def match(theirs: Mapping[str, Mapping[str, list[float]]], truths: list[Answer]) -> tuple[dict[str, list[int]], list[str]]:
    """Which stacks of the library are which of ours, and which are none of ours."""
    found: dict[str, list[int]] = {}
    odd = []
    for name, curve in theirs.items():
        fitting = next(
            (group for group in _families(truths) if any(_agree(ours, curve) for ours in _joined(truths, group))), None
        )
        if fitting is None:
            odd.append(name)
        else:
            found[name] = fitting
    return found, odd


def _is_named(stack: Stack, notes: str) -> bool:
    """Whether a note speaks of a stack: by its path, or by a part of it that says which it is."""
    words = [word for word in re.split(r"[./]", stack.path) if len(word) > 3 and not word.isdigit()]
    common = {"layers", "layer", "blocks", "block", "model", "transformer"}
    return stack.path.rstrip("/") in notes or any(re.search(rf"\b{re.escape(word)}", notes) for word in words if word not in common)


def _ask_scan(model: nn.Module, data: Any, truths: list[Answer]) -> Answer:
    said, scan = _asked(lambda: _scan(model, data))
    if scan is None:
        return {"verdict": said.split(":", 1)[0], "reason": said.split(": ", 1)[1]}
    theirs = curves_of(scan)
    found, odd = match(theirs, truths)
    notes = " ".join(map(str, scan.notes))
    matched = {number for group in found.values() for number in group}
    missing = [
        one["about"]["path"]
        for number, one in enumerate(truths)
        if number not in matched and not _is_named(one["stack"], notes)
    ]
    named = [
        one["about"]["path"]
        for number, one in enumerate(truths)
        if number not in matched and _is_named(one["stack"], notes)
    ]
    answer: Answer = {"notes": list(map(str, scan.notes)), "found": {name: group for name, group in found.items()}, "named": named}
    if odd:
        judged = [one for one in truths if "curve" in one]
        answer["reason"] = "; ".join(_difference(name, theirs[name], judged) for name in odd)
        answer["verdict"] = "wrong"
    elif missing:
        answer["reason"] = f"left out: {', '.join(missing)}"
        answer["verdict"] = "left out"
    else:
        answer["verdict"] = "right"
    return answer


def _difference(name: str, curve: Mapping[str, list[float]], truths: list[Answer]) -> str:
    """How far a curve is from the nearest of ours."""
    layers = len(curve[MEASURES[0]])
    same = [one for one in truths if len(one["curve"][MEASURES[0]]) == layers]
    if not same:
        have = ", ".join(f"{one['about']['path']} {len(one['curve'][MEASURES[0]])}" for one in truths)
        return f"{name or 'the stack'}: {layers} layers, where there are {have}"

    def gaps(one: Answer) -> np.ndarray:
        return np.max([np.abs(np.subtract(curve[metric], one["curve"][metric])) for metric in MEASURES], axis=0)

    nearest = min(same, key=lambda one: float(np.nan_to_num(gaps(one), nan=9.0).max()))
    worst = np.nan_to_num(gaps(nearest), nan=9.0)
    return f"{name or 'the stack'}: off by {worst.max():.2g} at layer {int(worst.argmax())} of {nearest['about']['path']}"


def _ask_padding(model: nn.Module, batch: Mapping[str, Any], other: Mapping[str, Any] | None, truths: list[Answer]) -> str:
    """Whether what stands in padding changes the numbers."""
    if other is None or _inner(batch) is not batch:
        return "no padding"
    one, first = _asked(lambda: _scan(model, dict(batch)))
    two, second = _asked(lambda: _scan(model, dict(other)))
    if first is None or second is None:
        return two if first is not None else one
    before, after = curves_of(first), curves_of(second)
    for name, curve in before.items():
        if name not in after or any(not np.allclose(curve[m], after[name][m], atol=1e-5, rtol=0) for m in MEASURES):
            found = {stack.key: stack for stack in finder.find(model, other)}
            for one_truth in truths:
                moved = found.get(one_truth["stack"].key)
                if moved is None or "curve" not in one_truth:
                    continue
                values = [one_truth["layout"].tokens(value) for value in moved.values]
                again = finder.curve(values, one_truth["real"])
                if any(not np.allclose(again[m], one_truth["curve"][m], atol=1e-5, rtol=0) for m in MEASURES):
                    return "the model itself reads padding"
            return f"changed: {name or 'the stack'}"
    return "unchanged"


# Sites ----------------------------------------------------------------------------------------------------------------


def _within(calls: list[Call], number: int) -> list[Call]:
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
        self.calls = _within(calls, stack.calls[layer - 1])
        shape = self.x.shape
        self.made = self._distinct(one for call in self.calls for one in call.outputs.values() if one.shape == shape)
        self.read = self._distinct(one for call in self.calls for one in call.inputs.values() if one.shape == shape)
        self.read_by_attention = self._distinct(
            one for call in self.calls if call.attends for one in call.inputs.values() if one.shape == shape
        )
        self.attending = self._distinct(
            one for call in self.calls if call.attends for one in call.outputs.values() if one.shape == shape
        )

    @staticmethod
    def _distinct(found: Any) -> list[Tensor]:
        kept: list[Tensor] = []
        for one in found:
            if one.is_floating_point() and not any(torch.equal(one, other) for other in kept):
                kept.append(one)
        return kept[:80]

    def measured(self, one: Tensor) -> dict[str, float]:
        return {name: found[0] for name, found in finder.curve([self.layout.tokens(one)], self.real).items()}

    def like(self, numbers: Mapping[str, float], among: list[Tensor]) -> list[Tensor]:
        """Tensors that have these numbers."""
        return [
            one for one in among if all(abs(self.measured(one)[name] - numbers[name]) <= NEAR for name in numbers)
        ]

    def is_branch(self, one: Tensor) -> bool:
        """Whether something is added to the stream: a sum that another part reads, or that ends as what is handed on."""
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
        # In parallel: two branches make the whole difference.
        for other in self.made:
            if not torch.equal(other, one) and _along(self.y - self.x - other, one) < 1e-8:
                return True
        return False

    def is_middle(self, one: Tensor) -> bool:
        """Whether a tensor is the stream after attention: the entry and a branch, with or without a norm after."""
        sums = [one]
        for call in self.calls:
            if any(torch.equal(one, made) for made in call.outputs.values() if made.shape == one.shape):
                sums += [read for read in call.inputs.values() if read.shape == one.shape]
        made = self.made
        for total in sums:
            if torch.equal(total, self.x):
                continue
            if any(_along(total - self.x, branch) < 1e-8 for branch in made):
                return True
            for first in made[:40]:
                if any(_along(total - self.x - first, second) < 1e-8 for second in made[:40] if second is not first):
                    return True
        return False


def _ask_sites(model: nn.Module, data: Any, truths: list[Answer], calls: list[Call]) -> Answer:
    """Each site of each stack: "proved", "unproved" (nothing speaks for it), "wrong" (no tensor has its numbers)."""
    said, scan = _asked(lambda: _scan(model, data, sites="all"))
    if scan is None:
        return {"said": said}
    found, odd = match(curves_of(scan), truths)
    answer: Answer = {"said": "done", "stacks": {}}
    for name, group in found.items():
        if any(truths[number]["stack"].slot == "rows" for number in group):
            continue
        layers = [(number, layer) for number in group for layer in range(1, len(truths[number]["stack"].calls) + 1)]
        judged: dict[str, str] = {}
        blocks = [Block(truths[number], layer, calls) for number, layer in layers]
        for site in scan.sites:
            if site == "residual":
                continue
            theirs = curves_of(scan, site).get(name)
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
    everything = [*block.made, *block.read, block.x, block.y]
    alike = block.like(numbers, everything)
    if not alike:
        return "wrong"
    if site == "normed":
        return "proved" if block.like(numbers, [*block.read_by_attention, block.x]) else "unproved"
    if site == "mid":
        return "proved" if any(block.is_middle(one) for one in alike) else "unproved"
    return "proved" if any(block.is_branch(one) for one in alike) else "unproved"


# Weights --------------------------------------------------------------------------------------------------------------


def patterns(stacks: list[Stack]) -> list[str]:
    """A pattern over paths for each stack."""
    found = []
    for stack in stacks:
        words = stack.paths[0].split(".")
        others = [path.split(".") for path in stack.paths]
        if any(len(one) != len(words) for one in others):
            continue
        found.append(".".join("*" if any(one[at] != word for one in others) else word for at, word in enumerate(words)))
    return list(dict.fromkeys(found))


def _ask_weights(model: nn.Module, batch: Mapping[str, Any], truths: list[Answer], calls: list[Call]) -> Answer:
    """For each stack: whether the attention output is rebuilt from the library's maps and weights."""
    judged = [one for one in truths if one.get("layout") is not None and one["stack"].slot != "rows"]
    answer: Answer = {}
    for one in judged:
        pattern = (patterns([one["stack"]]) or [""])[0]
        hint = None if len(truths) == 1 else pattern
        said, result = _asked(lambda one=one, hint=hint: _rebuilt(model, batch, one, calls, hint))
        answer[one["about"]["path"]] = result if said == "done" else said
    return answer


def _rebuilt(model: nn.Module, batch: Mapping[str, Any], truth: Answer, calls: list[Call], hint: str | None) -> str:
    from unsmooth.models import find_anatomy, value_projection, watch_attention

    stack: Stack = truth["stack"]
    wanted = [layer for layer, attends in enumerate(stack.attends, 1) if attends]
    paths = list(dict.fromkeys(stack.paths))
    weights = {layer: value_projection(model, paths.index(stack.paths[layer - 1]), blocks=hint) for layer in wanted}
    maps: dict[int, Tensor] = {}
    anatomy = find_anatomy(model, blocks=hint)
    missing: list[str] = []
    with torch.no_grad(), watch_attention(
        anatomy, lambda layer, maps_BHNN: maps.__setitem__(layer, maps_BHNN), lambda error: missing.append(str(error))
    ):
        model(**batch)
    if missing and not maps:
        return f"no maps: {missing[0][:300]}"
    for layer in wanted:
        if layer not in maps:
            return f"no map at layer {layer}"
        block = Block(truth, layer, calls)
        outs = [*block.attending, *block.made]
        read = [*block.read_by_attention, block.x]
        best = 9.0
        for one in read:
            x = torch.from_numpy(truth["layout"].tokens(one)).float()
            try:
                rebuilt = weights[layer].attention_output(maps[layer].float(), x)
            except RuntimeError as error:
                return f"shapes: {error}"[:200]
            for out in outs:
                y = torch.from_numpy(truth["layout"].tokens(out)).float()
                real = torch.from_numpy(truth["real"])
                if y.shape == rebuilt.shape:
                    gap = float((rebuilt - y)[real].norm() / y[real].norm().clamp(min=1e-12))
                    best = min(best, gap)
        if best > NEAR:
            return f"not rebuilt at layer {layer}: {best:.2g}"
    return "proved"


def _ask_explain(model: nn.Module, data: Any, stacks: list[Stack]) -> Answer:
    import unsmooth

    answer = {}
    for name, given, options in (("weights", None, {}), ("data", data, {"jacobian": False, "spectral_sequences": 1})):
        said, _ = _asked(lambda given=given, options=options: unsmooth.explain(model, given, progress=False, **options))
        hints = patterns(stacks) if said.startswith("refused") and len(stacks) > 1 else []
        for hint in hints:
            again, _ = _asked(
                lambda given=given, options=options, hint=hint: unsmooth.explain(
                    model, given, progress=False, blocks=hint, **options
                )
            )
            if again == "done" or again.startswith("crashed"):
                said = "done by pattern" if again == "done" else again
                break
        answer[name] = said
    return answer


# Remedies -------------------------------------------------------------------------------------------------------------


def _outputs(model: nn.Module, batch: Mapping[str, Any]) -> list[Tensor]:
    torch.manual_seed(7)
    with torch.no_grad():
        out = model(**batch)
    return [one.detach().clone() for _, one in finder.tensors_in(out) if one.is_floating_point()]


def _furthest(before: list[Tensor], after: list[Tensor]) -> float:
    if len(before) != len(after) or any(a.shape != b.shape for a, b in zip(before, after, strict=False)):
        return float("inf")
    gaps = [float((a - b).abs().nan_to_num().max()) for a, b in zip(before, after, strict=True) if a.numel()]
    return max(gaps, default=0.0)


def later_changed(batch: Mapping[str, Any], field: str) -> tuple[dict[str, Any], int]:
    """The batch with one token in the first sequence changed, and its place."""
    ids = batch[field].clone()
    place = ids.shape[1] - 3
    ids[0, place] = ids[0, place - 1] if ids[0, place] != ids[0, place - 1] else ids[0, 0]
    if torch.equal(ids, batch[field]):
        ids[0, place] += 1
    return {**batch, field: ids}, place


def causal_stacks(model: nn.Module, batch: Mapping[str, Any], stacks: list[Stack]) -> dict[Any, tuple[str, int]]:
    """Stacks in which a later token changes nothing before it, with the field of ids and the place that is changed."""
    found = {}
    for field in ("decoder_input_ids", "input_ids"):
        if field not in batch or not isinstance(batch[field], Tensor) or batch[field].ndim != 2:
            continue
        other, place = later_changed(batch, field)
        moved = {stack.key: stack for stack in finder.find(model, other)}
        for stack in stacks:
            new = moved.get(stack.key)
            if new is None or len(stack.shape) != 3 or stack.shape[:2] != tuple(batch[field].shape) or stack.key in found:
                continue
            gap = (new.values[-1] - stack.values[-1]).abs()
            if float(gap[0, place:].max()) > 1e-6 and float(gap[0, :place].max()) < 1e-6:
                found[stack.key] = (field, place)
    return found


def _leaks(model: nn.Module, batch: Mapping[str, Any], causal: Mapping[Any, tuple[str, int]]) -> str:
    """Whether a later token now changes an earlier one; the stacks are looked for anew, for a remedy may change them."""
    if not causal:
        return "not causal"
    for key, (field, place) in causal.items():
        other, _ = later_changed(batch, field)
        before = {stack.key: stack for stack in finder.find(model, batch)}.get(key)
        after = {stack.key: stack for stack in finder.find(model, other)}.get(key)
        if before is None or after is None:
            return "stack not seen"
        gap = (after.values[-1] - before.values[-1]).abs()
        size = float(before.values[-1].abs().max())
        if float(gap[0, :place].max()) > 1e-5 * max(size, 1.0):
            return "leaks"
    return "no leak"


def _ask_remedies(model: nn.Module, batch: Mapping[str, Any], stacks: list[Stack]) -> Answer:
    import unsmooth

    base = _outputs(model, batch)
    again = _furthest(base, _outputs(model, batch))
    causal = causal_stacks(model, batch, stacks)
    answer: Answer = {"causal": sorted({key[0] for key in causal})}
    if again > 0:
        answer["noise"] = again
    weights = {name: one.detach().clone() for name, one in model.state_dict().items()}
    for name, neutral, active in (
        ("deescalate", {"tau": 0.0}, {"tau": 0.5}),
        ("layerscale", {"start": 1.0}, {"start": 0.5}),
        ("sharpen", None, {}),
    ):
        one: Answer = {}
        if neutral is not None:
            said, _ = _asked(lambda name=name, neutral=neutral: unsmooth.apply(model, name, **neutral))
            one["said"] = said
            if said == "done":
                said, new = _asked(lambda: _outputs(model, batch))
                one["neutral"] = _furthest(base, new) if said == "done" else said
                _asked(lambda: unsmooth.undo(model))
        said, _ = _asked(lambda name=name, active=active: unsmooth.apply(model, name, **active))
        one["said"] = said
        if said == "done":
            said, new = _asked(lambda: _outputs(model, batch))
            one["changes"] = _furthest(base, new) if said == "done" else said
            one["leak"] = _leaks(model, batch, causal) if said == "done" and name != "layerscale" else "not asked"
            if name == "sharpen":
                one["eigenvalues"] = _asked(lambda: _eigenvalues(model))[1]
            said, _ = _asked(lambda: unsmooth.undo(model))
            state = model.state_dict()
            same = set(state) == set(weights) and all(_equal(state[key], weights[key]) for key in weights)
            one["undone"] = said == "done" and same and _furthest(base, _outputs(model, batch)) <= again
        answer[name] = one
    return answer


def _equal(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and bool(((one == other) | (one.isnan() & other.isnan())).all() if one.is_floating_point() else (one == other).all())


def _eigenvalues(model: nn.Module) -> list[float]:
    """Smallest and largest real part of the eigenvalues of the first block's value times output weights."""
    from unsmooth.models import value_projection

    found = torch.linalg.eigvals(value_projection(model, 0).summed().double()).real
    return [float(found.min()), float(found.max())]


# Conventions ----------------------------------------------------------------------------------------------------------


def static_agreement(model: nn.Module, calls: list[Call], stacks: list[Stack]) -> dict[str, bool]:
    """Whether each static convention of transformers names the blocks that were found, and no others."""
    called = {call.path for call in calls}
    ours = {frozenset(stack.paths) for stack in stacks}
    names = {path: module for path, module in model.named_modules() if path in called}
    try:
        from transformers.modeling_layers import GradientCheckpointingLayer
    except ImportError:
        return {}
    recorded: set[type] = set()
    whole: set[str] = set()
    for module in model.modules():
        for key, what in (getattr(module, "_can_record_outputs", None) or {}).items():
            if key == "hidden_states":
                for one in what if isinstance(what, list) else [what]:
                    kind = getattr(one, "target_class", one)
                    if isinstance(kind, type):
                        recorded.add(kind)
        whole |= set(getattr(module, "_no_split_modules", None) or ())
    rules: dict[str, Callable[[nn.Module], bool]] = {
        "checkpointed": lambda module: isinstance(module, GradientCheckpointingLayer),
        "recorded": lambda module: type(module) in recorded,
        "unsplit": lambda module: type(module).__name__ in whole,
    }
    agreed = {}
    for rule, fits in rules.items():
        groups: dict[str, set[str]] = {}
        for path, module in names.items():
            if fits(module):
                groups.setdefault(finder._list_of(path), set()).add(path)
        theirs = {frozenset(paths) for paths in groups.values()}
        agreed[rule] = ours <= theirs
    return agreed
