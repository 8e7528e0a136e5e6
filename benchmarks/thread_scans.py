"""Scans of one model in four threads, beside a fifth thread that serves it: wrong numbers, errors, other outputs.

    python -m benchmarks.thread_scans [--scans 500] [--models BERT GPT-2] [--out benchmarks/results/thread_scans.json]

Every kind of model is scanned so many times, each thread with data, sites and metrics of its own in turn. A scan is
wrong where any of its rows is not, to the bit, that of the same scan alone; one of the four explains the model now and
then, and is judged the same way. The fifth thread calls the model all the while with inputs of other shapes (GPT-2 and
T5 also generate, with their key/value caches), and its outputs must be those of a model that nobody scans, to the bit.
Threads are made to take turns every hundredth of a millisecond. The model is in evaluation mode.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor, nn

import unsmooth
from unsmooth.files import write_whole
from unsmooth.networks import ViT, ViTConfig

THREADS = 4
METRICS = (["mean_cosine", "token_diversity"], ["effective_rank"], ["attention_entropy", "token_similarity"])
EXPLAINED = 10  # one in so many


@dataclass(frozen=True)
class Case:
    """A model, the data of its scans, and calls with other shapes, each of which gives tensors.

    `explained` says whether `unsmooth.explain` is for such a model.
    """

    model: nn.Module
    data: Sequence[Any]
    served: Sequence[Callable[[], Any]]
    explained: bool = True


def ids(rows: int, tokens: int, seed: int) -> Tensor:
    """Token ids."""
    return torch.randint(3, 90, (rows, tokens), generator=torch.Generator().manual_seed(seed))


def padded(rows: int, tokens: int, seed: int) -> dict[str, Tensor]:
    """Rows of which every second one is a token shorter than the one before."""
    mask = torch.ones(rows, tokens, dtype=torch.long)
    mask[1::2, -2:] = 0
    return {"input_ids": ids(rows, tokens, seed), "attention_mask": mask}


def noise(*shape: int) -> Tensor:
    """Numbers that are the same each time."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


def bert() -> Case:
    """An encoder with padding."""
    size = {"hidden_size": 32, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 64}
    model = transformers.BertModel(transformers.BertConfig(vocab_size=99, **size)).eval()
    calls = [lambda n=n: model(**padded(3, 5 + n, n)).last_hidden_state for n in range(4)]
    return Case(model, [padded(2 + n, 12 + n, n) for n in range(THREADS)], calls)


def compiled_bert() -> Case:
    """The same, called by way of torch.compile."""
    case, compiled = bert(), None
    compiled = torch.compile(case.model, backend="eager", dynamic=True)
    calls = [lambda n=n: compiled(**padded(3, 5 + n, n)).last_hidden_state for n in range(4)]
    return Case(compiled, case.data, calls)


def gpt2() -> Case:
    """A decoder that also generates."""
    size = {"n_embd": 32, "n_layer": 4, "n_head": 4, "n_positions": 64, "bos_token_id": 0, "eos_token_id": 0}
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(vocab_size=99, **size)).eval()
    calls = [lambda n=n: model(ids(3, 5 + n, n)).logits for n in range(2)]

    def generate() -> Any:
        found = model.generate(ids(2, 6, 1), max_new_tokens=6, do_sample=False, pad_token_id=0)
        with torch.no_grad():
            return found, model(ids(2, 7, 1)).past_key_values.get_seq_length() * torch.ones(1)

    return Case(model, [ids(2 + n, 12 + n, n) for n in range(THREADS)], [*calls, generate])


def torch_encoder() -> Case:
    """Torch's own, which is served by fused kernels, with padding in nested tensors."""
    layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
    model = nn.TransformerEncoder(layer, 4).eval()
    padding = torch.arange(7)[None] >= torch.tensor([7, 5, 4])[:, None]
    calls = [lambda n=n: model(noise(3, 5 + n, 32)) for n in range(3)]
    calls.append(lambda: model(noise(3, 7, 32), src_key_padding_mask=padding))
    return Case(model, [noise(2 + n, 12 + n, 32) for n in range(THREADS)], calls)


def vit() -> Case:
    """A network of unsmooth's."""
    model = ViT(ViTConfig(depth=4, dim=32, heads=4, hidden=64, image=16, patch=4, classes=5)).eval()
    calls = [lambda n=n: model(noise(1 + n, 3, 16, 16)) for n in range(4)]
    return Case(model, [noise(5 + n, 3, 16, 16) for n in range(THREADS)], calls)


