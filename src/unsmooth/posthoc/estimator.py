"""What all share: fit and transform in scikit-learn's way, without needing it; saving and loading."""

from __future__ import annotations

import inspect
import json
import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import numpy
import torch
from safetensors.torch import load_file, save
from torch import Tensor

from unsmooth.errors import expected, unknown_name
from unsmooth.files import parse_json, write_whole
from unsmooth.posthoc.arrays import Array, check_squares, frame_of, like, matrix_of, names_of
from unsmooth.registry import Registry
from unsmooth.schema import parse
from unsmooth.weights import read_header

S = TypeVar("S", bound="Estimator")

FORMAT = "1"


class Estimator(ABC):
    """Learns from embeddings (samples, dimensions), then changes any that are like them.

    Settings are the arguments of ``__init__``, kept under their own names and checked when it is fitted, as
    scikit-learn expects it; what was learned has names that end in an underscore. Tensors come out as tensors on the
    same device, arrays as arrays, in the dtype they came in; the work is done in float64.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    equation: ClassVar[str]
    paper: ClassVar[str]
    learned: ClassVar[tuple[str, ...]]
    """Names of the tensors that fitting makes."""

    n_features_in_: int
    feature_names_in_: numpy.ndarray[Any, Any]
    """Of the columns, where a frame was learned from."""
    # Under the name by which scikit-learn's `clone` copies it.
    _sklearn_output_config: Mapping[str, str] = {}

    @abstractmethod
    def _fit(self, x_ND: Tensor) -> None:
        """Learn from float64 embeddings."""

    @abstractmethod
    def _transform(self, x_ND: Tensor) -> Tensor:
        """Change float64 embeddings."""

    def fit(self: S, X: Any, y: Any = None) -> S:
        """Learn from embeddings (samples, dimensions); `y` is not read."""
        x_ND = matrix_of(X).detach()
        check_squares(x_ND)
        # What is learned can be part of a graph later, also where it was learned in inference mode.
        with torch.inference_mode(False), torch.no_grad(), torch.autocast(x_ND.device.type, enabled=False):
            self._fit(x_ND)
        self.n_features_in_ = x_ND.shape[1]
        self.__dict__.pop("feature_names_in_", None)
        if (names := names_of(X)) is not None:
            self.feature_names_in_ = names
        return self

    def transform(self, X: Array) -> Array:
        """Embeddings (samples, dimensions) changed as learned; a pandas frame where `set_output` asked for one.

        So it is, for arrays and frames, where scikit-learn is set up so.
        """
        self._check_names(X)
        made: Any = like(self._transform(self.embeddings(X)), X)
        if self._wanted_output(X) == "pandas":
            made = frame_of(made, self.get_feature_names_out(), X)
        found: Array = made
        return found

    def fit_transform(self, X: Array, y: Any = None) -> Array:
        """Learn from embeddings, and change these."""
        return self.fit(X, y).transform(X)

    def embeddings(self, X: Any) -> Tensor:
        """Samples like those that were learned from, in float64."""
        self.check_fitted()
        return matrix_of(X, self.n_features_in_)

    def _check_names(self, X: Any) -> None:
        """Refuse a frame whose columns are not those of the one that was learned from, or in another order."""
        known, given = getattr(self, "feature_names_in_", None), names_of(X)
        if known is not None and given is not None and list(known) != list(given):
            hint = "x[list(estimator.feature_names_in_)]"
            raise expected(f"columns named and ordered as in fit, {_few(known)}", _few(given), hint)

    def _wanted_output(self, X: Any) -> str | None:
        """By `set_output`; else as scikit-learn is set up, which knows no tensors, where it has been imported."""
        sklearn: Any = None if isinstance(X, Tensor) else sys.modules.get("sklearn")
        everywhere = sklearn.get_config().get("transform_output") if sklearn is not None else None
        return self._sklearn_output_config.get("transform", everywhere)

    def set_output(self: S, *, transform: str | None = None) -> S:
        """Have `transform` give "pandas" frames, or by "default" what came in; None leaves it as it is."""
        if transform not in (None, "default", "pandas"):
            raise expected("transform as 'default' or 'pandas'", repr(transform), 'set_output(transform="pandas")')
        if transform is not None:
            self._sklearn_output_config = {"transform": transform}
        return self

    def get_feature_names_out(self, input_features: Sequence[str] | None = None) -> numpy.ndarray[Any, Any]:
        """Names of the dimensions that come out, as scikit-learn gives them: the class's, with a number.

        Args:
            input_features: Names of those that go in. Each that comes out is made of all, so they are only counted.
        """
        self.check_fitted()
        if input_features is not None and len(input_features) != self.n_features_in_:
            raise expected(f"{self.n_features_in_} names, one for each dimension", len(input_features), "None")
        one = torch.zeros(1, self.n_features_in_, dtype=torch.float64)
        count = self._transform(one).shape[1]
        return numpy.array([f"{type(self).__name__.lower()}{place}" for place in range(count)], dtype=object)

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Settings by name."""
        return {name: getattr(self, name) for name in self._settings()}

    def set_params(self: S, **params: Any) -> S:
        """Change settings; what was learned stays until it is fitted again."""
        for name, value in params.items():
            if name not in self._settings():
                raise unknown_name(f"setting of {type(self).__name__}", name, self._settings())
            setattr(self, name, value)
        return self

    @classmethod
    def _settings(cls) -> list[str]:
        return list(inspect.signature(cls).parameters)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{key}={value!r}' for key, value in self.get_params().items())})"

    @property
    def is_fitted(self) -> bool:
        """Whether there is something to transform by."""
        return hasattr(self, "n_features_in_")

    def check_fitted(self) -> None:
        """Refuse to transform by nothing."""
        if not self.is_fitted:
            raise expected(f"a fitted {type(self).__name__}", "one that is not", "fit(x) first")

    def __sklearn_is_fitted__(self) -> bool:
        return self.is_fitted

    def __sklearn_tags__(self) -> Any:
        # Only scikit-learn asks, so it is there.
        tags = import_module("sklearn.utils")
        about = {"target_tags": tags.TargetTags(required=False), "transformer_tags": tags.TransformerTags()}
        return tags.Tags(estimator_type=None, **about)

    def tensors(self) -> dict[str, Tensor]:
        """What was learned, by name."""
        return {name: getattr(self, name) for name in self.learned}

    def take_tensors(self, tensors: dict[str, Tensor]) -> None:
        """The reverse of `tensors`."""
        for name in self.learned:
            setattr(self, name, tensors[name])

    def save(self, path: str | Path) -> Path:
        """Write settings and what was learned to one safetensors file, whole or not at all."""
        self.check_fitted()
        about = {"settings": _plain(self.get_params()), "dimensions": self.n_features_in_}
        if hasattr(self, "feature_names_in_"):
            about["names"] = list(self.feature_names_in_)
        tensors = {key: value.detach().cpu().contiguous() for key, value in self.tensors().items()}
        metadata = {"unsmooth.posthoc": FORMAT, "estimator": self.name, "about": json.dumps(about)}
        return write_whole(Path(path), save(tensors, metadata))


