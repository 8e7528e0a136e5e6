"""The numbers are those of independent hooks on the batch, in float64 numpy."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.monitor.training import BATCH, DIM, TOKENS, make, train
from unsmooth import Monitor


def mean_cosine(x_ND: np.ndarray) -> float:
    unit = x_ND / np.linalg.norm(x_ND, axis=1, keepdims=True)
    cosines = unit @ unit.T
    return float(cosines[~np.eye(len(x_ND), dtype=bool)].mean())


def seen_by_hooks(layers, call):
    """What enters the first layer and leaves each."""
    found = []
    handles = [layers[0].register_forward_pre_hook(lambda module, args: found.append(args[0]))]
    handles += [layer.register_forward_hook(lambda module, args, out: found.append(out)) for layer in layers]
    call()
    for handle in handles:
        handle.remove()
    return [(one[0] if isinstance(one, tuple) else one).detach().double().numpy() for one in found]


def test_a_given_batch_in_evaluation_mode():
    model, batch = make(), torch.randn(3, TOKENS, DIM)
    with Monitor(model, every=100, probe=batch, sinks=(), metrics=["mean_cosine"]) as monitor:
        found = [row.mean for row in monitor.last.curve()]
    model.eval()
    with torch.no_grad():
        seen = seen_by_hooks(model.encoder.layers, lambda: model(batch))
    np.testing.assert_allclose(found, [np.mean([mean_cosine(x) for x in layer]) for layer in seen], atol=1e-6)


def test_the_first_batch_stays_the_batch_and_a_quarter_of_it_is_read():
    model, first = make(), []
    handle = model.register_forward_pre_hook(lambda module, args: first.append(args[0].clone()))
    with Monitor(model, every=3, sinks=(), metrics=["mean_cosine"]) as monitor:
        train(model, monitor)
    handle.remove()
    model.eval()
    with torch.no_grad():
        seen = seen_by_hooks(model.encoder.layers, lambda: model(first[0][: BATCH // 4]))
    expected = [np.mean([mean_cosine(x) for x in layer]) for layer in seen]
    assert monitor.last.step == 6
    assert monitor.last.rows[0].sequences == BATCH // 4
    np.testing.assert_allclose([row.mean for row in monitor.last.curve()], expected, atol=1e-6)


def test_training_passes_are_read_with_their_dropout_on_the_whole_batch():
    model, batch = make().train(), torch.randn(BATCH, TOKENS, DIM)
    monitor = Monitor(model, every=1, probe=None, sinks=(), metrics=["mean_cosine"])
    monitor.begin()
    seen = seen_by_hooks(model.encoder.layers, lambda: model(batch))
    monitor.step()
    monitor.close()
    expected = [np.mean([mean_cosine(x) for x in layer]) for layer in seen]
    np.testing.assert_allclose([row.mean for row in monitor.last.curve()], expected, atol=1e-6)
    assert monitor.last.rows[0].sequences == BATCH


@pytest.mark.parametrize("probe", ["first", None], ids=["probe", "training passes"])
@pytest.mark.parametrize("tokens", ["content", "all"])
def test_padding_and_special_tokens_of_a_hugging_face_model_with_a_head(bert_folder, probe, tokens):
    from transformers import BertForMaskedLM

    model = BertForMaskedLM.from_pretrained(bert_folder, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    model.train()
    model.config.cls_token_id = 2
    ids = torch.randint(5, 20, (8, 9))
    mask = torch.ones_like(ids)
    mask[:, 6:] = 0
    ids[:, 0] = 2
    monitor = Monitor(model, every=1, probe=probe, sinks=(), metrics=["mean_cosine"], sequences=8, tokens=tokens)
    monitor.begin()
    seen = seen_by_hooks(
        model.bert.encoder.layer, lambda: model(input_ids=ids, attention_mask=mask, labels=ids).loss.backward()
    )
    monitor.step()
    monitor.close()
    measured = slice(1 if tokens == "content" else 0, 6)
    expected = [np.mean([mean_cosine(x[measured]) for x in layer]) for layer in seen]
    np.testing.assert_allclose([row.mean for row in monitor.last.curve()], expected, atol=1e-5)


def test_a_model_that_has_tokens_first():
    layer = torch.nn.TransformerEncoderLayer(DIM, 2, 32, dropout=0.0)
    model, batch = torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).train(), torch.randn(12, 3, DIM)
    with Monitor(model, every=1, sinks=(), metrics=["mean_cosine"]) as monitor:
        seen = seen_by_hooks(model.layers, lambda: model(batch))
        monitor.step()
    expected = [np.mean([mean_cosine(x[:, one]) for one in range(3)]) for x in seen]
    np.testing.assert_allclose([row.mean for row in monitor.last.curve()], expected, atol=1e-6)


def test_a_first_step_begins_the_watching_and_a_closed_monitor_stays_closed():
    model = make()
    monitor = Monitor(model, every=3, probe=torch.randn(3, TOKENS, DIM), sinks=(), metrics=["mean_cosine"])
    train(model, monitor)
    assert monitor.last.step == 6
    monitor.close()
    assert monitor.step(9) is None
    assert monitor.last.step == 6


def test_every_site_is_asked_for_by_one_word(tmp_path):
    model, batch = make(), torch.randn(3, TOKENS, DIM)
    with Monitor(model, every=100, probe=batch, out=tmp_path, metrics=["mean_cosine"], sites="all") as monitor:
        pass
    assert set(monitor.last.sites) == {"residual", "normed", "attention", "mid", "mlp"}
    assert set(monitor.last.sites) == set(monitor._probe.stacks[0].sites)
