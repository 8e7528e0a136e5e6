"""What all estimators share: settings, kinds of input, saving, scikit-learn."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy
import pandas
import pytest
import torch

from tests.posthoc.samples import anisotropic
from unsmooth.errors import UnsmoothError
from unsmooth.posthoc import ESTIMATORS, AllButTheTop, Estimator, Flow, Whitening, load

MADE: dict[str, Any] = {
    "all_but_the_top": lambda: AllButTheTop(2),
    "whitening": lambda: Whitening(4, shrinkage=0.01),
    "flow": lambda: Flow(layers=2, hidden=4, steps=3),
}
EACH = pytest.mark.parametrize("name", MADE)


def test_all_are_here() -> None:
    assert set(MADE) == set(ESTIMATORS)


@EACH
def test_settings_in_scikit_learns_way(name: str) -> None:
    made: Estimator = MADE[name]()
    settings = made.get_params()
    assert type(made)(**settings).get_params() == settings
    first = next(iter(settings))
    assert made.set_params(**{first: 3}) is made
    assert made.get_params()[first] == 3
    with pytest.raises(UnsmoothError, match="Expected a known setting of"):
        made.set_params(colour=1)
    assert first in repr(made)


@EACH
def test_out_as_it_came(name: str) -> None:
    x = anisotropic(60)
    fitted = MADE[name]().fit(x)
    wanted = fitted.transform(x)
    assert wanted.dtype == torch.float64
    for kind in (torch.float32, torch.bfloat16):
        assert fitted.transform(x.to(kind)).dtype == kind
    for kind in (numpy.float32, numpy.float64):
        found = fitted.transform(x.numpy().astype(kind))
        assert isinstance(found, numpy.ndarray)
        assert found.dtype == kind
        numpy.testing.assert_allclose(found, wanted.numpy(), atol=1e-4)
    assert MADE[name]().fit(x.numpy()).transform(x.numpy()).tobytes() == wanted.numpy().tobytes()
    whole = fitted.transform((10 * x).long())
    assert whole.dtype == torch.float64


@EACH
def test_gradients_go_through(name: str) -> None:
    x = anisotropic(60)
    fitted = MADE[name]().fit(x.clone().requires_grad_())
    point = x[:2].clone().requires_grad_()
    assert torch.autograd.gradcheck(fitted.transform, (point,), atol=1e-6)


@EACH
def test_learned_in_inference_mode_and_part_of_a_graph_later(name: str) -> None:
    with torch.inference_mode():
        fitted = MADE[name]().fit(anisotropic(60))
    point = anisotropic(2).requires_grad_()
    fitted.transform(point).sum().backward()
    assert point.grad is not None


@EACH
@pytest.mark.parametrize("given", [[["a", "b"], ["c", "d"]], [[1.0, 2.0], [1.0]]], ids=["words", "ragged"])
def test_what_is_no_array_of_numbers_is_told(name: str, given: Any) -> None:
    with pytest.raises(UnsmoothError, match="embeddings as an array of numbers but got list"):
        MADE[name]().fit(given)


@EACH
def test_imaginary_parts_are_not_dropped(name: str) -> None:
    for given in (torch.ones(9, 3) * 1j, numpy.ones((9, 3)) * 1j):
        with pytest.raises(UnsmoothError, match=r"real embeddings but got torch\.complex"):
            MADE[name]().fit(given)


@EACH
def test_saved_and_loaded(name: str, tmp_path: Path) -> None:
    x = anisotropic(60)
    fitted = MADE[name]().fit(x)
    again = load(fitted.save(tmp_path / "folder" / "kept.safetensors"))
    assert type(again) is type(fitted)
    assert again.get_params() == fitted.get_params()
    assert torch.equal(again.transform(x), fitted.transform(x))
    assert torch.equal(pickle.loads(pickle.dumps(fitted)).transform(x), fitted.transform(x))


@EACH
def test_what_is_wrong_is_told(name: str, tmp_path: Path) -> None:
    made = MADE[name]()
    with pytest.raises(UnsmoothError, match="Expected a fitted"):
        made.transform(anisotropic())
    with pytest.raises(UnsmoothError, match="Expected a fitted"):
        made.save(tmp_path / "nothing")
    with pytest.raises(UnsmoothError, match="finite embeddings but got NaN"):
        made.fit(torch.full((4, 3), float("nan")))
    with pytest.raises(UnsmoothError, match=r"shape \(samples, dimensions\).*Try x\[mask\.bool\(\)\]"):
        made.fit(torch.ones(2, 3, 4))
    with pytest.raises(UnsmoothError, match="embeddings of 6 dimensions, as in fit but got 5"):
        made.fit(anisotropic(60)).transform(anisotropic(60, 5))


def test_other_files_are_refused(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    save_file({"a": torch.ones(2)}, tmp_path / "weights.safetensors")
    with pytest.raises(UnsmoothError, match=r"an estimator of unsmooth\.posthoc saved"):
        load(tmp_path / "weights.safetensors")
    about = {"unsmooth.posthoc": "1", "about": '{"settings": {}, "dimensions": 4}'}
    for name in MADE:
        save_file({"a": torch.ones(2)}, tmp_path / "part.safetensors", {**about, "estimator": name})
        with pytest.raises(UnsmoothError, match="a whole file in"):
            load(tmp_path / "part.safetensors")
    (tmp_path / "text").write_text("no")
    for name in ("text", "missing"):
        with pytest.raises(UnsmoothError, match="safetensors file"):
            load(tmp_path / name)


def test_in_a_pipeline() -> None:
    pipeline = pytest.importorskip("sklearn.pipeline", reason="scikit-learn is not installed")
    base = pytest.importorskip("sklearn.base")
    from sklearn.linear_model import LogisticRegression

    x = anisotropic().numpy()
    labels = (x[:, 0] > x[:, 0].mean()).astype(int)
    steps = pipeline.make_pipeline(AllButTheTop(1), Whitening(4), LogisticRegression())
    assert steps.fit(x, labels).score(x, labels) > 0.6
    assert base.clone(Whitening(3, shrinkage=0.1)).get_params() == {"dimensions": 3, "shrinkage": 0.1}
    only = pipeline.make_pipeline(AllButTheTop(1), Whitening(4))
    wanted = Whitening(4).fit_transform(AllButTheTop(1).fit_transform(x))
    numpy.testing.assert_allclose(only.fit_transform(x), wanted)
    numpy.testing.assert_allclose(only.set_params(whitening__dimensions=2).fit_transform(x), wanted[:, :2])


@EACH
def test_dimensions_that_come_out_have_names(name: str) -> None:
    made = MADE[name]()
    with pytest.raises(UnsmoothError, match="a fitted"):
        made.get_feature_names_out()
    x = anisotropic(60)
    wide = made.fit_transform(x).shape[1]
    kind = type(made).__name__.lower()
    assert list(made.get_feature_names_out()) == [f"{kind}{place}" for place in range(wide)]
    assert list(made.get_feature_names_out([f"d{place}" for place in range(6)])) == list(made.get_feature_names_out())
    with pytest.raises(UnsmoothError, match="6 names, one for each dimension but got 2"):
        made.get_feature_names_out(["a", "b"])


@EACH
def test_frames_out_where_they_are_asked_for(name: str) -> None:
    x = anisotropic(60)
    made = MADE[name]().fit(x)
    wanted = made.transform(x).numpy()
    rows = [f"text {place}" for place in range(60)]
    frame = made.set_output(transform="pandas").transform(pandas.DataFrame(x.numpy(), index=rows))
    assert list(frame.index) == rows
    assert list(frame.columns) == list(made.get_feature_names_out())
    numpy.testing.assert_allclose(frame.to_numpy(), wanted)
    numpy.testing.assert_allclose(made.set_output().transform(x).to_numpy(), wanted)  # as it was
    assert torch.equal(made.set_output(transform="default").transform(x), torch.from_numpy(wanted))
    with pytest.raises(UnsmoothError, match="transform as 'default' or 'pandas' but got 'polars'"):
        made.set_output(transform="polars")


def test_frames_out_of_a_pipeline() -> None:
    pipeline = pytest.importorskip("sklearn.pipeline", reason="scikit-learn is not installed")
    base = pytest.importorskip("sklearn.base")
    x = anisotropic().numpy()
    steps = pipeline.make_pipeline(AllButTheTop(1), Whitening(4)).set_output(transform="pandas")
    frame = base.clone(steps).fit_transform(x)
    assert list(frame.columns) == ["whitening0", "whitening1", "whitening2", "whitening3"]
    numpy.testing.assert_allclose(frame, Whitening(4).fit_transform(AllButTheTop(1).fit_transform(x)))
    with pytest.raises(UnsmoothError, match="'polars'"):
        steps.set_output(transform="polars")


@EACH
def test_called_as_scikit_learn_calls(name: str) -> None:
    x = anisotropic(60)
    made = MADE[name]()
    assert torch.equal(made.fit(X=x).transform(X=x), made.fit_transform(X=x))


@EACH
def test_columns_of_frames_are_known_by_name(name: str, tmp_path: Path) -> None:
    frame = pandas.DataFrame(anisotropic(60).numpy(), columns=list("abcdef"))
    made = MADE[name]().fit(frame)
    assert list(made.feature_names_in_) == list("abcdef")
    for fitted in (made, load(made.save(tmp_path / "kept"))):
        numpy.testing.assert_array_equal(fitted.transform(frame), made.transform(frame.to_numpy()))
        with pytest.raises(UnsmoothError, match=r"ordered as in fit, a, b, c, … but got f, e, d, …"):
            fitted.transform(frame[list("fedcba")])
    assert not hasattr(made.fit(frame.to_numpy()), "feature_names_in_")
    assert made.transform(frame.astype(numpy.float32)).dtype == numpy.float32
    assert made.transform(frame.convert_dtypes()).dtype == numpy.float64


def test_frames_out_where_scikit_learn_is_set_up_so() -> None:
    sklearn = pytest.importorskip("sklearn", reason="scikit-learn is not installed")
    x = anisotropic(60).numpy()
    made = Whitening(2).fit(x)
    with sklearn.config_context(transform_output="pandas"):
        assert list(made.transform(x).columns) == ["whitening0", "whitening1"]
        assert isinstance(made.transform(torch.from_numpy(x)), torch.Tensor)
        assert isinstance(made.set_output(transform="default").transform(x), numpy.ndarray)


@EACH
def test_more_that_is_no_array_of_numbers(name: str) -> None:
    x = anisotropic(60)
    for sparse in (x.to_sparse(), x.to_sparse_csr()):
        with pytest.raises(UnsmoothError, match=r"dense embeddings but got torch\.sparse"):
            MADE[name]().fit(sparse)
    with pytest.raises(UnsmoothError, match=r"array of numbers but got list\. Try .*torch\.stack"):
        MADE[name]().fit(list(x.clone().requires_grad_()))
    for size in (1e160, 1e-200):
        with pytest.raises(UnsmoothError, match="embeddings whose largest number is from"):
            MADE[name]().fit(size * x)


@EACH
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_whatever_the_default_precision(name: str, dtype: torch.dtype) -> None:
    x = anisotropic(60)
    wanted = MADE[name]().fit_transform(x)
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        found = MADE[name]().fit_transform(x)
    finally:
        torch.set_default_dtype(before)
    assert torch.equal(found, wanted)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(MADE[name]().fit_transform(x), wanted)


@EACH
def test_whatever_the_default_device(name: str, tmp_path: Path) -> None:
    x = anisotropic(60)
    wanted = MADE[name]().fit_transform(x)
    with torch.device("meta"):  # where nothing can be computed
        made = MADE[name]().fit(x)
        found = load(made.save(tmp_path / "kept")).transform(x)
    assert torch.equal(found, wanted)
