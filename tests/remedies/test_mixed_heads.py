"""Maps mixed over heads: the plain operations against the formula, and the kernels against both.

The kernels run on a GPU, or in Triton's interpreter where it is installed and TRITON_INTERPRET=1 is set: slowly, so
only on few tokens.
"""

from __future__ import annotations

import importlib.util
import os
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

import unsmooth
from unsmooth.remedies import mixed_heads
from unsmooth.remedies.mixed_heads import has_kernels, mixed_maps
from unsmooth.remedies.mixing import TorchMix, TransformersMix

INTERPRETED = importlib.util.find_spec("triton") is not None and os.environ.get("TRITON_INTERPRET") == "1"
ON = "cuda" if torch.cuda.is_available() else "cpu"
needs_kernels = pytest.mark.skipif(ON == "cpu" and not INTERPRETED, reason="no CUDA device and no TRITON_INTERPRET=1")
needs_gpu = [pytest.mark.gpu, pytest.mark.skipif(ON == "cpu", reason="no CUDA device on this machine")]


@dataclass(frozen=True)
class Case:
    """One attention to be mixed."""

    tokens: int
    heads: int = 3
    dim: int = 16
    parts: int = 1
    hides: str = "nothing"
    dtype: torch.dtype = torch.float32
    learned: bool = True
    shared: bool = False

    def inputs(self) -> tuple[dict[str, Tensor | None], Tensor | None]:
        """Everything with a gradient, in float64 but of numbers that `dtype` has, and the mask."""
        torch.manual_seed(0)
        maps, heads = (self.heads, self.heads) if self.parts == 1 else (self.parts, 1)
        whole = self.learned and self.parts == 1
        groups = 1 if self.parts == 1 or self.shared else self.heads
        size = (self.tokens, 2, self.heads, self.dim)
        made = {name: self._made(*size).permute(1, 2, 0, 3) for name in ("query", "key", "value")}
        weights = {
            "before": torch.eye(maps) + 0.5 * self._made(maps, maps) if whole else None,
            "after": self._made(groups, heads, maps),
            "bias": self._made(heads) if whole else None,
        }
        return {**made, **weights}, self._mask()

    def _made(self, *size: int) -> Tensor:
        return torch.randn(size).to(self.dtype).double()

    def _mask(self) -> Tensor | None:
        if self.hides in ("nothing", "future"):
            return None
        seen = torch.rand(2, 1, self.tokens if self.hides == "booleans" else 1, self.tokens) > 0.3
        if self.hides == "booleans":
            seen[0, 0, 0] = False  # a query that sees nothing
            return seen
        seen[..., 0] = True
        return torch.randn(seen.shape).masked_fill(~seen, -torch.inf).to(self.dtype)


def written_out(case: Case, given: dict[str, Any], mask: Tensor | None) -> Tensor:
    """The formula, map by map, in float64."""
    tokens, scale = case.tokens, (case.dim / case.parts) ** -0.5
    seen, added = torch.ones(tokens, tokens, dtype=torch.bool), torch.zeros(())
    if case.hides == "future":
        seen = seen.tril()
    elif case.hides == "booleans":
        seen = mask[:, 0]
    elif case.hides == "numbers":
        seen, added = (mask[:, 0] > -torch.inf), mask[:, 0].double().nan_to_num(neginf=0.0)

    def softmax(logits: Tensor) -> Tensor:
        return logits.masked_fill(~seen, -torch.inf).softmax(-1).nan_to_num()

    heads = []
    for head in range(case.heads):
        if case.parts == 1:
            logits = [given["query"][:, one] @ given["key"][:, one].mT * scale + added for one in range(case.heads)]
            if given["before"] is not None:
                logits = [sum(w * one for w, one in zip(row, logits, strict=True)) for row in given["before"]]
            weights = given["after"][0, head]
        else:
            q, k = given["query"][:, head], given["key"][:, head]
            logits = [q[..., i :: case.parts] @ k[..., i :: case.parts].mT * scale + added for i in range(case.parts)]
            weights = given["after"][0 if case.shared else head, 0]
        mixed = sum(weight * softmax(one) for weight, one in zip(weights, logits, strict=True))
        if given["bias"] is not None:
            mixed = mixed + given["bias"][head]
        heads.append((mixed * seen) @ given["value"][:, head])
    return torch.stack(heads, dim=1)


