"""What is wrong is told in one line; losses as text."""

from __future__ import annotations

import pytest
import torch

from unsmooth import losses
from unsmooth.errors import UnsmoothError

X = torch.ones(2, 4, 3)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: losses.cosine(torch.ones(2, 1, 3)), "at least 2 tokens to compare but got 1 in each sequence"),
        (lambda: losses.laplacian(torch.ones(1, 3)), "at least 2 tokens to compare"),
        (lambda: losses.cosine(X, torch.ones(2, 4)), "a boolean `mask`"),
        (lambda: losses.cosine(X.long()), "`hidden_BND` of a floating type"),
        (lambda: losses.simcse(X, other_BND=X.long()), r"`other_BND` of a floating type but got torch\.int64"),
        (lambda: losses.layer_contrast(X, first_BND=X.long()), "`first_BND` of a floating type"),
        (lambda: losses.cosine(torch.ones(3)), r"shape \(batch, tokens, dim\)"),
        (lambda: losses.simcse(X[:1], other_BND=X[:1]), "at least two sequences to compare but got 1"),
        (lambda: losses.duorec(X[:1], other_BND=X[:1]), "at least two sequences to compare but got 1"),
        (lambda: losses.simcse(X[0], other_BND=X[0]), r"\(4, 3\)\. Try z\.unsqueeze\(1\) for one vector"),
        (
            lambda: losses.duorec(X, torch.ones(2, 4).bool(), other_BND=[1]),
            r"shape \(batch, tokens, dim\) but got list",
        ),
        (lambda: losses.cosine(X, [[True] * 4] * 2), "a boolean `mask`.* but got list"),
        (lambda: losses.cosine(X[0], [True] * 4), "a boolean `mask`.* but got list"),
        (lambda: losses.simcse(X, other_BND=None), r"`other_BND` of shape \(batch, tokens, dim\) but got NoneType"),
        (lambda: losses.cosine((X, X)), r"but got tuple\. Try hidden_states\[-1\]"),
        (lambda: losses.cosine({"last_hidden_state": X}), r"but got dict\. Try hidden_states\[-1\]"),
        (lambda: losses.cosine(X[None]), r"but got \(1, 2, 4, 3\)\. Try hidden_states\[-1\]"),
        (lambda: losses.cosine(X.numpy()), r"but got ndarray\. Try torch\.from_numpy"),
        (lambda: losses.dispersion(X, form=None), "form as one of l2, cosine, hinge, covariance but got None"),
        (lambda: losses.simcse(X, other_BND=X[..., :2]), "the same"),
        (
            lambda: losses.duorec(X, torch.ones(2, 4).bool(), other_BND=X[:, :3]),
            "`other_mask_BN`, as views of 4 and 3 tokens have no mask in common but got none",
        ),
        (
            lambda: losses.simcse(X, torch.ones(2, 4).bool(), other_BND=X[:, :3]),
            "`other_mask_BN`, as views of 4 and 3 tokens have no mask in common but got none",
        ),
        (lambda: losses.simcse(X, torch.ones(2, 4).bool(), other_BND=X[:1]), r"the same \(batch, dim\) = \(2, 3\)"),
        (lambda: losses.simcse(X, other_BND=X, pooling="max"), "pooling as one of first, last, mean but got 'max'"),
        (lambda: losses.simcse(X, other_BND=X, temperature=0.0), "temperature above 0"),
        (lambda: losses.duorec(X, other_BND=X, similarity="l2"), "similarity as one of dot, cosine"),
        (lambda: losses.layer_contrast(X, first_BND=X[:, :3]), "two layers of one pass"),
        (lambda: losses.layer_contrast(X[:, :3], first_BND=X[:, :3], neighbourhood=3), "a square image"),
        (lambda: losses.layer_contrast(X, first_BND=X, neighbourhood=4), "an odd number"),
        (lambda: losses.spectrum(X, decay="linear"), "decay as one of exponential, polynomial"),
        (
            lambda: losses.layer_contrast(X, first_BND=X, neighbourhood=3.5),
            "neighbourhood as a whole number but got 3.5",
        ),
        (lambda: losses.spectrum(X, rate=-1.0), "rate of at least 0"),
        (lambda: losses.spectrum(X, rate=float("nan")), "rate of at least 0"),
        (lambda: losses.dispersion(X, temperature="warm"), "temperature above 0.0 but got 'warm'"),
        (
            lambda: losses.control_spectrum(torch.nn.Linear(3, 2), scale="large"),
            "scale above 0.0, or None but got 'large'",
        ),
        (lambda: losses.dispersion(X, form="l1"), "form as one of .* but got 'l1'. Try form='l2'"),
        (lambda: losses.dispersion(X, of="images"), "of as one of tokens, sequences, means"),
        (lambda: losses.dispersion(X[:1], of="means"), "at least two sequences"),
        (lambda: losses.dispersion(X, torch.ones(2, 4).bool(), of="sequences"), "without a mask"),
        (lambda: losses.parse_loss("cosine(weigth=1)"), "Did you mean 'weight'"),
        (lambda: losses.parse_loss("cosine(weight=much)"), "weight as a number"),
        (lambda: losses.parse_loss("cosine(layer=0.5)"), "layer as a whole number"),
        (lambda: losses.parse_loss("cosine(weight=1e999)"), "weight as a number but got inf"),
        (lambda: losses.parse_loss("cosine(weight=1, weight=2)"), "weight once"),
        (lambda: losses.parse_loss("cosine(absolute=maybe)"), "absolute as True or False"),
        (lambda: losses.parse_loss("dispersion(temperature=warm)"), "temperature above 0.0 but got 'warm'"),
        (lambda: losses.parse_loss("dispersion(form=2)"), "form as one of"),
        (lambda: losses.parse_loss("cosine(0.1)"), "a loss such as"),
        (lambda: losses.parse_loss("cosine("), "a loss such as"),
        (lambda: losses.parse_loss("cosine(absolute=len('a'))"), "a loss such as"),
    ],
)
def test_one_line(call: object, words: str) -> None:
    with pytest.raises(UnsmoothError, match=words) as caught:
        call()  # type: ignore[operator]
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", sorted(losses.LOSSES))
@pytest.mark.parametrize(
    ("shape", "words"), [((0, 4, 3), "at least one sequence but got an empty batch"), ((2, 0, 3), "at least one token")]
)
def test_a_batch_without_anything_in_it_is_refused_by_all(name: str, shape: tuple[int, ...], words: str) -> None:
    declared, empty = losses.LOSSES[name], torch.ones(shape)
    beside = {"layers": {"first_BND": empty}, "views": {"other_BND": empty}}.get(declared.reads, {})
    with pytest.raises(UnsmoothError, match=words) as told:
        declared.function(empty, **beside)
    assert "\n" not in str(told.value)


def test_one_token_is_a_right_spectrum() -> None:
    assert losses.spectrum(torch.ones(2, 1, 3)) == 0.0


def test_a_term_is_the_weighted_loss() -> None:
    x = torch.randn(2, 4, 3, generator=torch.Generator().manual_seed(0))
    term = losses.parse_loss("cosine(absolute=True, weight=0.5)")
    assert term(x).item() == pytest.approx(0.5 * losses.cosine(x, absolute=True).item())


def test_every_loss_says_what_it_is() -> None:
    assert len(losses.LOSSES) >= 7
    for name, declared in losses.LOSSES.items():
        facts = declared.describe()
        assert all(facts[key] for key in ("summary", "equation", "paper", "cost", "degenerate", "basis")), name
        assert declared.function.__doc__
        assert "Example:" in declared.function.__doc__
