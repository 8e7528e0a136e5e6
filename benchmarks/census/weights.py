"""Whether attention is rebuilt from the library's weights and maps, and whether `explain` runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.census.finder import Call, Stack
from benchmarks.census.library import asked
from benchmarks.census.matching import NEAR
from benchmarks.census.sites import Block
from benchmarks.census.truth import Answer


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


def ask_weights(model: nn.Module, batch: Mapping[str, Any], truths: list[Answer], calls: list[Call]) -> Answer:
    """For each stack: whether the attention output is rebuilt from the library's maps and weights."""
    judged = [one for one in truths if one.get("layout") is not None and one["stack"].slot != "rows"]
    answer: Answer = {}
    for one in judged:
        pattern = (patterns([one["stack"]]) or [""])[0]
        hint = None if len(truths) == 1 else pattern
        said, result = asked(lambda one=one, hint=hint: _rebuilt(model, batch, one, calls, hint))
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
    with (
        torch.no_grad(),
        watch_attention(
            anatomy,
            lambda layer, maps_BHNN: maps.__setitem__(layer, maps_BHNN),
            lambda error: missing.append(str(error)),
        ),
    ):
        model(**batch)
    if missing and not maps:
        return f"no maps: {missing[0][:300]}"
    for layer in wanted:
        if layer not in maps:
            return f"no map at layer {layer}"
        block = Block(truth, calls[stack.calls[layer - 1]], calls)
        outs = [*(one.tensor for one in block.seen if one.made), *(one.added for one in block.sums)]
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


def ask_explain(model: nn.Module, data: Any, stacks: list[Stack]) -> Answer:
    """Whether `explain` runs on weights alone and with data; of several stacks, on one that is named."""
    import unsmooth

    answer = {}
    for name, given, options in (("weights", None, {}), ("data", data, {"jacobian": False, "spectral_sequences": 1})):
        said, _ = asked(lambda given=given, options=options: unsmooth.explain(model, given, progress=False, **options))
        hints = patterns(stacks) if said.startswith("refused") and len(stacks) > 1 else []
        for hint in hints:
            again, _ = asked(
                lambda given=given, options=options, hint=hint: unsmooth.explain(
                    model, given, progress=False, blocks=hint, **options
                )
            )
            if again == "done" or again.startswith("crashed"):
                said = "done by pattern" if again == "done" else again
                break
        answer[name] = said
    return answer
