"""What a look gives a GPU to do. Tensors without content stand for those of a GPU: they refuse to tell numbers."""

from __future__ import annotations

import pytest
import torch
from benchmarks.monitor_cost import Work

from unsmooth import Monitor
from unsmooth.functional import parse_metric
from unsmooth.monitor.probe import Probe
from unsmooth.networks import ViT, ViTConfig

# Copies of the layers are measured so many at a time, by so many kernels, some of which take a token's distance from
# another so that its digits stay; today it is 22 of them.
LAYERS_AT_ONCE, EACH_TIME = 5, 22
# Metrics of all layers, and the buffers of the model, out and back; today 49.
ONCE = 50


def vit(depth: int) -> tuple[ViT, torch.Tensor]:
    """ViT-Ti, and the sixteen images of 257 tokens that a look takes of a batch."""
    model = ViT(ViTConfig(image=32, patch=2, depth=depth, classes=10)).to("meta").train()
    return model, torch.empty(16, 3, 32, 32, device="meta")


def work_of_a_look(depth: int) -> tuple[Work, Work]:
    """Of a look, and of the pass alone."""
    model, images = vit(depth)
    with Work("meta"), Monitor(model, every=1, probe=images, sinks=(), strict=True) as monitor:
        with Work("meta") as look:
            assert monitor.step() is not None
        with Work("meta") as alone, torch.no_grad():
            model(images)
    return look, alone


def test_a_look_is_a_pass_and_a_few_kernels_more() -> None:
    look, alone = work_of_a_look(depth=12)
    layers = 13
    measured = EACH_TIME * -(-layers // LAYERS_AT_ONCE)
    assert layers < look.launches - alone.launches <= layers + measured + ONCE


def test_a_layer_more_costs_its_pass_and_little_else() -> None:
    (few, few_alone), (many, many_alone) = work_of_a_look(depth=6), work_of_a_look(depth=26)
    added = (many.launches - many_alone.launches) - (few.launches - few_alone.launches)
    assert 20 <= added <= 20 * (1 + EACH_TIME / LAYERS_AT_ONCE)


@pytest.mark.parametrize("depth", [1, 12])
def test_the_device_is_waited_for_once(depth: int) -> None:
    assert work_of_a_look(depth)[0].waits == 1


def test_the_pass_itself_waits_for_nothing() -> None:
    model, images = vit(depth=2)
    probe = Probe(model, [parse_metric("mean_cosine")], ("residual",))
    with Work("meta") as work:
        probe(images)
    assert work.waits == 0
    assert work.launches > 0


def test_a_question_to_the_device_is_counted() -> None:
    with Work("cpu") as work:
        x = torch.arange(4.0)
        assert float(x[1:].sum()) == 6.0
    assert (work.launches, work.waits) == (3, 1)
