from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tests.remedies.hosts import BY_NAME
from tests.remedies.written_out import CASES, blocks_of, exact, exact_call, may_see, near, record, set_all, uniform
from unsmooth.remedies import apply
from unsmooth.remedies.call import Call


@pytest.mark.parametrize(("variant", "times"), [("paper", 1), ("official", 2)])
@pytest.mark.parametrize(("name", "padded"), CASES)
def test_mean_and_rest_are_reweighted(name: str, padded: str | None, variant: str, times: int) -> None:
    model = apply(exact(name), "featscale", variant=variant)
    chosen = set_all(name, model, "featscale", dc=0.5, hc=0.5)
    call, real = exact_call(name, padded)
    mean_of = uniform(may_see(name, real))
    for block, numbers in zip(record(name, model, call), chosen, strict=True):
        near(block.branch, reweighted(block.before, mean_of, numbers, times), real)


def reweighted(branch: Tensor, mean_of: Tensor, numbers: dict[str, Tensor], times: int) -> Tensor:
    mean = mean_of @ branch
    return (1 + times * numbers["dc"]) * mean + (1 + times * numbers["hc"]) * (branch - mean)


@pytest.mark.parametrize(("variant", "times"), [("paper", 1), ("official", 2)])
def test_mean_is_scaled_by_one_plus_s_and_the_rest_by_one_plus_t(variant: str, times: int) -> None:
    edit = blocks_of("bert", apply(exact("bert"), "featscale", dc=-0.25, hc=0.75, variant=variant))[
        0
    ].unsmooth.featscale
    x = torch.randn(1, 6, 32, dtype=torch.double)
    mean, rest = x.mean(1, keepdim=True).expand_as(x), x - x.mean(1, keepdim=True)
    call = Call(x, False, None, None, None, {})
    with torch.no_grad():
        near(edit.on_attention(mean, call), (1 - 0.25 * times) * mean)
        near(edit.on_attention(rest, call), (1 + 0.75 * times) * rest)


def test_fixed_numbers_are_no_parameters() -> None:
    learned, fixed = (apply(exact("bert"), "featscale", dc=0.3, hc=-0.2, learn=learn) for learn in ("channel", "no"))
    assert not any("unsmooth" in name for name, _ in fixed.named_parameters())
    call, _ = exact_call("bert")
    with torch.no_grad():
        assert torch.equal(learned(**call)[0], fixed(**call)[0])


def test_starts_as_the_plain_model_and_learns() -> None:
    host = BY_NAME["vit"]
    plain, model = host.model(), apply(host.model(), "featscale")
    call = host.call(host.inputs())
    assert torch.equal(host.output(model, call), host.output(plain, call))
    host.output(model, call).square().mean().backward()
    for block in blocks_of("vit", model):
        assert block.unsmooth.featscale.dc.grad.ne(0).all()
        assert block.unsmooth.featscale.hc.grad.ne(0).all()
