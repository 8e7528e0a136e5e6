"""Massive tokens and outlier dimensions, against cosines of arrays with rows and columns deleted."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import unsmooth
from tests.scanning.test_numbers import mean_cosine_by_loop
from unsmooth.functional import Tokens, _blocks
from unsmooth.functional._blocks import Workspace, blocks, measure
from unsmooth.models import load
from unsmooth.scanning import collect
from unsmooth.scanning.confounds import ConfoundBatch, find_confounds, join_confounds


def crafted() -> torch.Tensor:
    """Three sequences: a massive token at position 0, an outlier dimension 3, and both."""
    torch.manual_seed(0)
    x = torch.randn(3, 9, 16)
    x[0, 0] *= 40.0
    x[1, :, 3] += 30.0
    x[2, 0] *= 40.0
    x[2, :, 3] += 30.0
    return x


def confounds_of(tokens: Tokens) -> ConfoundBatch:
    found, sums, counts = [], [], []
    for block in blocks(tokens, Workspace()):
        sums.append(measure(block))
        found.append(find_confounds(block, sums[-1]))
        counts.append(block.count_B)
    return join_confounds(found, sums, counts)


def test_cosines_without_what_stands_out():
    x = crafted()
    found = confounds_of(Tokens(x))
    arrays = [row.double().numpy() for row in x]
    assert found.massive_BN[0].nonzero().flatten().tolist() == [0]
    assert not found.massive_BN[1].any()
    assert found.outlier_BD[1].nonzero().flatten().tolist() == [3]
    plain = [mean_cosine_by_loop(array) for array in arrays]
    assert found.cosines_CB[0].tolist() == pytest.approx(plain, abs=1e-5)
    no_token = mean_cosine_by_loop(np.delete(arrays[0], 0, axis=0))
    assert float(found.cosines_CB[1, 0]) == pytest.approx(no_token, abs=1e-5)
    no_dimension = mean_cosine_by_loop(np.delete(arrays[1], 3, axis=1))
    assert float(found.cosines_CB[2, 1]) == pytest.approx(no_dimension, abs=1e-5)
    massive, outlier = (mask[2].nonzero().flatten().tolist() for mask in (found.massive_BN, found.outlier_BD))
    neither = mean_cosine_by_loop(np.delete(np.delete(arrays[2], massive, axis=0), outlier, axis=1))
    assert float(found.cosines_CB[3, 2]) == pytest.approx(neither, abs=1e-5)


@pytest.mark.parametrize("shift", [8.0, 30.0, 3000.0])
def test_cosine_without_outlier_dimensions_however_large(shift):
    x = torch.randn(2, 12, 16, generator=torch.Generator().manual_seed(1))
    x[:, :, 3] += shift
    x[1, :, 5] -= shift
    found = confounds_of(Tokens(x))
    for sequence, dimensions in enumerate(([3], [3, 5])):
        assert found.outlier_BD[sequence].nonzero().flatten().tolist() == dimensions
        without = mean_cosine_by_loop(np.delete(x[sequence].double().numpy(), dimensions, axis=1))
        assert float(found.cosines_CB[2, sequence]) == pytest.approx(without, abs=1e-5)


def test_padding_is_neither_massive_nor_median():
    x = crafted()
    mask = torch.ones(3, 12, dtype=torch.bool)
    mask[:, :3] = False
    padded = torch.cat([torch.full((3, 3, 16), 1e6), x], dim=1)
    one, two = confounds_of(Tokens(x)), confounds_of(Tokens(padded, mask))
    torch.testing.assert_close(one.cosines_CB, two.cosines_CB, atol=1e-5, rtol=0)
    assert torch.equal(two.massive_BN[:, 3:], one.massive_BN)
    assert not two.massive_BN[:, :3].any()


def test_ordinary_tokens_have_nothing_that_stands_out():
    found = confounds_of(Tokens(torch.randn(4, 50, 32, generator=torch.Generator().manual_seed(0))))
    assert (found.cosines_CB, found.massive_BN, found.outlier_BD) == (None, None, None)


def test_zero_tokens_do_not_stand_out_among_zeros():
    found = confounds_of(Tokens(torch.zeros(2, 6, 4)))
    assert (found.massive_BN, found.outlier_BD) == (None, None)


def test_blocks_in_which_nothing_stands_out_are_joined_with_others(monkeypatch):
    x = torch.randn(4, 9, 16, generator=torch.Generator().manual_seed(3))
    x[2, 0] *= 40.0
    x[3, :, 3] += 30.0
    whole = confounds_of(Tokens(x))
    monkeypatch.setattr(_blocks, "_BLOCK", 9 * 16)
    parts = confounds_of(Tokens(x))
    torch.testing.assert_close(parts.cosines_CB, whole.cosines_CB)
    assert torch.equal(parts.massive_BN, whole.massive_BN)
    assert torch.equal(parts.outlier_BD, whole.outlier_BD)
    assert whole.massive_BN.sum(dim=1).tolist() == [0, 0, 1, 0]


def test_the_scan_names_position_and_dimension():
    x = crafted()[:2].repeat(4, 1, 1)
    found = unsmooth.scan(nn.Sequential(nn.Identity()), x, blocks="*", progress=False)
    layer = found.confounds[0]
    assert [(token.position, token.share) for token in layer.massive_tokens] == [(0, 0.5)]
    assert [(entry.dimension, entry.share) for entry in layer.outlier_dimensions] == [(3, 0.5)]
    assert layer.mean_cosine == pytest.approx(found.curve()[0].mean, abs=1e-6)
    assert layer.without_both < layer.mean_cosine


def test_what_stands_out_is_not_looked_for_where_nobody_asks(monkeypatch):
    x, model = crafted(), nn.Sequential(nn.Identity(), nn.Identity())
    whole = unsmooth.scan(model, x, blocks="*", progress=False)
    monkeypatch.setattr(collect, "find_confounds", None)
    found = unsmooth.scan(model, x, blocks="*", confounds=False, progress=False)
    assert found.confounds == ()
    assert found.rows == whole.rows
    assert found.changes == whole.changes


def test_the_scan_names_the_token_in_words_and_counts_positions_from_the_first_real_one(bert_folder):
    model = load(str(bert_folder))
    tokenizer = model.unsmooth_origin.tokenizer
    cat = tokenizer.convert_tokens_to_ids("cat")
    with torch.no_grad():
        model.embeddings.LayerNorm.weight.fill_(1.0)
    embed = model.embeddings.register_forward_hook(lambda module, args, output: _blow_up(args, output, cat))
    tokenizer.padding_side = "left"
    try:
        found = unsmooth.scan(model, ["a cat sat on the mat", "a cat saw one dog run past rain"], progress=False)
    finally:
        embed.remove()
        tokenizer.padding_side = "right"
    named = found.confounds[0].massive_tokens
    assert [(token.position, token.share) for token in named if token.text is None] == [(2, 1.0)]
    assert [token.text for token in named if token.text is not None] == ["cat"]


def _blow_up(args: tuple[torch.Tensor, ...], output: torch.Tensor, token: int) -> torch.Tensor:
    ids = _blow_up.ids  # type: ignore[attr-defined]
    return torch.where((ids == token).unsqueeze(-1), output * 50, output)


@pytest.fixture(autouse=True)
def _remember_ids(monkeypatch):
    """BERT's embedding hook sees keywords only, so its ids are noted on the way in."""
    from transformers.models.bert.modeling_bert import BertEmbeddings

    original = BertEmbeddings.forward

    def forward(self, input_ids=None, **kwargs):
        _blow_up.ids = input_ids  # type: ignore[attr-defined]
        return original(self, input_ids=input_ids, **kwargs)

    monkeypatch.setattr(BertEmbeddings, "forward", forward)