CASES = [
    Case(17),
    Case(17, heads=2, dim=32, parts=2),
    Case(1, heads=2),
    Case(33, heads=2, dim=24, hides="future"),
    Case(20, heads=2, dim=8, parts=2, hides="future", shared=True),
    Case(18, heads=2, hides="booleans"),
    Case(18, heads=2, hides="numbers", learned=False),
    Case(18, heads=2, parts=2, hides="numbers"),
    Case(17, heads=3, dim=64, dtype=torch.float16),
]
ON_A_GPU = [
    *(Case(tokens, dim=64, dtype=torch.bfloat16) for tokens in (1, 17, 65, 257)),
    *(Case(tokens, dim=64, parts=2, dtype=torch.bfloat16) for tokens in (1, 17, 65, 257)),
    *(Case(65, heads=4, dim=dim, hides="future", dtype=torch.float16) for dim in (16, 32, 64)),
    *(Case(65, heads=5, dim=dim, parts=2, hides="booleans") for dim in (16, 32, 64, 128)),
    *(Case(257, heads=2, dim=64, hides=hides) for hides in ("nothing", "future", "booleans", "numbers")),
]


@needs_kernels
@pytest.mark.parametrize("case", CASES if ON == "cpu" else [*CASES, *ON_A_GPU], ids=str)
def test_the_kernels_give_what_the_formula_gives(case: Case) -> None:
    given, mask = case.inputs()
    exact = {name: one.clone().requires_grad_() for name, one in given.items() if one is not None}
    wanted = written_out(case, {**given, **exact}, mask)
    along = torch.randn(wanted.shape).to(case.dtype)
    gradients = torch.autograd.grad((wanted * along).sum(), list(exact.values()))
    moved = {
        name: one.to(case.dtype if name in ("query", "key", "value") else torch.float32).to(ON).requires_grad_()
        for name, one in given.items()
        if one is not None
    }
    everything = [moved.get(name) for name in given]
    mask = None if mask is None else mask.to(ON)
    scale = (case.dim / case.parts) ** -0.5
    found, _, _ = torch.ops.unsmooth.mixed_heads(*everything, mask, case.hides == "future", scale, case.parts)
    assert found.dtype == case.dtype
    found_gradients = torch.autograd.grad((found * along.to(ON)).sum(), list(moved.values()))
    tolerance = {torch.float32: 1e-5, torch.float16: 3e-3, torch.bfloat16: 2e-2}[case.dtype]
    for one, other in zip([found, *found_gradients], [wanted, *gradients], strict=True):
        away = (one.detach().cpu().double() - other.detach()).norm()
        assert away <= tolerance * max(1.0, other.detach().norm())


@needs_kernels
@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("tiles", [(32, 16, 4), (64, 32, 8), (16, 64, 2)], ids=str)
def test_any_tiles_give_it(tiles: tuple[int, int, int], parts: int, monkeypatch: pytest.MonkeyPatch) -> None:
    from unsmooth.remedies import mixed_heads_kernels as kernels

    monkeypatch.setattr(kernels, "TILES", {})
    monkeypatch.setattr(kernels, "MANY", kernels.Tiles(*tiles))
    test_the_kernels_give_what_the_formula_gives(Case(35, heads=2, parts=parts, hides="future"))


@needs_kernels
def test_the_operators_are_what_torch_expects() -> None:
    given, _ = Case(3, heads=2).inputs()
    moved = [one if one is None else one.float().to(ON).requires_grad_() for one in given.values()]
    checks = ("test_schema", "test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic")
    torch.library.opcheck(mixed_heads._attend, (*moved, None, False, 0.25, 1), test_utils=checks)


