"""What is gathered over batches, orders and processes is what the plain functions say of all at once."""

from __future__ import annotations

import itertools
import math
import pickle
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from torch import Tensor

from unsmooth import functional as uf
from unsmooth.functional import Tokens, parse_metric
from unsmooth.scanning.gathering import Gathering, MapSums, Seen, gatherings_for, words
from unsmooth.scanning.statistics import Place

PLACES = (Place(0, "residual"), Place(1, "residual"), Place(2, "residual"))
DIM, WIDTH, TEXTS = 6, 9, 40


def corpus(count: int = TEXTS, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Ids, mask, and vectors (layers, texts, tokens, dim) with NaN at padding; ids of few words, so that they recur."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(0, 12, (count, WIDTH), generator=generator)
    lengths = torch.randint(2, WIDTH + 1, (count, 1), generator=generator)
    mask = torch.arange(WIDTH) < lengths
    x = torch.randn(len(PLACES), count, WIDTH, DIM, generator=generator) + 0.4
    return ids, mask, torch.where(mask.unsqueeze(-1), x, torch.nan)


def gather(gathering: Gathering, ids: Tensor, mask: Tensor, x: Tensor, batches: Sequence[Tensor]) -> Gathering:
    """Read the texts in these batches."""
    for rows in batches:
        gathering.begin()
        for place, layer in zip(PLACES, x, strict=True):
            gathering.see(Seen(place, Tokens(layer[rows], mask[rows]), ids[rows]))
        gathering.end()
    return gathering


def made(*names: str) -> Gathering:
    (gathering,) = gatherings_for([parse_metric(name) for name in names])
    return gathering


WORD_METRICS = ("self_similarity(contexts=3)", "maximum_explainable_variance(contexts=3)")
ORDER = torch.randperm(TEXTS, generator=torch.Generator().manual_seed(9))
BATCHINGS = {
    "one batch": [torch.arange(TEXTS)],
    "one by one": list(torch.arange(TEXTS).split(1)),
    "another order": list(ORDER.split(7)),
}


@pytest.mark.parametrize("batches", BATCHINGS.values(), ids=BATCHINGS)
@pytest.mark.parametrize("name", WORD_METRICS)
def test_a_sample_with_room_for_all_is_the_function_of_all(name: str, batches: list[Tensor]) -> None:
    ids, mask, x = corpus()
    metric = parse_metric(name)
    gathered = gather(made(*WORD_METRICS), ids, mask, x, batches)
    for place, layer in zip(PLACES, x, strict=True):
        values = metric.metric.function(layer, ids, mask, **metric.options)
        summary = gathered.summary(metric, place)
        assert summary is not None
        assert summary.sequences == len(values) > 5
        assert summary.mean == pytest.approx(values.mean().item(), abs=1e-9)
        assert summary.std == pytest.approx(values.std().item(), abs=1e-9)
    ends = [metric.metric.function(x[index], ids, mask, **metric.options) for index in (0, -1)]
    change = gathered.change(metric, PLACES[0], PLACES[-1])
    assert change is not None
    assert change.mean == pytest.approx((ends[1] - ends[0]).mean().item(), abs=1e-9)
    assert change.std == pytest.approx((ends[1] - ends[0]).std().item(), abs=1e-9)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(words, "MOST_OCCURRENCES", 30)
    monkeypatch.setattr(words, "MOST_CONTEXTS", 6)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("name", WORD_METRICS)
def test_a_full_sample_depends_on_neither_order_nor_batches_nor_processes(name: str) -> None:
    ids, mask, x = corpus()
    metric = parse_metric(name)
    ways = [gather(made(*WORD_METRICS), ids, mask, x, batches) for batches in BATCHINGS.values()]
    parts = [gather(made(*WORD_METRICS), ids, mask, x, [rows]) for rows in ORDER.split(13)]
    states = [pickle.loads(pickle.dumps(part.state())) for part in parts]
    together = made(*WORD_METRICS)
    together.merge([*states, made(*WORD_METRICS).state()])
    for place in PLACES:
        found = [gathered.summary(metric, place) for gathered in [*ways, together]]
        assert all(one is not None and one.sequences > 2 for one in found)
        assert len({(one.mean, one.std, one.sequences) for one in found if one}) == 1


@pytest.mark.usefixtures("small")
def test_a_full_sample_holds_whole_words_and_no_more_than_it_may() -> None:
    ids, mask, x = corpus(300)
    gathered = gather(made("self_similarity"), ids, mask, x, list(torch.arange(300).split(10)))
    found_words, contexts, vectors = gathered.state()
    assert len(found_words) <= 30
    assert torch.bincount(found_words).max() == 6
    assert len(torch.stack([found_words, contexts]).unique(dim=1).T) == len(found_words)
    # Each vector is one that the word has in a text, and the same text at every place.
    for index, word in enumerate(found_words.tolist()):
        text = next(row for row in range(300) if (x[0, row] == vectors[PLACES[0]][index]).all(dim=-1).any())
        column = ids[text, mask[text]].tolist().index(word)
        for place, layer in zip(PLACES, x, strict=True):
            assert torch.equal(vectors[place][index], layer[text, column])


def test_room_is_used_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(words, "MOST_OCCURRENCES", 30)
    ids, mask, x = corpus(2000)
    gathered = gather(made("self_similarity"), ids, mask, x, list(torch.arange(2000).split(50)))
    assert all(len(rows) <= 4 * 30 for rows in gathered._vectors.values())  # type: ignore[attr-defined]


def test_an_unfinished_batch_does_not_count() -> None:
    ids, mask, x = corpus()
    for names in (WORD_METRICS, ("random_pair_cosine",)):
        gathered = gather(made(*names), ids, mask, x, [torch.arange(20)])
        metric = gathered.metrics[0]
        before = gathered.summary(metric, PLACES[0])
        gathered.begin()
        gathered.see(Seen(PLACES[0], Tokens(x[0], mask), ids))
        gathered.begin()
        assert gathered.summary(metric, PLACES[0]) == before


@pytest.mark.parametrize("batches", BATCHINGS.values(), ids=BATCHINGS)
def test_random_pairs_over_batches(batches: list[Tensor]) -> None:
    ids, mask, x = corpus()
    x[1, 3, 0] = torch.nan  # a text that is left out of this layer
    mask[7] = torch.arange(WIDTH) < 1  # and one of a single token, left out everywhere
    gathered = gather(made("random_pair_cosine"), ids, mask, x, batches)
    metric = parse_metric("random_pair_cosine")
    for place, layer in zip(PLACES, x, strict=True):
        keep = [row for row in range(TEXTS) if row != 7 and not (row == 3 and place.layer == 1)]
        summary = gathered.summary(metric, place)
        assert summary is not None
        assert summary.sequences == len(keep)
        assert summary.mean == pytest.approx(uf.random_pair_cosine(layer[keep], mask[keep]).item(), abs=1e-6)
        assert math.isnan(summary.std)


@pytest.mark.parametrize("batches", BATCHINGS.values(), ids=BATCHINGS)
def test_histograms_are_means_of_those_of_sequences(batches: list[Tensor]) -> None:
    ids, mask, x = corpus()
    gathered = gather(made("cosine_quantile(q=0.9, absolute=True)"), ids, mask, x, batches)
    (profile,) = gathered.profiles()
    assert (profile.metric, profile.site, profile.axis) == (
        "cosine_quantile(absolute=True, q=0.9)",
        "residual",
        "cosine",
    )
    for line, layer in zip(profile.lines, x, strict=True):
        want = uf.cosine_histogram(layer, mask, absolute=True).double().mean(dim=0)
        np.testing.assert_allclose(line.values, want.numpy(), atol=1e-6)
        assert sum(line.values) == pytest.approx(1.0)
        assert line.at[:2] == pytest.approx((-0.975, -0.925))
        assert line.sequences == TEXTS
    assert profile.to_frame().shape == (3 * 40, 3)


@pytest.mark.parametrize("batches", BATCHINGS.values(), ids=BATCHINGS)
def test_every_two_layers_are_compared(batches: list[Tensor]) -> None:
    ids, mask, x = corpus()
    x[2] += 2.0 * x[0]
    gathered = gather(made("linear_cka"), ids, mask, x, batches)
    (profile,) = gathered.profiles()
    matrix = np.array([line.values for line in profile.lines])
    assert [line.at for line in profile.lines] == [(0.0, 1.0, 2.0)] * 3
    for one, other in itertools.product(range(3), repeat=2):
        want = uf.linear_cka(x[one], x[other], mask).double().mean().item()
        assert matrix[one, other] == pytest.approx(want, abs=1e-5)
    assert matrix[0, 2] > matrix[0, 1] + 0.1


def test_layers_of_different_stages_are_not_compared() -> None:
    """Of both only 256 tokens are kept, but of other grids."""
    gathered = made("linear_cka")
    gathered.begin()
    for layer, (stage, count) in enumerate([(0, 1024), (0, 1024), (1, 512)]):
        tokens = Tokens(torch.randn(1, count, 4, generator=torch.Generator().manual_seed(layer)))
        gathered.see(Seen(Place(layer, "residual", stage), tokens))
    gathered.end()
    (profile,) = gathered.profiles()
    matrix = np.array([line.values for line in profile.lines])
    assert np.isnan(matrix[:2, 2]).all()
    assert np.isnan(matrix[2, :2]).all()
    assert np.isfinite(matrix[:2, :2]).all()


def test_sums_add_up_over_processes() -> None:
    ids, mask, x = corpus()
    for name in ("random_pair_cosine", "cosine_quantile", "linear_cka"):
        alone = gather(made(name), ids, mask, x, [torch.arange(TEXTS)])
        parts = [gather(made(name), ids, mask, x, [rows]) for rows in torch.arange(TEXTS).split(17)]
        together = made(name)
        together.merge([pickle.loads(pickle.dumps(part.state())) for part in [*parts, made(name)]])
        for one, two in zip(alone.profiles(), together.profiles(), strict=True):
            np.testing.assert_allclose(one.to_frame().to_numpy(), two.to_frame().to_numpy(), atol=1e-9)
        one, two = (gathered.summary(alone.metrics[0], PLACES[1]) for gathered in (alone, together))
        assert (one is None) == (two is None)
        assert one is None or two is None or one.mean == pytest.approx(two.mean, abs=1e-12)


def test_maps_are_measured_without_padding_and_changes_are_paired() -> None:
    gathered = MapSums([parse_metric("head_similarity"), parse_metric("attention_sink")])
    generator = torch.Generator().manual_seed(0)
    first, last = [], []
    for _ in range(3):
        real = torch.arange(5) < torch.tensor([[5], [3], [1]])
        gathered.begin()
        for layer, kept in ((1, first), (2, last)):
            logits = torch.randn(3, 2, 5, 5, generator=generator).masked_fill(~real[:, None, None, :], -torch.inf)
            maps = logits.softmax(dim=-1)
            gathered.see_maps(layer, maps, real)
            # The third sequence has one token and is left out.
            kept += [uf.head_similarity(maps[:1]).item(), uf.head_similarity(maps[1:2, :, :3, :3]).item()]
        gathered.end()
    metric = parse_metric("head_similarity")
    for place, values in zip(gathered.places, (first, last), strict=True):
        summary = gathered.summary(metric, place)
        assert summary is not None
        assert (place.site, summary.sequences) == ("maps", 6)
        assert summary.mean == pytest.approx(np.mean(values), abs=1e-6)
    change = gathered.change(metric, *gathered.places)
    assert change is not None
    assert change.std == pytest.approx(np.std(np.subtract(last, first), ddof=1), abs=1e-6)
