"""Explanations made up by hand: a whole one, one from weights alone, a hostile one."""

from __future__ import annotations

import cmath
import math
from dataclasses import replace

from tests.report.fakes import HOSTILE, NAN
from unsmooth.explaining.result import (
    VERDICTS,
    Breakdown,
    Explanation,
    Gains,
    Growth,
    HeadFinding,
    LayerFinding,
    Skill,
)

DEPTH, HEADS, WIDTH = 6, 4, 48
KNOWS = {"T1": "the weights and the statistics of the embedding", "T2": "the weights and the layer's statistics"}


def cloud(layer: int, width: int = WIDTH) -> tuple[complex, ...]:
    """A spiral around −0.3, closed under conjugation, with 3 far to the right at odd layers."""
    half = [-0.3 + 0.05 * step * cmath.exp(0.4j * step) for step in range(width // 2)]
    pairs = [value for one in half for value in (one, one.conjugate())]
    return (*pairs[:-1], 3 + 0j) if layer % 2 else tuple(pairs)


def layer_finding(layer: int) -> LayerFinding:
    """A layer with everything: odd ones smooth, even ones sharpen."""
    smooths = layer % 2 == 1
    before, after = 0.1 * layer, 0.1 * layer + (0.1 if smooths else -0.04)
    shares = Breakdown(0.06, -0.03, 0.05, 0.02) if smooths else Breakdown(0.03, -0.05, -0.02, 0.0)
    return LayerFinding(
        layer=layer,
        block=f"encoder.layer.{layer - 1}",
        place="pre",
        scale=0.8 + 0.1 * layer,
        mean_modulus=4.0 if smooths else 0.9,
        rest_modulus=1.25,
        margin=math.log(4.0 / 1.25) if smooths else math.log(0.9 / 1.25),
        verdict="smoothing" if smooths else "sharpening",
        reason=f"Layer {layer}: the fastest mode of equal tokens grows by {4.0 if smooths else 0.9}, others by 1.25.",
        mode_cosine=1.0 if smooths else -0.05,
        flip_scale=2.5 if smooths else None,
        change="A stream 2.5 times as large would turn it." if smooths else "Nothing within reach of σ turns it.",
        eigenvalues=cloud(layer),
        drift=0.02 * layer,
        gains=Gains(1.5, 1.1 + 0.05 * layer, 0.2, 0.1, 1.4, 0.9),
        similarity_before=before,
        similarity_after=after,
        cosine_before=before,
        cosine_after=after,
        logit_change=0.4 if smooths else -0.2,
        predicted={"T1": 1.0, "T2": 0.3 if smooths else -0.1 * layer},
        breakdown=shares,
        escalation=(after - before) / (1 - before),
        escalation_bound=before * (1 - 0.3**2) / 2,
    )


def head_finding(layer: int, head: int) -> HeadFinding:
    """A head; the verdicts run through all four."""
    verdict = list(VERDICTS)[(layer + head) % 4]
    return HeadFinding(
        layer=layer,
        head=head,
        kv_head=head // 2,
        mean_modulus=1.3,
        rest_modulus=1.1,
        margin=math.log(1.3 / 1.1),
        verdict=verdict,
        reason=f"Head {head} of layer {layer} is {verdict}.",
        feature_eigenvalue=0.3 + 0j,
        token_eigenvalue=complex(-0.2 - 0.1 * head) if verdict == "sharpening" else 1 + 0j,
        mode_cosine=1.0,
        flip_scale=None,
        asymmetry=0.7,
        condition=12.0,
        range_low=-1.0,
        range_high=1.5,
        second_eigenvalue=0.2 + 0.1 * head,
        quotient_norm=0.5 + 0.1 * head,
        dobrushin=0.6,
        entropy=0.8 - 0.05 * layer,
        random_second_eigenvalue=0.15,
        softmax_second_eigenvalue=0.25,
    )


def full_explanation(name: str = "all-MiniLM-L6-v2") -> Explanation:
    """Everything an explanation can hold."""
    layers = range(1, DEPTH + 1)
    return Explanation(
        name=name,
        layers=tuple(layer_finding(layer) for layer in layers),
        heads=tuple(head_finding(layer, head) for layer in layers for head in range(HEADS)),
        skills=(
            Skill("T1", KNOWS["T1"], 6, -1.125, 0.6, 0.6),
            Skill("T2", KNOWS["T2"], 6, 0.878, 1.0, 1.0),
            Skill("persistence", "what the layer before did", 6, -3.0, 0.25, 0.25),
            Skill("verdicts", "which modes would grow fastest", 6, None, 1.0, 1.0),
        ),
        growth=Growth(0.3, -0.1, DEPTH),
        manifest={"model": {"id": "sentence-transformers/all-MiniLM-L6-v2"}, "data": {"sequences": 16}},
        notes=("Attention was taken from 16 sequences.",),
        sentence=f"Of {DEPTH} layers of {name} three make tokens alike and three keep them apart.",
    )


def weights_alone(name: str = "from weights") -> Explanation:
    """What is left where there is no data: no attention, no activations, nothing measured."""
    whole = full_explanation(name)
    activations = ("scale", "drift", "gains", "breakdown", "escalation", "escalation_bound")
    streams = ("similarity_before", "similarity_after", "cosine_before", "cosine_after", "logit_change")
    nothing = dict.fromkeys((*activations, *streams, "rest_modulus", "mode_cosine"))
    chance = ("random_second_eigenvalue", "softmax_second_eigenvalue")
    spectra = ("second_eigenvalue", "quotient_norm", "dobrushin", "entropy", *chance)
    unknown = dict.fromkeys((*spectra, "rest_modulus", "token_eigenvalue", "mode_cosine"))
    return replace(
        whole,
        layers=tuple(replace(one, **nothing, predicted={}) for one in whole.layers),
        heads=tuple(replace(one, **unknown) for one in whole.heads),
        skills=(),
        growth=None,
        manifest={},
        notes=(),
    )


def hostile_explanation() -> Explanation:
    """Every string is an attack, and numbers are NaN or infinite wherever they can be."""
    whole = full_explanation(HOSTILE)
    numbers = dict.fromkeys(("scale", "mean_modulus", "rest_modulus", "margin", "mode_cosine", "drift"), NAN)
    broken = replace(
        whole.layers[2],
        **numbers,
        flip_scale=math.inf,
        block=HOSTILE,
        reason=f"because {HOSTILE}",
        change=f"unless {HOSTILE}",
        eigenvalues=(complex(NAN, 0), complex(math.inf, 1), 0.5 + 0.5j, 0.5 - 0.5j),
        gains=Gains(NAN, math.inf, 0.1, 0.1, NAN, math.inf),
        similarity_after=NAN,
        logit_change=NAN,
        predicted={HOSTILE: math.inf, "T2": 0.1},
        breakdown=Breakdown(NAN, 0.1, -math.inf, 0.0),
        escalation=-math.inf,
        escalation_bound=NAN,
    )
    first = replace(whole.layers[0], predicted={HOSTILE: 0.5, "T2": 0.05})
    head = replace(
        whole.heads[0],
        reason=f"head {HOSTILE}",
        margin=NAN,
        second_eigenvalue=NAN,
        token_eigenvalue=complex(NAN, NAN),
        dobrushin=math.inf,
    )
    return replace(
        whole,
        layers=(first, whole.layers[1], broken, *whole.layers[3:]),
        heads=(head, *whole.heads[1:]),
        skills=(
            Skill(HOSTILE, f"knows {HOSTILE}", 1, NAN, math.inf, None),
            Skill("T2", f"knows {HOSTILE}", 6, NAN, 0.6, 0.6),
            Skill("persistence", f"knows {HOSTILE}", 6, -math.inf, 0.25, 0.25),
        ),
        growth=Growth(NAN, math.inf, 6),
        manifest={HOSTILE: [HOSTILE, NAN]},
        notes=(f"note {HOSTILE}",),
        sentence=f"Why {HOSTILE} & co \u2028 differ.",
    )