@pytest.mark.parametrize("hides", ["nothing", "future", "booleans"])
def test_plain_operations_give_what_the_formula_gives(hides: str) -> None:
    case = Case(7, heads=4, hides=hides)
    given, mask = case.inputs()
    seen = {"nothing": None, "future": torch.ones(7, 7, dtype=torch.bool).tril(), "booleans": mask}[hides]
    logits = given["query"] @ given["key"].mT / 4.0
    maps = mixed_maps(logits, seen, given["before"], given["after"][0], given["bias"])
    torch.testing.assert_close(maps @ given["value"], written_out(case, given, mask), rtol=0.0, atol=1e-12)


def test_two_maps_subtracted_are_a_mixture() -> None:
    case = Case(6, heads=1, parts=2)
    given, _ = case.inputs()
    halves = torch.stack([given["query"][:, 0, :, i::2] @ given["key"][:, 0, :, i::2].mT for i in (0, 1)], dim=1)
    maps = mixed_maps(halves / 8**0.5, None, None, given["after"][0], None)
    torch.testing.assert_close(maps @ given["value"], written_out(case, given, None), rtol=0.0, atol=1e-12)


def on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have every tensor say so."""
    monkeypatch.setattr(mixed_heads, "HAS_TRITON", True)
    monkeypatch.setattr(Tensor, "is_cuda", True)


def test_what_the_kernels_are_for(monkeypatch: pytest.MonkeyPatch) -> None:
    def tensors(heads: int = 3, dim: int = 64, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor, Tensor]:
        return tuple(torch.zeros(2, heads, 5, dim, dtype=dtype) for _ in range(3))  # type: ignore[return-value]

    assert not has_kernels(TorchMix(*tensors()))
    on_a_gpu(monkeypatch)
    shared, by_head = torch.zeros(2, 1, 1, 5), torch.zeros(2, 3, 5, 5)
    assert has_kernels(TorchMix(*tensors()))
    assert has_kernels(TorchMix(*tensors(), is_causal=True))
    assert has_kernels(TorchMix(*tensors(), attn_mask=shared))
    assert has_kernels(TorchMix(*tensors(), attn_mask=torch.zeros(5, 5)))
    assert not has_kernels(TorchMix(*tensors(), attn_mask=by_head))
    assert not has_kernels(TorchMix(*tensors(), attn_mask=torch.zeros(2, 1, 5, 5, requires_grad=True)))
    assert not has_kernels(TorchMix(*tensors(), dropout_p=0.1))
    assert not has_kernels(TorchMix(*tensors(dtype=torch.double)))
    assert not has_kernels(TorchMix(*tensors(heads=5)))
    assert has_kernels(TorchMix(*tensors(heads=5)), parts=2)
    assert not has_kernels(TorchMix(*tensors(dim=128)))
    assert has_kernels(TorchMix(*tensors(dim=128)), parts=2)
    with sdpa_kernel(SDPBackend.MATH):
        assert not has_kernels(TorchMix(*tensors()))


@pytest.mark.parametrize(
    ("fused", "mask", "told", "masking"),
    [
        (True, None, {}, (None, True)),
        (True, None, {"is_causal": False}, (None, False)),
        (False, None, {}, None),
        (True, None, {"softcap": 50.0}, None),
        (True, None, {"sliding_window": 4}, None),
        (True, torch.ones(2, 5), {}, None),
    ],
)
def test_what_hides_keys_in_transformers(fused: bool, mask: Any, told: dict[str, Any], masking: Any) -> None:
    tensors = torch.zeros(3, 2, 3, 5, 8).unbind()
    assert TransformersMix(nn.Identity(), None, fused, tensors, mask, told).masking() == masking
    four = torch.zeros(2, 1, 5, 5)
    found = TransformersMix(nn.Identity(), None, True, tensors, four, {}).masking()
    assert found is not None
    assert found[0] is four


REMEDIES = [
    ("talking_heads", {}),
    ("talking_heads", {"bias": False}),
    ("differential", {}),
    ("differential", {"learn": "head", "norm": False}),
    ("differential", {"learn": "no"}),
]


@pytest.fixture
def encoder() -> Any:
    """A small encoder on the GPU with a remedy, and the same without kernels."""

    def made(name: str, options: dict[str, Any], tokens: int = 65) -> tuple[nn.Module, Tensor]:
        torch.manual_seed(0)
        layer = nn.TransformerEncoderLayer(192, 3, 256, 0.0, batch_first=True, norm_first=True)
        model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        unsmooth.apply(model, name, **options)
        for path, parameter in model.named_parameters():
            if "unsmooth" in path:
                nn.init.normal_(parameter, parameter.detach().mean().item(), 0.3)
        return model.cuda(), torch.randn(4, tokens, 192, device="cuda")

    return made


def outcome(model: nn.Module, called: Any, x: Tensor, half: bool) -> list[Tensor]:
    """What comes out, and every gradient."""
    with torch.autocast("cuda", torch.bfloat16, enabled=half, cache_enabled=False):
        out = called(x).float()
    weights = torch.linspace(-1.0, 1.0, out.numel(), device=x.device).view(out.shape)
    return [out.detach(), *torch.autograd.grad((out * weights).sum(), list(model.parameters()))]


def near(found: list[Tensor], wanted: list[Tensor], tolerance: float) -> None:
    for one, other in zip(found, wanted, strict=True):
        assert (one - other).norm() <= tolerance * other.norm() + 1e-6


@pytest.mark.parametrize(("name", "options"), REMEDIES)
@pytest.mark.parametrize("half", [False, True])
class TestOnAGpu:
    pytestmark = needs_gpu

    def wanted(self, model: nn.Module, x: Tensor, monkeypatch: pytest.MonkeyPatch) -> list[Tensor]:
        with monkeypatch.context() as without:
            without.setattr(mixed_heads, "HAS_TRITON", False)
            return outcome(model, model, x, False)

    def test_as_plain_operations(self, encoder, name, options, half, monkeypatch):
        model, x = encoder(name, options)
        calls = []
        from unsmooth.remedies import mixed_heads_kernels

        forward = mixed_heads_kernels.forward
        monkeypatch.setattr(mixed_heads_kernels, "forward", lambda *given: calls.append(1) or forward(*given))
        found = outcome(model, model, x, half)
        assert len(calls) == 2  # one per layer
        near(found, self.wanted(model, x, monkeypatch), 0.15 if half else 1e-4)

    def test_forward_derivatives(self, encoder, name, options, half, monkeypatch):
        if half:
            pytest.skip("derivatives are taken in float32")
        model, x = encoder(name, options, tokens=5)
        along = torch.randn_like(x)
        with sdpa_kernel(SDPBackend.MATH), torch.no_grad():
            _, found = torch.func.jvp(model, (x,), (along,))
            wanted = (model(x + 1e-3 * along) - model(x - 1e-3 * along)) / 2e-3
        near([found], [wanted], 0.02)

    def test_compiled(self, encoder, name, options, half, monkeypatch):
        model, x = encoder(name, options)
        torch._dynamo.reset()  # it counts the models of all tests as variations of one
        found = outcome(model, torch.compile(model, fullgraph=True), x, half)
        near(found, self.wanted(model, x, monkeypatch), 0.15 if half else 1e-4)

    def test_captured(self, encoder, name, options, half, monkeypatch):
        model, x = encoder(name, options)
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            outcome(model, model, x, half)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            found = outcome(model, model, x, half)
        x.copy_(torch.randn_like(x))
        graph.replay()
        near(found, self.wanted(model, x, monkeypatch), 0.15 if half else 1e-4)
