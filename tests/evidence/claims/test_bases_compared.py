"""Three bases of sharpening: the rule, and the shape of H by other means."""

from __future__ import annotations

from typing import Any

import numpy
import pytest
import torch

from tests.evidence.trained import bench, run
from unsmooth.errors import UnsmoothError
from unsmooth.evidence import CLAIMS, STUDIES, Bench
from unsmooth.evidence.studies.bases import shape_of
from unsmooth.models.value_projection import Norm, ValueProjection

CLAIM = CLAIMS["bases-compared"]
SHAPE = {"asymmetry": 0.1, "condition": 3.0, "lowest": -1.25, "highest": -0.5, "imaginary": 0.0, "symmetric": 0.4}


def measured(accuracy: dict[str, list[float]], cosine: dict[str, list[float]]) -> dict[str, Any]:
    return {
        variant: {
            str(seed): {"finished": True, "accuracy": points / 100, "cosine": [0.3, last], "shapes": [SHAPE, SHAPE]}
            for seed, (points, last) in enumerate(zip(accuracy[variant], cosine[variant], strict=True))
        }
        for variant in ("plain", "gram", "orthogonal", "general")
    }


LEVEL = [60.0, 60.5, 60.2]
ALIKE = [0.10, 0.12, 0.11]


@pytest.mark.parametrize(
    ("gram", "cosine", "outcome"),
    [
        ([60.1, 60.5, 60.1], ALIKE, "for"),
        ([59.5, 60.0, 59.7], ALIKE, "for"),  # half a point is not called a cost
        ([60.1, 60.5, 60.1], [0.2, 0.22, 0.21], "undecided"),  # tokens are more alike
        ([60.1, 60.5, 60.1], [0.0, 0.02, 0.01], "for"),  # and less alike is no harm
        ([63.0, 57.0, 60.0], ALIKE, "undecided"),
        ([57.0, 57.5, 57.2], ALIKE, "against"),
        ([57.0, 57.5, 57.2], [0.2, 0.22, 0.21], "against"),
    ],
)
def test_rule(gram: list[float], cosine: list[float], outcome: str) -> None:
    accuracy = {"plain": LEVEL, "gram": gram, "orthogonal": LEVEL, "general": LEVEL}
    numbers = measured(accuracy, {"plain": ALIKE, "gram": cosine, "orthogonal": ALIKE, "general": ALIKE})
    assert CLAIM.judge(numbers).outcome == outcome
    assert len(CLAIM.figure(numbers).panels) == 3


def test_says_what_became_of_h() -> None:
    every = dict.fromkeys(("plain", "gram", "orthogonal", "general"), LEVEL)
    numbers = measured(every, dict.fromkeys(every, ALIKE))
    numbers["general"]["2"]["shapes"] = [SHAPE, {**SHAPE, "condition": 80.0, "symmetric": 7.0, "highest": 0.5}]
    found = {finding.what: finding.interval.value for finding in CLAIM.judge(numbers).findings}
    assert found["largest condition number of V at any layer, general"] == pytest.approx((3 + 3 + 80) / 3)
    assert found["largest eigenvalue of (H + Hᵀ)/2 at any layer, general"] == pytest.approx((0.4 + 0.4 + 7) / 3)
    outside = "how far an eigenvalue of H is outside [−1, 0] at most"
    assert found[f"{outside}, general"] == pytest.approx((0.25 + 0.25 + 0.5) / 3)
    assert found[f"{outside}, gram"] == pytest.approx(0.25)