def whole(name: str, value: Any, default: object, least: int, most: int | None = None) -> int:
    """A setting that counts something; refuses what is not a whole number, or too small or too large.

    >>> whole("layers", 2, 4, least=1)
    2
    """
    bounds = f"of at least {least}" if most is None else f"from {least} to {most}"
    counts = isinstance(value, int | numpy.integer) and not isinstance(value, bool)
    if not counts or value < least or (most is not None and value > most):
        raise expected(f"{name} as a whole number {bounds}", repr(value), f"{name}={default}")
    return int(value)


def _plain(settings: dict[str, Any]) -> dict[str, Any]:
    """Numpy's numbers as Python's: what JSON can hold."""
    return {key: value.item() if isinstance(value, numpy.generic) else value for key, value in settings.items()}


def _few(names: Any) -> str:
    """The first of them."""
    return ", ".join(map(str, names[:3])) + (", …" if len(names) > 3 else "")


def _accept(found: Any) -> tuple[str, type[Estimator]]:
    """What an entry point may name: a subclass of `Estimator`."""
    if not (isinstance(found, type) and issubclass(found, Estimator)):
        raise expected("a subclass of unsmooth.posthoc.Estimator", repr(found), "the class itself")
    return found.name, found


ESTIMATORS = Registry[type[Estimator]]("estimator", group="unsmooth.posthoc", accept=_accept)
E = TypeVar("E", bound=type[Estimator])


def estimator(kind: E) -> E:
    """Put a class into the table under its name."""
    ESTIMATORS.add(kind.name, kind)
    return kind


def load(path: str | Path) -> Estimator:
    """What `Estimator.save` wrote, fitted."""
    where = repr(str(path))
    try:
        told = read_header(Path(path)).metadata
    except OSError:
        raise expected("a safetensors file", where, "the path that save was given") from None
    if told.get("unsmooth.posthoc") != FORMAT:
        raise expected("a file that an estimator of unsmooth.posthoc saved", where, "its own save")
    about = parse(_About, parse_json(told.get("about", ""), where), where=where)
    kind = ESTIMATORS[told.get("estimator", "")]
    try:
        made = kind(**about.settings)
        made.n_features_in_ = about.dimensions
        if about.names is not None:
            made.feature_names_in_ = numpy.array(about.names, dtype=object)
        made.take_tensors(load_file(path))
        with torch.device("cpu"):
            made.get_feature_names_out()  # runs it once: what was learned fits together, and has these dimensions
    except (ValueError, KeyError, TypeError, RuntimeError, IndexError, AttributeError) as error:
        raise expected(f"a whole file in {where}", str(error).splitlines()[0][:200], "saving it again") from None
    return made


@dataclass(frozen=True)
class _About:
    settings: Mapping[str, Any]
    dimensions: int
    names: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.dimensions <= 1 << 20 or (self.names is not None and len(self.names) != self.dimensions):
            raise expected("from 1 to 1,048,576 dimensions, each with its name", self.dimensions, "saving it again")
