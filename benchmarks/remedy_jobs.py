"""What `remedy_cost` measures: every remedy, on a kind of model that can have it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import nn

import unsmooth
from benchmarks.remedy_steps import CAUSAL, POST_NORM, PRE_NORM, Size, make_model

NOISE = "none (the noise)"


@dataclass(frozen=True)
class Variant:
    """A remedy as it is timed.

    Args:
        name: Of the remedy.
        options: As `unsmooth.apply` takes them.
        bar: What it should stay under.
        fold: Whether its folded form is timed too.
        not_captured: Why a CUDA graph cannot hold its step. It is not tried then: libraries of a process in which a
            capture failed may fail from there on.
    """

    name: str
    options: dict[str, Any] = field(default_factory=dict)
    bar: float | None = None
    fold: bool = False
    not_captured: str | None = None

    @property
    def label(self) -> str:
        """As a user would write it."""
        options = ", ".join(f"{key}={value!r}" for key, value in self.options.items())
        return f"{self.name}({options})" if options else self.name


PRE_NORM_VARIANTS = (
    Variant("sharpen", {"basis": "schur", "start": "fresh"}, 1.10, fold=True),
    Variant("smooth", {"basis": "schur", "start": "fresh"}, 1.10, fold=True),
    Variant("sharpen", {"basis": "general", "start": "fresh"}, 1.10),
    Variant("sharpen", {"basis": "orthogonal", "start": "fresh"}, 1.10, fold=True),
    Variant("smooth", {"basis": "orthogonal", "start": "fresh"}, 1.10, fold=True),
    Variant("sharpen", {"basis": "gram", "start": "fresh"}, fold=True),
    Variant("smooth", {"basis": "gram", "start": "fresh"}, fold=True),
    Variant("sharpen", {"basis": "gram", "eigenvalues": "rescale", "start": "fresh"}, 1.02),
    Variant("deescalate", {}, 1.03),
    Variant("deescalate", {"place": "residual"}, 1.03),
    Variant("deescalate", {"place": "norm"}, 1.03),
    Variant("deescalate", {"place": "values"}, 1.03),
    Variant("deescalate", {"learn": "layer"}, 1.03),
    Variant("deescalate", {"learn": "channel"}, 1.03),
    Variant("attnscale", {}, 1.10),
    Variant("featscale", {}, 1.10),
    Variant("neutreno", {}, 1.10),
    Variant("contranorm", {}, 1.15),
    Variant("rezero", {"norm": "keep"}, fold=True),
    Variant("rezero", {"norm": "drop"}),
    Variant("residual_scaling", {}, fold=True),
    Variant("gfsa", {}, 1.50),
    Variant("centred", {}, 1.15),
    Variant("shaped", {}, 1.15),
    Variant("value_skipinit", {}, 1.15),
    Variant("value_residual", {}, 1.15),
    Variant("laplacian", {}, 1.15),
    Variant("talking_heads", {}, 1.15),
    Variant("differential", {}, 1.15),
    Variant("pairnorm", {}, 1.15),
    Variant("softdecay", not_captured="cuSOLVER's eigenvalues wait for the device"),
    Variant("registers", {}, 1.15),
    Variant("skipinit", {"norm": "keep"}),
    Variant("layerscale", {}, 1.15),
    Variant("layernorm_scaling"),
    Variant("peri_norm"),
    Variant("dlcl"),
    Variant("sigma_reparam"),
    Variant("norm_signs"),
    Variant("mimetic"),
    Variant("norm_place", {"to": "post"}),
)
# By the kind of model: some are for post-norm stacks alone, one for those that do not see the future.
VARIANTS = {
    PRE_NORM: PRE_NORM_VARIANTS,
    POST_NORM: (Variant("deepnorm", {}, fold=True), Variant("b2t"), Variant("admin"), Variant("deescalate", {}, 1.03)),
    CAUSAL: (Variant("spa", {}, 1.15),),
}


@dataclass(frozen=True)
class Job:
    """What a row is of: a variant on a kind of model, or the plain model once more beside itself."""

    norm: str
    variant: Variant | None = None
    folded: bool = False

    def model(self, size: Size, device: str) -> nn.Module:
        """Built anew."""
        model = make_model(size, self.norm, device)
        if self.variant is None:
            return model
        unsmooth.apply(model, self.variant.name, **self.variant.options)
        return unsmooth.fold(model) if self.folded else model

    @property
    def not_captured(self) -> str | None:
        """As its variant says."""
        return None if self.variant is None else self.variant.not_captured

    def row(self, compiled: bool) -> dict[str, Any]:
        """What is known of it before it is measured."""
        label, bar = (NOISE, None) if self.variant is None else (self.variant.label, self.variant.bar)
        bar = 1.0 if self.folded else bar
        return {"remedy": label, "norm": self.norm, "folded": self.folded, "compiled": compiled, "bar": bar}


def all_jobs(only: Sequence[str] | None = None) -> Iterator[Job]:
    """In the order of the page; the plain model beside itself wherever anything of its kind is asked for."""
    for norm, every in VARIANTS.items():
        variants = [variant for variant in every if only is None or variant.label in only]
        if variants:
            yield Job(norm)
        for variant in variants:
            yield from (Job(norm, variant, folded) for folded in ((False, True) if variant.fold else (False,)))
