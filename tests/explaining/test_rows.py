"""Several images in one row: what is said of them is what is said of each alone."""

from __future__ import annotations

import torch

from tests.remedies.test_rows import SIDES, images, tower
from unsmooth import explain


def test_numbers_are_the_mean_over_the_images_alone() -> None:
    model, batch, start, alone = tower(), images(*SIDES), 0, []
    together = explain(model, [batch], progress=False)
    for side in SIDES:
        own = slice(start, start + side[0] * side[1])
        one = {"hidden_states": batch["hidden_states"][own], "grid_thw": torch.tensor([[1, *side]])}
        alone.append(explain(model, [one], progress=False))
        start = own.stop
    assert not together.notes
    for layer, found in enumerate(together.layers):
        assert found.rebuilt is not None
        assert found.rebuilt < 1e-5
        assert found.gains is not None
        each = [one.layers[layer] for one in alone]
        for name in ("similarity_after", "cosine_after", "logit_change", "escalation"):
            mean = torch.tensor([getattr(one, name) for one in each]).mean()
            torch.testing.assert_close(torch.tensor(getattr(found, name)), mean, atol=1e-4, rtol=1e-4)
        assert found.predicted.keys() == each[0].predicted.keys() >= {"T3", "T4"}
        mean = torch.tensor([one.gains.mean for one in each if one.gains is not None]).mean()
        torch.testing.assert_close(
            torch.tensor(found.gains.mean), mean, atol=0.1, rtol=0.0
        )  # by iteration, from any start
