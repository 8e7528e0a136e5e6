"""Attention maps and head eigenvalues of the trained models at hand, all over the same number of tokens.

    python -m benchmarks.trained_models.maps OUT.safetensors [--tokens 197] [--sequences 6]

For `benchmarks.dominance_cost`, which compares ways to find a head's verdict. Causal models are left out: their
eigenvalues stand on the diagonal, and there is nothing to compare.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.trained_models.more import Entry, every_model
from unsmooth import spectra
from unsmooth.explaining.weights import fold, read_weights, stream_scale
from unsmooth.models import find_anatomy, origin_of

# TabPFN's tables are shorter than what is asked for.
LEFT_OUT = ("SmolLM2-135M-Instruct", "Gemma-3-270M", "TabPFN-v1")


def main() -> None:
    """Collect and write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--tokens", type=int, default=197)
    parser.add_argument("--sequences", type=int, default=6)
    parser.add_argument("--weights", type=Path, default=Path("weights"))
    parser.add_argument("--wheels", type=Path)
    arguments = parser.parse_args()
    maps, values = [], []
    for entry in every_model(arguments.weights, arguments.wheels):
        if entry.recipe.name not in LEFT_OUT:
            for maps_GNN, values_GK in heads_of(entry, arguments):
                maps.append(maps_GNN)
                values.append(values_GK)
            print(entry.recipe.name, sum(map(len, maps)), "heads so far")
    widest = max(part.shape[1] for part in values)
    padded = [torch.nn.functional.pad(part, (0, widest - part.shape[1])) for part in values]
    from safetensors.torch import save_file

    save_file({"maps": torch.cat(maps).contiguous(), "eigenvalues": torch.cat(padded).contiguous()}, arguments.out)


@torch.no_grad()
def heads_of(entry: Entry, arguments: argparse.Namespace) -> Iterator[tuple[Tensor, Tensor]]:
    """Maps (heads, tokens, tokens) and eigenvalues (heads, d_h) of every layer and sequence, norm folded in."""
    anatomy = find_anatomy(entry.model)
    weights = {one.path: one.values for one in read_weights(anatomy)}
    paths = list(anatomy.blocks)
    streams: dict[int, Tensor] = {}
    seen: dict[int, Tensor] = {}
    for inputs in long_inputs(entry, arguments):
        with (
            anatomy.watch(lambda layer, site, x: streams.__setitem__(layer, x)),
            anatomy.watch_attention(seen.__setitem__),
        ):
            entry.model(**inputs)
        for layer, maps_BHNN in seen.items():
            values = weights[paths[min(layer, len(paths)) - 1]]
            assert values is not None
            scale = float(stream_scale(values, streams[layer - 1].flatten(0, 1)).median())
            folded = fold(values, scale)
            eigenvalues = spectra.head_eigenvalues(folded.w_v, folded.w_o).to(torch.complex64)
            for maps_HNN in maps_BHNN:
                yield maps_HNN.float(), eigenvalues


def long_inputs(entry: Entry, arguments: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Inputs of exactly so many tokens: texts joined, from another start each time."""
    origin = origin_of(entry.model)
    assert origin is not None
    assert origin.tokenizer is not None
    texts = list(entry.data)
    for start in range(arguments.sequences):
        text = " ".join(texts[start:] + texts[:start])
        found = origin.tokenizer(text, truncation=True, max_length=arguments.tokens, return_tensors="pt")
        found.pop("token_type_ids", None)
        if found["input_ids"].shape[1] == arguments.tokens:
            yield dict(found)


if __name__ == "__main__":
    main()
