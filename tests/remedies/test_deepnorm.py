from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import unsmooth
from tests.remedies.by_hand import POST, PRE, Edits, blocks_of, by_hand, exact, gradients_near, near, streams
from tests.remedies.hosts import BY_NAME
from tests.remedies.snapshot import Snapshot
from unsmooth.errors import UnsmoothError
from unsmooth.models.value_projection import value_projection
from unsmooth.remedies import applied

# Three layers, or three calls of ALBERT's one block: (2·3)^¼ and (8·3)^-¼.
ALPHA, BETA = 1.5650845800732873, 0.45180100180492244


def heavier(alpha: float) -> Edits:
    return Edits(first=lambda x, a: alpha * x + a, second=lambda x, m, bottom: alpha * x + m)


def with_eps(model: Any, eps: float) -> Any:
    for module in model.modules():
        if isinstance(module, nn.LayerNorm):
            module.eps = eps
    return model


def value_and_rest(name: str, block: Any) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """(Weights of values, output and MLP with their biases; all others), values cut out of what they are fused with."""
    weights = {key: value.detach().clone() for key, value in block.named_parameters()}
    for key in [key for key in weights if "in_proj" in key]:
        query_key, value = weights.pop(key).split([64, 32])
        weights |= {f"value.{key}": value, f"rest.{key}": query_key}
    norms = ("LayerNorm", "layer_norm", "norm1", "norm2", "query", "key", "rest.")
    rest = {key: value for key, value in weights.items() if any(part in key for part in norms)}
    return {key: value for key, value in weights.items() if key not in rest}, rest


@pytest.mark.parametrize("name", POST)
@pytest.mark.parametrize("alpha", [None, 0.6, 2.5])
def test_is_a_norm_of_the_heavier_stream(name: str, alpha: float | None) -> None:
    plain = with_eps(exact(name), 0.3)  # so large that a wrong eps shows
    model = unsmooth.apply(copy.deepcopy(plain), "deepnorm", alpha=alpha, init="keep")
    near(name, streams(name, model)[1], by_hand(name, plain, heavier(alpha or ALPHA)))


@pytest.mark.parametrize("name", ["bert", "torch_tokens_first"])
def test_gradients(name: str) -> None:
    plain = exact(name)
    gradients_near(name, unsmooth.apply(exact(name), "deepnorm", init="keep"), plain, heavier(ALPHA))


@pytest.mark.parametrize("name", [*PRE, "neox_parallel"])
def test_blocks_without_a_norm_after_the_addition_are_refused(name: str) -> None:
    model = BY_NAME[name].model()
    before = Snapshot.of(model)
    with pytest.raises(UnsmoothError, match="the stream would grow by α"):
        unsmooth.apply(model, "deepnorm")
    before.check(model)


def test_depth_counts_calls_and_the_options_override_it() -> None:
    for name in ("bert", "albert"):
        (done,) = applied(unsmooth.apply(BY_NAME[name].model(), "deepnorm", layers=0))
        assert done.report[0] == pytest.approx({"alpha": ALPHA, "beta": BETA}, rel=1e-12)
    (done,) = applied(unsmooth.apply(BY_NAME["bert"].model(), "deepnorm", layers=0, alpha=3, beta=0.25))
    assert done.report[0] == {"alpha": 3.0, "beta": 0.25}


@pytest.mark.parametrize("name", POST)
def test_official_start_multiplies_what_is_there(name: str) -> None:
    plain = BY_NAME[name].model()
    model = unsmooth.apply(copy.deepcopy(plain), "deepnorm", variant="official")
    for was, now in zip(blocks_of(plain), blocks_of(model), strict=True):
        (wanted, rest), (got, got_rest) = value_and_rest(name, was), value_and_rest(name, now)
        assert len(wanted) == 8  # value, output and two of the MLP, each with its bias
        for key, weight in wanted.items():
            torch.testing.assert_close(got[key], (weight.double() * BETA).float())
        for key, weight in rest.items():
            assert torch.equal(got_rest[key], weight), key


@pytest.mark.parametrize("name", POST)
def test_paper_start_draws_matrices_anew(name: str) -> None:
    plain = BY_NAME[name].model()
    torch.manual_seed(0)
    model = unsmooth.apply(copy.deepcopy(plain), "deepnorm", beta=0.5)
    for was, now in zip(blocks_of(plain), blocks_of(model), strict=True):
        (wanted, rest), (got, got_rest) = value_and_rest(name, was), value_and_rest(name, now)
        for key, weight in [*wanted.items(), *rest.items()]:
            new = {**got, **got_rest}[key]
            if key in rest or weight.ndim == 1:
                assert torch.equal(new, weight), key
            else:
                gain = new.double().std() / (2.0 / sum(weight.shape)) ** 0.5
                assert abs(float(gain) - 0.5) < 0.05, key
                assert new.abs().max() > 2.5 * new.std(), f"{key}: a uniform draw ends at √3 standard deviations"


@pytest.mark.parametrize("options", [{}, {"variant": "official"}, {"init": "keep", "alpha": 4.0}])
@pytest.mark.parametrize("name", ["bert", "albert", "torch_post"])
def test_undo_brings_back_weights_and_eps(name: str, options: dict[str, Any]) -> None:
    model = with_eps(BY_NAME[name].model(), 1e-3)
    before = Snapshot.of(model)
    unsmooth.apply(model, "deepnorm", **options)
    assert {
        module.eps for block in blocks_of(model) for module in block.modules() if isinstance(module, nn.LayerNorm)
    } == {1e-3 / (options.get("alpha") or ALPHA) ** 2}
    unsmooth.undo(model)
    before.check(model)
    assert {module.eps for module in model.modules() if isinstance(module, nn.LayerNorm)} == {1e-3}


