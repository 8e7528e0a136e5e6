"""What torch.compile has compiled for one model must not be run in place of another that only its hooks tell apart."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch

import unsmooth
from tests.remedies.hosts import BY_NAME


def outputs(model, host):
    return host.output(model, host.call(host.inputs()))


@pytest.fixture
def compiled():
    torch._dynamo.reset()
    yield lambda model: torch.compile(model, backend="eager", fullgraph=True)
    torch._dynamo.reset()


def test_a_remedied_model_is_not_run_as_its_compiled_plain_twin(compiled):
    host = BY_NAME["vit"]
    plain = host.model()
    models = [
        plain,
        unsmooth.apply(host.model(), "deescalate", tau=0.5),
        unsmooth.apply(host.model(), "deescalate", tau=1.0),
        unsmooth.apply(host.model(), "deescalate", tau=1.0, layers=[0]),
        unsmooth.apply(unsmooth.apply(host.model(), "deescalate", tau=1.0), "residual_scaling"),
    ]
    with torch.no_grad():
        wanted = [outputs(model, host) for model in models]
        for model, right in zip(models, wanted, strict=True):
            torch.testing.assert_close(outputs(compiled(model), host), right)
        for index, one in enumerate(wanted):
            assert all(not torch.allclose(one, other, atol=1e-3) for other in wanted[:index])
        torch.testing.assert_close(outputs(compiled(unsmooth.undo(models[1])), host), wanted[0])


def test_blocks_with_other_edits_do_not_share_what_is_compiled(compiled):
    host = BY_NAME["vit"]
    model = unsmooth.apply(host.model(), "neutreno", lam=0.4, learn="layer")  # the first block has nothing to learn
    wanted = outputs(model, host)
    for layer in model.layers:
        layer.compile(backend="eager")
    torch.testing.assert_close(outputs(model, host), wanted)


def test_copies_and_pickles_keep_the_mark():
    host = BY_NAME["bert"]
    model = unsmooth.apply(host.model(), "deescalate")
    kind = type(model.encoder.layer[0])
    assert kind is type(model.encoder.layer[1])
    assert kind is not type(host.model().encoder.layer[0])
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert type(twin.encoder.layer[0]) is kind
        torch.testing.assert_close(outputs(twin, host), outputs(model, host))
    assert type(unsmooth.undo(model).encoder.layer[0]) is type(host.model().encoder.layer[0])