def t5() -> Case:
    """Two stacks, and generation."""
    size = {"d_model": 32, "d_kv": 8, "num_heads": 4, "d_ff": 64, "num_layers": 3, "vocab_size": 99}
    special = {"decoder_start_token_id": 0, "pad_token_id": 0, "eos_token_id": 1}
    model = transformers.T5ForConditionalGeneration(transformers.T5Config(**size, **special)).eval()
    calls: list[Callable[[], Any]] = [
        lambda n=n: model(input_ids=ids(3, 5 + n, n), decoder_input_ids=ids(3, 4, n)).logits for n in range(2)
    ]
    calls.append(lambda: model.generate(ids(2, 6, 1), max_new_tokens=6, do_sample=False))
    data = [{"input_ids": ids(2 + n, 9 + n, n), "decoder_input_ids": ids(2 + n, 7 + n, n)} for n in range(THREADS)]
    return Case(model, data, calls, explained=False)


CASES: dict[str, Callable[[], Case]] = {
    "BERT": bert,
    "BERT, compiled": compiled_bert,
    "GPT-2": gpt2,
    "nn.TransformerEncoder": torch_encoder,
    "ViT of unsmooth": vit,
    "T5": t5,
}


def jobs_of(case: Case) -> list[list[Callable[[], str]]]:
    """What each thread does in turn, and gives in words that say all of its numbers."""

    def scanned(data: Any, metrics: list[str], sites: Any) -> str:
        found = unsmooth.scan(case.model, data, metrics=metrics, sites=sites, progress=False, batch_size=2)
        return repr((found.rows, found.confounds, found.healthy, found.notes))

    def explained(data: Any) -> str:
        found = unsmooth.explain(case.model, data, progress=False, max_batches=1, batch_size=2)
        return repr([asdict(layer) for layer in found.layers])

    every = []
    for number, data in enumerate(case.data):
        jobs: list[Callable[[], str]] = [
            lambda data=data, metrics=metrics, sites=sites: scanned(data, metrics, sites)
            for metrics in METRICS
            for sites in (("residual",), "all")
        ]
        if number == 0 and case.explained:
            jobs.append(lambda data=data: explained(data))
        every.append(jobs)
    return every


def tensors(found: Any) -> list[Tensor]:
    """One, or several."""
    return [found] if isinstance(found, Tensor) else list(found)


def run(case: Case, scans: int) -> dict[str, Any]:
    """All threads at once."""
    jobs = jobs_of(case)
    with torch.no_grad():
        wanted_outputs = [tensors(call()) for call in case.served]
    wanted = [[job() for job in mine] for mine in jobs]
    counts, problems = Counter[str](), Counter[str]()
    over, meeting = threading.Event(), threading.Barrier(THREADS + 1)

    def work(number: int) -> None:
        mine = list(enumerate(jobs[number]))
        usual = mine[:6]
        meeting.wait()
        for turn in range(number, scans, THREADS):
            explains = len(mine) > 6 and turn // THREADS % EXPLAINED == EXPLAINED - 1
            which, job = mine[6] if explains else usual[turn // THREADS % 6]
            try:
                found = job()
                counts["wrong"] += found != wanted[number][which]
            except Exception as error:
                counts["failed"] += 1
                problems[first_line(error)] += 1
            counts["explained" if explains else "scanned"] += 1

    def serve() -> None:
        meeting.wait()
        turn = 0
        while not over.is_set():
            which = turn % len(case.served)
            try:
                with torch.no_grad():
                    found = tensors(case.served[which]())
                same = all(map(torch.equal, found, wanted_outputs[which]))
                counts["served_differing"] += not same
            except Exception as error:
                counts["served_failed"] += 1
                problems["served: " + first_line(error)] += 1
            turn += 1
        counts["served"] = turn

    begun = time.perf_counter()
    workers = [threading.Thread(target=work, args=[number]) for number in range(THREADS)]
    server = threading.Thread(target=serve)
    for thread in (*workers, server):
        thread.start()
    for thread in workers:
        thread.join()
    over.set()
    server.join()
    names = ("scanned", "explained", "wrong", "failed", "served", "served_differing", "served_failed")
    seconds = round(time.perf_counter() - begun, 1)
    return {name: counts[name] for name in names} | {"seconds": seconds, "problems": dict(problems.most_common(5))}


def first_line(error: Exception) -> str:
    """Where it was raised, and what it says."""
    place = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__} in {Path(place.filename).name}: {str(error).splitlines()[0] if str(error) else ''}"


def main() -> None:
    """Run, print, write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--scans", type=int, default=500, help="of each model, in all threads together")
    parser.add_argument("--models", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/thread_scans.json"))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    sys.setswitchinterval(1e-5)
    results = {}
    for name in arguments.models:
        torch.manual_seed(0)
        results[name] = run(CASES[name](), arguments.scans)
        print(f"{name}: {results[name]}", flush=True)
    versions = {"torch": torch.__version__, "transformers": transformers.__version__}
    machine = {"cores": os.cpu_count(), "python": platform.python_version(), **versions}
    report = {"what": __doc__.splitlines()[0], "threads": THREADS, "machine": machine, "models": results}
    write_whole(arguments.out, json.dumps(report, indent=1) + "\n")
    print(f"written to {arguments.out}")


if __name__ == "__main__":
    main()