def test_a_basis_whose_runs_all_stopped_is_compared_by_guessing() -> None:
    similarity = {"mean_cosine": ({"epoch": 0.0, "layers": [0.3, 0.1]},)}
    kept = {"similarity": similarity, "looked": {"layers": [SHAPE]}}
    whole = ("plain", "gram", "orthogonal")
    runs = {variant: {seed: run(variant, seed, 0.5, **kept) for seed in (0, 1)} for variant in whole}
    runs["general"] = {seed: run("general", seed, 0.4, state="stopped", similarity=similarity) for seed in (0, 1)}
    numbers = CLAIM.measure(bench(bases=runs))
    judgement = CLAIM.judge(numbers)
    assert judgement.outcome == "for"
    assert judgement.findings[0].interval.value == pytest.approx(49.0)
    assert not any("cosine" in finding.what and "general" in finding.what for finding in judgement.findings)
    assert [one.name for one in CLAIM.figure(numbers).panels[1].series] == list(whole)
    runs["gram"][0] = run("gram", 0, 0.5, similarity=similarity)
    with pytest.raises(UnsmoothError, match="look_again"):
        CLAIM.measure(bench(bases=runs))


def as_heads(v: numpy.ndarray, w: numpy.ndarray, heads: int) -> ValueProjection:
    dim, width = v.shape
    return ValueProjection(
        w_v=torch.from_numpy(v).view(dim, heads, width // heads).transpose(0, 1),
        w_o=torch.from_numpy(w).view(heads, width // heads, dim),
        kv_of_head=torch.arange(heads),
        b_v=None,
        b_o=None,
        place="pre",
        norm=Norm("none", None, None, 0.0),
    )


def test_shape_of_a_general_basis_against_numpy() -> None:
    """Eigenvalues stay where they were put, while V takes the symmetric part out of the interval."""
    rng = numpy.random.default_rng(0)
    values = numpy.array([-1.0, -0.8, -0.5, -0.3, -0.2, 0.0])
    left, _ = numpy.linalg.qr(rng.standard_normal((6, 6)))
    right, _ = numpy.linalg.qr(rng.standard_normal((6, 6)))
    v = left @ numpy.diag([10.0, 5.0, 3.0, 2.0, 1.0, 0.5]) @ right
    found = shape_of(as_heads(v, numpy.diag(values) @ numpy.linalg.inv(v), heads=2))
    h = v @ numpy.diag(values) @ numpy.linalg.inv(v)
    assert found["condition"] == pytest.approx(20.0)
    assert (found["lowest"], found["highest"]) == pytest.approx((-1.0, 0.0), abs=1e-9)
    assert found["imaginary"] == pytest.approx(0.0, abs=1e-9)
    assert found["symmetric"] == pytest.approx(numpy.linalg.eigvalsh((h + h.T) / 2).max())
    assert found["symmetric"] > 0.1, "although every eigenvalue sharpens"
    assert found["norm"] == pytest.approx(numpy.linalg.norm(h, 2))
    assert found["asymmetry"] == pytest.approx(numpy.linalg.norm(h - h.T) / (2 * numpy.linalg.norm(h)))


def test_shape_of_a_symmetric_h_is_its_eigenvalues() -> None:
    v, _ = numpy.linalg.qr(numpy.random.default_rng(1).standard_normal((6, 6)))
    found = shape_of(as_heads(v, numpy.diag([-0.9, -0.7, -0.5, -0.4, -0.2, -0.1]) @ v.T, heads=3))
    assert (found["symmetric"], found["norm"], found["condition"]) == pytest.approx((-0.1, 0.9, 1.0))
    assert found["asymmetry"] < 1e-12


def test_a_singular_basis_has_a_condition_that_can_be_written_down() -> None:
    assert shape_of(as_heads(numpy.diag([1.0, 0.0]), numpy.eye(2), heads=1))["condition"] == pytest.approx(1e12)


def test_the_bases_differ_in_nothing_else() -> None:
    configs = STUDIES["bases"].configs(Bench(scale="full"))
    assert {name: config.remedies for name, config in configs.items()} == {
        "plain": (),
        "gram": ("sharpen(basis=gram, eigenvalues=rescale)",),
        "orthogonal": ("sharpen(basis=orthogonal)",),
        "general": ("sharpen(basis=general)",),
    }
    assert {config.epochs for config in configs.values()} == {30}
    assert len({(config.network, config.optimiser, config.schedule, config.data) for config in configs.values()}) == 1
