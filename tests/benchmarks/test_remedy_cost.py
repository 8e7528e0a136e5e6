from __future__ import annotations

import pytest
from benchmarks.remedy_cost import CPU, LEFT_OUT, POST_NORM, VARIANTS, Variant, make_model

import unsmooth
from unsmooth.remedies import names


def test_every_remedy_is_timed() -> None:
    timed = {variant.name for variant in (*VARIANTS, *POST_NORM)}
    assert timed.isdisjoint(LEFT_OUT)
    assert sorted(timed | set(LEFT_OUT)) == names()


@pytest.mark.parametrize(
    ("norm", "variant"),
    [("pre-norm", variant) for variant in VARIANTS] + [("post-norm", variant) for variant in POST_NORM],
    ids=lambda one: one if isinstance(one, str) else one.label,
)
def test_the_model_that_is_timed_can_have_it(norm: str, variant: Variant) -> None:
    unsmooth.apply(make_model(CPU, norm, "cpu"), variant.name, **variant.options)