def test_undo_leaves_what_was_trained_and_not_replaced() -> None:
    model = BY_NAME["torch_post"].model()
    plain = {key: value.clone() for key, value in model.state_dict().items()}
    unsmooth.apply(model, "deepnorm")
    with torch.no_grad():
        for block in blocks_of(model):
            block.self_attn.in_proj_weight.add_(1.0)
            block.norm1.weight.add_(1.0)
    unsmooth.undo(model)
    for block, number in zip(blocks_of(model), range(3), strict=True):
        was = plain[f"layers.{number}.self_attn.in_proj_weight"]
        torch.testing.assert_close(block.self_attn.in_proj_weight, torch.cat([was[:64] + 1.0, was[64:]]))
        torch.testing.assert_close(block.norm1.weight, plain[f"layers.{number}.norm1.weight"] + 1.0)


@pytest.mark.parametrize("name", POST)
def test_folds_into_plain_weights(name: str) -> None:
    plain = with_eps(exact(name), 1e-12)
    model = unsmooth.apply(copy.deepcopy(plain), "deepnorm", init="keep")
    unsmooth.fold(model)
    assert list(model.state_dict()) == list(plain.state_dict())
    near(name, streams(name, model)[1], by_hand(name, plain, heavier(ALPHA)))
    plain.load_state_dict(model.state_dict())
    assert torch.equal(streams(name, plain)[1], streams(name, model)[1])


def test_a_folded_model_differs_by_no_more_than_eps() -> None:
    plain = with_eps(exact("torch_post"), 1e-5)
    model = unsmooth.apply(copy.deepcopy(plain), "deepnorm", init="keep")
    before = streams("torch_post", model)[1]
    after = streams("torch_post", unsmooth.fold(model))[1]
    assert 0.0 < (after - before).abs().max() < 1e-4


def test_a_folded_model_is_saved_and_loaded_by_its_library(tmp_path: Path) -> None:
    host = BY_NAME["bert"]
    model = unsmooth.apply(host.model(), "deepnorm", init="keep")
    call = host.call(host.inputs())
    with torch.no_grad():
        wanted = host.output(model, call)
        unsmooth.fold(model).save_pretrained(tmp_path)
        loaded = type(model).from_pretrained(tmp_path).eval()
        torch.testing.assert_close(host.output(loaded, call), wanted, rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", ["bert", "torch_post"])
def test_whoever_explains_sees_h_divided(name: str) -> None:
    plain, model = exact(name), unsmooth.apply(exact(name), "deepnorm", init="keep")
    torch.testing.assert_close(value_projection(model, 1).summed(), value_projection(plain, 1).summed() / ALPHA)
    assert value_projection(model, 1).norm.eps == pytest.approx(value_projection(plain, 1).norm.eps / ALPHA**2)


def test_stacks_with_other_scales_and_with_deescalation() -> None:
    plain, tau = exact("bert"), 0.7

    def without_mean(x: Tensor) -> Tensor:
        return x - tau * x.mean(dim=1, keepdim=True)

    wanted = by_hand(
        "bert",
        plain,
        Edits(
            first=lambda x, a: without_mean(2.0 * x + 3**-0.5 * a),
            second=lambda x, m, bottom: 2.0 * x + 3**-0.5 * m,
        ),
    )
    remedies = {
        "deepnorm": {"alpha": 2.0, "init": "keep"},
        "deescalate": {"tau": tau, "place": "residual"},
        "residual_scaling": {},
    }
    for names in (list(remedies), list(reversed(remedies))):
        model = exact("bert")
        before = Snapshot.of(model)
        for name in names:
            unsmooth.apply(model, name, **remedies[name])
        # A norm forgets scale but for its eps of 1e-12.
        near("bert", streams("bert", model)[1], wanted)
        before.check(unsmooth.undo(model))


def test_norms_cannot_be_dropped_beside_it() -> None:
    model = unsmooth.apply(BY_NAME["bert"].model(), "deepnorm")
    with pytest.raises(UnsmoothError, match='deepnorm rests on the norms that norm="drop" takes away'):
        unsmooth.apply(model, "rezero")
    unsmooth.apply(model, "rezero", norm="keep", start=1.0)
    model = unsmooth.apply(BY_NAME["bert"].model(), "rezero")
    with pytest.raises(UnsmoothError, match="another remedy has dropped its norms"):
        unsmooth.apply(model, "deepnorm")


def test_weights_that_another_remedy_computes_are_not_drawn() -> None:
    host = BY_NAME["bert"]
    model, call = host.model(), host.call(host.inputs())
    before = Snapshot.of(model)
    unsmooth.apply(model, "sharpen")
    with pytest.raises(UnsmoothError, match='init="keep" works'):
        unsmooth.apply(model, "deepnorm")
    unsmooth.apply(model, "deepnorm", init="keep")
    folded = copy.deepcopy(model)
    with torch.no_grad():
        wanted = host.output(model, call)
        torch.testing.assert_close(host.output(unsmooth.fold(folded), call), wanted, rtol=0, atol=2e-5)
    before.check(unsmooth.undo(model))
    unsmooth.apply(model, "deepnorm")
    before.check(unsmooth.undo(unsmooth.apply(model, "sharpen")))
