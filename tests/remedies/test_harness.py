"""The harness against remedies that are wrong on purpose: each must fail the check that is meant for it."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.remedies import checks_lifecycle, checks_tokens, checks_training  # noqa: F401 - register the checks
from tests.remedies.harness import Case, run, run_all
from tests.remedies.hosts import BY_NAME
from tests.remedies.settings import SETTINGS, Setting
from unsmooth.remedies.base import REMEDIES, Edit
from unsmooth.remedies.call import Call
from unsmooth.remedies.token_mean import token_mean


class Wrong(Edit):
    summary = paper = equation = cost = "-"
    causal = "prefix mean"


class LooksAhead(Wrong):
    def on_mlp(self, branch_BND: Tensor, call: Call) -> Tensor:
        return branch_BND - 0.5 * branch_BND.mean(1, keepdim=True)


class CountsPadding(Wrong):
    def on_mlp(self, branch_BND: Tensor, call: Call) -> Tensor:
        return branch_BND - 0.5 * branch_BND.cumsum(1)


class Forgets(Wrong):
    def on_mlp(self, branch_BND: Tensor, call: Call) -> Tensor:
        call.memory = None
        return branch_BND - 0.5 * token_mean(branch_BND, call, "x")


class RemembersBesideTheCache(Wrong):
    def on_mlp(self, branch_BND: Tensor, call: Call) -> Tensor:
        if call.memory is None or call.memory.past == 0:
            self.sum = torch.zeros_like(branch_BND[:, :1])
        running = branch_BND.cumsum(1) + self.sum
        self.sum = running[:, -1:].detach()
        return branch_BND + 0.5 * running


class NotNeutral(Wrong):
    neutral = {"by": 0.0}  # noqa: RUF012 - as remedies have it
    options = {"by": "-"}  # noqa: RUF012

    def __init__(self, site: Any, *, by: float = 1.0) -> None:
        super().__init__(site)
        self.by = by

    def on_mlp(self, branch_BND: Tensor, call: Call) -> Tensor:
        return branch_BND * (1 + 1e-6 + self.by)


class Nothing(Wrong):
    def on_mlp(self, branch_BND: Tensor, call: Call) -> Tensor:
        return branch_BND.clone()


class Idle(Wrong):
    def __init__(self, site: Any) -> None:
        super().__init__(site)
        self.unused = nn.Parameter(torch.zeros(3))

    def on_mlp(self, branch_BND: Tensor, call: Call) -> Tensor:
        return branch_BND * 0.5


class LeavesWeights(Wrong):
    def install(self, site: Any) -> None:
        site.output_matrix().data.mul_(0.5)


class FoldsToo(Wrong):
    folds = "wrongly"

    def on_mlp(self, branch_BND: Tensor, call: Call) -> Tensor:
        return branch_BND * 0.5

    def fold(self, site: Any) -> None:
        pass


class Breaks(Wrong):
    def on_mlp(self, branch_BND: Tensor, call: Call) -> Tensor:
        torch._dynamo.graph_break()
        return branch_BND * 0.5


class Overflows(Wrong):
    def on_mlp(self, branch_BND: Tensor, call: Call) -> Tensor:
        return branch_BND * (1 + 0.3 * (branch_BND.dtype == torch.bfloat16))


class SharesWithItsCopy(Wrong):
    by = torch.ones(1)

    def on_mlp(self, branch_BND: Tensor, call: Call) -> Tensor:
        SharesWithItsCopy.by = SharesWithItsCopy.by * 1.1
        return branch_BND * self.by


CASES = [
    (LooksAhead, "gpt2", "no token sees the future"),
    (LooksAhead, "bert", "padding changes nothing"),
    (CountsPadding, "gpt2", "padding changes nothing"),
    (Forgets, "gpt2", "decoding equals the full pass"),
    (Forgets, "gpt2", "beams may be reordered"),
    (RemembersBesideTheCache, "llama", "beams may be reordered"),
    (CountsPadding, "llama", "packed rows keep apart"),
    (NotNeutral, "vit", "neutral is bit-equal"),
    (Nothing, "vit", "changes the model"),
    (Idle, "vit", "gradients reach every parameter"),
    (LeavesWeights, "gpt2", "undo is bit-equal"),
    (LeavesWeights, "vit", "copies are independent"),
    (SharesWithItsCopy, "vit", "copies are independent"),
    (FoldsToo, "torch_post", "folds, or says why not"),
    (LeavesWeights, "bert", "state_dict round-trips"),
    (Breaks, "vit", "compiles whole"),
    (Overflows, "vit", "bf16 autocast"),
]


@pytest.fixture
def registered() -> Iterator[Any]:
    added: list[str] = []

    def register(kind: type[Edit]) -> str:
        kind.name = f"wrong {kind.__name__}"
        REMEDIES.add(kind.name, kind)
        SETTINGS[kind.name] = {"only": Setting()}
        added.append(kind.name)
        return kind.name

    yield register
    for name in added:
        del REMEDIES._items[name], SETTINGS[name]


@pytest.mark.parametrize(("kind", "host", "words"), CASES, ids=[f"{one[0].__name__}-{one[1]}" for one in CASES])
def test_what_is_wrong_fails(kind: type[Edit], host: str, words: str, registered: Any) -> None:
    case = Case(registered(kind), "only", BY_NAME[host])
    assert run(words, case).status == "fail"


class Refuses(Wrong):
    @classmethod
    def refusal(cls, site: Any, options: Any) -> str | None:
        return "not on a Tuesday"


def test_a_refusal_that_nobody_meant_fails(registered: Any) -> None:
    case = Case(registered(Refuses), "only", BY_NAME["vit"])
    assert run_all(case)["applies"].status == "fail"
    SETTINGS[case.remedy] = {"only": Setting(refused_by=("vit",))}
    outcome = run_all(case)["applies"]
    assert (outcome.status, "not on a Tuesday" in outcome.reason) == ("impossible", True)
    applied = functools.partial(Case, variant="only", host=BY_NAME["vit"])
    SETTINGS[(name := registered(Nothing))] = {"only": Setting(refused_by=("vit",))}
    assert run_all(applied(remedy=name))["applies"].reason == "expected to be refused, but it was applied"
