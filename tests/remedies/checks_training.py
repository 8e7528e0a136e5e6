"""Checks of learning and of the ways torch runs a model: gradients, steps, compilation, autocast, checkpointing."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import DynamicCache

from tests.remedies.harness import Case, DoesNotApplyError, check, close, new_parameters, outputs
from tests.remedies.settings import SETTINGS

# One encoder and one decoder are enough to learn on.
LEARNERS = ("bert", "gpt2")
CHECKPOINTED = ("bert", "vit", "llama")


def loss_of(case: Case, model: nn.Module, call: dict[str, Any] | None = None) -> Tensor:
    """How far the outputs are from fixed random numbers: no norm at the end makes it constant."""
    out = case.host.output(model, case.host.call(case.host.inputs()) if call is None else call)
    wanted = torch.randn(out.shape, generator=torch.Generator().manual_seed(5))
    return (out.float() - wanted).square().mean()


def gradients_of(case: Case, model: nn.Module) -> dict[str, Tensor | None]:
    """By parameter, in training mode."""
    model.train()
    model.zero_grad()
    loss_of(case, model).backward()
    return {name: None if found.grad is None else found.grad.clone() for name, found in model.named_parameters()}


@check("gradients reach every parameter")
def gradients(case: Case) -> None:
    """None is left without one, old or new, and of each new one some number moves; but those that the host freezes."""
    model = case.remedied()
    frozen = [name for name, parameter in case.host.model().named_parameters() if not parameter.requires_grad]
    found = {name: gradient for name, gradient in gradients_of(case, model).items() if name not in frozen}
    missing = [name for name, gradient in found.items() if gradient is None]
    assert not missing, f"no gradient for {missing[:3]}"
    infinite = [name for name, gradient in found.items() if not gradient.isfinite().all()]
    assert not infinite, f"gradients not finite: {infinite[:3]}"
    unmoved = [name for name in new_parameters(model) if not found[name].any()]
    assert not unmoved, f"zero gradient for {unmoved[:3]}"


@check("50 training steps")
def training(case: Case) -> None:
    """The loss falls, and everything stays finite."""
    if case.host.name not in LEARNERS:
        raise DoesNotApplyError(f"trained on {' and '.join(LEARNERS)}")
    model = case.remedied().train()
    optimiser = torch.optim.AdamW(model.parameters(), lr=3e-3)
    losses = []
    for _ in range(50):
        optimiser.zero_grad()
        loss = loss_of(case, model)
        loss.backward()
        optimiser.step()
        losses.append(float(loss.detach()))
    assert all(torch.isfinite(torch.tensor(losses))), f"losses {losses[-3:]}"
    assert losses[-1] < 0.8 * losses[0], f"loss went from {losses[0]:.3f} to {losses[-1]:.3f}"
    broken = [name for name, parameter in model.named_parameters() if not parameter.isfinite().all()]
    assert not broken, f"not finite: {broken[:3]}"
    still = [name for name, parameter in new_parameters(model).items() if torch.equal(parameter, _at_start(case)[name])]
    assert not still, f"did not move: {still[:3]}"


def _at_start(case: Case) -> dict[str, nn.Parameter]:
    return new_parameters(case.remedied())


@check("compiles whole")
def compiled(case: Case) -> None:
    """`torch.compile(fullgraph=True)` gives the same outputs, with a cache made on the way where there is one.

    First settings on all hosts, the others on one host per family; a decoder goes on from that cache too.
    """
    first = case.variant == next(iter(SETTINGS[case.remedy]))
    if not (first or case.host.family):
        raise DoesNotApplyError("compiled on one host per family")
    model, inputs = case.remedied(), case.host.inputs()
    wanted = outputs(case, model)
    torch._dynamo.reset()
    whole = torch.compile(model, fullgraph=True, backend="aot_eager")
    try:
        if case.host.name == "gpt2" and first:
            cache = DynamicCache(config=model.config)
            pieces = [outputs(case, whole, part, past_key_values=cache) for part in inputs.split([4, 1, 1, 2], dim=1)]
            close(torch.cat(pieces, dim=1), wanted, "compiled, in pieces")
        else:
            close(outputs(case, whole), wanted, "compiled")
    finally:
        torch._dynamo.reset()


def inductor(case: Case) -> None:
    """Outputs and gradients of the compiled model are those of the model."""
    model = case.remedied()
    wanted = gradients_of(case, model)
    loss = loss_of(case, model)
    torch._dynamo.reset()
    model.zero_grad()
    found = loss_of(case, torch.compile(model, fullgraph=True))
    found.backward()
    close(found.detach(), loss.detach(), "loss", tolerance=1e-4)
    for name, parameter in model.named_parameters():
        close(parameter.grad, wanted[name], f"gradient of {name}", tolerance=1e-4)
    torch._dynamo.reset()


@check("bf16 autocast")
def autocast(case: Case) -> None:
    """As near to float32 as the plain model is, within a factor of three."""
    apart = []
    for model in (case.host.model(), case.remedied()):
        full = outputs(case, model)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            half = outputs(case, model).float()
        assert half.isfinite().all(), "not finite"
        apart.append(float((half - full).norm() / full.norm()))
    plain, remedied = apart
    assert remedied < 3 * plain + 0.01, f"relative error {remedied:.3f}; the plain model's is {plain:.3f}"


@check("gradient checkpointing")
def checkpointed(case: Case) -> None:
    """Blocks that run again in the backward pass give the same gradients."""
    if case.host.name not in CHECKPOINTED:
        raise DoesNotApplyError(f"tried on {', '.join(CHECKPOINTED)}")
    model = case.remedied()
    wanted = gradients_of(case, model)
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    for name, gradient in gradients_of(case, model).items():
        close(gradient, wanted[name], f"gradient of {name}")
