"""The same images on a GPU, alone and in a CUDA graph; skipped, and said so, where there is none."""

from __future__ import annotations

import pytest
import torch

from tests.training.augment.test_pipeline import EVERYTHING, UNMIXED, batch
from unsmooth import keyed
from unsmooth.training.augment import Augment, RandAugment

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device on this machine"),
]


def test_operations_give_what_they_give_on_the_cpu():
    images, _, _, _ = batch()
    policy = RandAugment.parse("rand-m9-n2-mstd1.0-p1.0")
    for start in range(10):
        keys = keyed.keys(start, torch.arange(len(images)))
        there = policy.cuda()(images.cuda(), keys.cuda()).cpu()
        difference = (there.int() - policy.cpu()(images, keys).int()).abs()
        # Cosines may differ in the last bit, and magnitudes with the device's erfinv.
        assert (difference > 0).double().mean() < 1e-3


@pytest.mark.parametrize("config", [EVERYTHING, UNMIXED])
def test_a_captured_graph_gives_what_the_call_gives(config):
    given = [part.cuda() for part in batch()]
    augment = Augment(config).cuda()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        augment(*given)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = augment(*given)
    given[2] += 1
    graph.replay()
    for got, wanted in zip(captured, augment(*given), strict=True):
        assert torch.equal(got, wanted)
