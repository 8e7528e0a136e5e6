"""Checks that need two processes: a step under DDP and one under FSDP2, many remedies in one go."""

from __future__ import annotations

import copy
import json
import os
import traceback
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from tests.remedies.checks_training import loss_of
from tests.remedies.harness import Case, Outcome, close
from tests.remedies.hosts import BY_NAME
from tests.remedies.settings import SETTINGS
from unsmooth.models import find_anatomy

RANKS = 2
HOSTS = ("bert", "gpt2")
OWN = ("own_encoder_peri", "own_decoder_relative")
DDP, FSDP2 = "a DDP step", "an FSDP2 step"


def distributed_cases(own: bool = True) -> list[Case]:
    """Every setting of every remedy on an encoder and a decoder, the first ones on two of our own, where possible."""
    return [
        Case(remedy, variant, BY_NAME[host])
        for remedy, settings in SETTINGS.items()
        for place, (variant, setting) in enumerate(settings.items())
        for host in (*HOSTS, *(OWN if own and place == 0 else ()))
        if host not in setting.refused_by
    ]


def run_distributed(folder: Path, found: list[Case]) -> dict[tuple[str, str, str], dict[str, Outcome]]:
    """Run both checks on all of `found` in two processes; by remedy, variant and host."""
    keys = [(case.remedy, case.variant, case.host.name) for case in found]
    torch.multiprocessing.spawn(_worker, (str(folder), keys), nprocs=RANKS)
    outcomes: dict[tuple[str, str, str], dict[str, Outcome]] = {key: {} for key in keys}
    for rank in range(RANKS):
        reasons = json.loads((folder / f"{rank}.json").read_text())
        for key, words, reason in reasons:
            if outcomes[tuple(key)].get(words, Outcome("pass")).status == "pass":
                outcomes[tuple(key)][words] = Outcome("fail" if reason else "pass", reason)
    return outcomes


def _worker(rank: int, folder: str, keys: list[tuple[str, str, str]]) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", f"file://{folder}/meet", rank=rank, world_size=RANKS, timeout=timedelta(seconds=120)
    )
    found = []
    for remedy, variant, host in keys:
        case = Case(remedy, variant, BY_NAME[host])
        for words, check in ((DDP, ddp_step), (FSDP2, fsdp_step)):
            try:
                check(case, rank)
                reason = ""
            except Exception as error:
                where = traceback.extract_tb(error.__traceback__)[-1]
                reason = f"{type(error).__name__}: {error} ({where.name}:{where.lineno})"
            found.append(((remedy, variant, host), words, reason))
    Path(folder, f"{rank}.json").write_text(json.dumps(found))
    dist.destroy_process_group()
    # On a busy machine gloo's threads may outlive the interpreter, which then aborts after all is said.
    os._exit(0)


def ddp_step(case: Case, rank: int) -> None:
    """Two steps: every rank ends with the mean of all gradients, and DDP waits for none that never comes."""
    model, alone = case.remedied().train(), case.remedied().train()
    wrapped = DistributedDataParallel(model)
    for _ in range(2):  # a parameter that was not used is told of in the next pass
        wanted = _mean_gradients(case, alone)
        wrapped.zero_grad()
        loss_of(case, wrapped, _batch(case, rank)).backward()
        _compare(model, wanted)
        _step(model)
        _step(alone)


def fsdp_step(case: Case, rank: int) -> None:
    """Sharded block by block: the same outputs and gradients, and a step can follow."""
    model, alone = case.remedied().train(), case.remedied().train()
    for block in find_anatomy(model).blocks.values():
        fully_shard(block)
    fully_shard(model)
    for _ in range(2):
        wanted = _mean_gradients(case, alone)
        model.zero_grad()
        loss = loss_of(case, model, _batch(case, rank))
        loss.backward()
        assert loss.isfinite(), "loss not finite"
        _compare(model, wanted)
        _step(model)
        _step(alone)


def _batch(case: Case, rank: int) -> dict[str, Any]:
    return case.host.call(case.host.inputs(seed=rank))


def _mean_gradients(case: Case, model: nn.Module) -> dict[str, Tensor]:
    """What one process would get from the batches of all."""
    model.zero_grad()
    # As many passes as ranks, each from the same state: a remedy may keep something from pass to pass.
    twins = [copy.deepcopy(model) for _ in range(RANKS)]
    for rank, twin in enumerate(twins):
        loss_of(case, twin, _batch(case, rank)).backward()
    both = [{name: parameter.grad for name, parameter in twin.named_parameters()} for twin in twins]
    for name, parameter in model.named_parameters():
        parameter.grad = torch.stack([gradients[name] for gradients in both]).mean(0)
    return {name: parameter.grad.clone() for name, parameter in model.named_parameters()}


def _compare(model: nn.Module, wanted: dict[str, Tensor]) -> None:
    for name, parameter in model.named_parameters():
        gradient = parameter.grad
        assert gradient is not None, f"no gradient for {name}"
        gradient = gradient.full_tensor() if isinstance(gradient, DTensor) else gradient
        close(gradient, wanted[name], f"gradient of {name}", tolerance=1e-4)


def _step(model: nn.Module) -> None:
    """Plain descent, the same for whole and sharded parameters."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.sub_(parameter.grad, alpha=0.01)
