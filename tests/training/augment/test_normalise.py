from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.training.augment.pictures import pictures
from unsmooth.errors import UnsmoothError
from unsmooth.training.augment import Normalise


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.bfloat16, 2e-2)])
def test_against_numpy(dtype, tolerance):
    images, mean, std = pictures()[:6], (0.5, 0.4, 0.3), (0.2, 0.25, 0.3)
    got = Normalise(mean, std, dtype)(torch.from_numpy(images))
    wanted = (images / 255.0 - np.reshape(mean, (3, 1, 1))) / np.reshape(std, (3, 1, 1))
    assert got.dtype == dtype
    np.testing.assert_allclose(got.double().numpy(), wanted, atol=tolerance)


def test_a_spread_of_zero_is_refused():
    with pytest.raises(UnsmoothError, match="positive std"):
        Normalise((0.5,), (0.0,))
