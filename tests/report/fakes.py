"""Scans made up by hand, with everything a report has to survive."""

from __future__ import annotations

import math
from dataclasses import replace

from unsmooth.scanning.result import Change, Confound, MassiveToken, MetricCard, OutlierDimension, Row, Scan

HOSTILE = "</script><img src=x onerror=alert(1)>"
LAYERS = range(7)
NAN = float("nan")

METRICS = {
    "mean_cosine": MetricCard(
        name="mean_cosine",
        definition="mean of x_i·x_j / (‖x_i‖‖x_j‖) over pairs i ≠ j of one sequence",
        paper="Gong et al. 2021 (arXiv 2104.12753); Ethayarajh 2019 (arXiv 1909.00512)",
        cost="O(nd)",
        chance=0.0,
        chance_note="0 for independent isotropic tokens",
        degenerate="single token 1; zero tokens count as cosine 0",
        rises_when_alike=True,
    ),
    "mean_cosine(absolute=True)": MetricCard(
        name="mean_cosine(absolute=True)",
        definition="mean of |x_i·x_j| / (‖x_i‖‖x_j‖) over pairs i ≠ j of one sequence; with absolute=True",
        paper="Gong et al. 2021 (arXiv 2104.12753)",
        cost="O(n²d)",
        chance=0.0407,
        chance_note="about √(2/πd)",
        degenerate="single token 1",
        rises_when_alike=True,
    ),
    "token_similarity": MetricCard(
        name="token_similarity",
        definition="‖ΠX‖²/‖X‖² with Π the projection on the token mean",
        paper="P2 (arXiv 2312.06182)",
        cost="O(nd)",
        chance=0.03125,
        chance_note="1/n",
        degenerate="single token 1; all zero 0",
        rises_when_alike=True,
    ),
    "dirichlet_energy": MetricCard(
        name="dirichlet_energy",
        definition="half the mean of ‖x_i − x_j‖² over pairs",
        paper="Cai & Wang 2020 (arXiv 2006.13318)",
        cost="O(nd)",
        chance=None,
        chance_note="none: it has the scale of the input",
        degenerate="single token 0",
        rises_when_alike=False,
    ),
}
SITES = {
    "residual": "what a block hands on; after its last norm in post-norm models",
    "attention": "output of the attention branch before the addition",
}
SHARES = {"mean_cosine": 0.1, "mean_cosine(absolute=True)": 0.14, "token_similarity": 0.12}


def value(metric: str, site: str, layer: int, lift: float) -> float:
    """A curve that rises with depth and differs between metrics and sites."""
    if metric == "dirichlet_energy":
        return 40.0 * math.exp(-0.3 * layer) + 10 * lift
    return SHARES[metric] + lift + 0.07 * layer + (0.15 if site == "attention" else 0.0)


def row(metric: str, site: str, layer: int, lift: float, sequences: int = 16) -> Row:
    """One cell; a single sequence has no interval."""
    mean = value(metric, site, layer, lift)
    half = 0.02 * abs(mean) + 0.01 if sequences > 1 else NAN
    return Row(layer, site, metric, mean, half * 2, mean - half, mean + half, sequences, 128 * sequences)


def plain_scan(name: str = "all-MiniLM-L6-v2", lift: float = 0.0, sequences: int = 16) -> Scan:
    """Four metrics and two sites; the energy is measured at the residual site alone."""
    rows = tuple(
        row(metric, site, layer, lift, sequences)
        for metric in METRICS
        for site in SITES
        for layer in LAYERS
        if metric != "dirichlet_energy" or site == "residual"
    )
    manifest = {
        "model": {"id": "sentence-transformers/all-MiniLM-L6-v2", "weights_sha256": "9f" * 32},
        "data": {"files": ["walden.txt"], "sha256": "1c" * 32, "sequences": sequences},
        "versions": {"unsmooth": "0.1.0", "torch": "2.13.0"},
        "device": "cpu",
        "seed": 0,
        "revision": None,
    }
    return Scan(
        name=name,
        rows=rows,
        metrics=METRICS,
        sites=SITES,
        manifest=manifest,
        changes={"mean_cosine": Change(0.42, 0.4, 0.44, sequences)} if sequences > 1 else {},
        confounds=tuple(Confound(layer, 0.1, 0.1, 0.1, 0.1) for layer in LAYERS),
        sentence=f"Tokens of {name} grow more alike with depth: mean cosine 0.10 at layer 0, 0.52 at layer 6.",
    )


def full_scan(name: str = "all-MiniLM-L6-v2") -> Scan:
    """With a baseline, massive tokens and outlier dimensions."""
    confounds = tuple(
        Confound(
            layer=layer,
            mean_cosine=0.1 + 0.07 * layer,
            without_massive_tokens=0.09 + 0.06 * layer,
            without_outlier_dimensions=0.05 + 0.03 * layer,
            without_both=0.04 + 0.02 * layer,
            massive_tokens=(MassiveToken(0, 1.0, "[CLS]"), MassiveToken(None, 2.75, "."), MassiveToken(127, 0.5))
            if layer > 1
            else (),
            outlier_dimensions=tuple(OutlierDimension(d, 0.9) for d in (223, 308, 11, 5, 7, 64)[:layer]),
        )
        for layer in LAYERS
    )
    baseline = plain_scan(f"{name}, random weights", lift=-0.12)
    return replace(plain_scan(name), baseline=baseline, confounds=confounds)


def hostile_scan() -> Scan:
    """Every string that a user can choose is an attack; one cell is NaN and one is infinite."""
    scan = plain_scan(HOSTILE, lift=0.2)
    rows = [replace(one, mean=NAN, ci_low=NAN, ci_high=NAN) if one.layer == 3 else one for one in scan.rows]
    rows[1] = replace(rows[1], mean=math.inf, ci_low=-math.inf, ci_high=math.inf)
    token = MassiveToken(0, 1.0, HOSTILE)
    return replace(
        scan,
        rows=tuple(rows),
        manifest={HOSTILE: HOSTILE, "nested": {"deep": [HOSTILE, {"x": HOSTILE}]}, "not a number": NAN},
        confounds=(Confound(0, 0.3, NAN, 0.2, 0.1, (token,), (OutlierDimension(9, 0.5),)),),
        notes=(f"Layer 3 had NaN activations in {HOSTILE}; they are left out.",),
        sentence=f"Tokens of {HOSTILE} & co grow \u2028 alike.",
        sites={**SITES, "residual": f"stream {HOSTILE}"},
        complete=False,
    )
