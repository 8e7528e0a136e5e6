"""docs/evidence/what-we-got-wrong.md: the verdicts of the ledger's first edition that changed, and why."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from benchmarks.markers import table
from unsmooth.evidence import Entry
from unsmooth.report.evidence import words

FIRST_EDITION: Mapping[str, str] = {
    "similarity-not-inevitable": "confirmed",
    "eigenvalues-decide": "confirmed",
    "sign-of-spectrum": "confirmed",
    "theory-predicts-layers": "refuted",
    "norm-sign-flips": "confirmed",
    "steering-shows": "confirmed",
    "sharpening-helps": "refuted",
    "smoothing-helps": "refuted",
    "asymmetry-falls": "confirmed",
    "bases-compared": "refuted",
    "geometric-escalation": "confirmed",
    "second-eigenvalue-falls": "confirmed",
    "post-norm-fails-deep": "undecided",
    "deescalation-rescues": "undecided",
    "pre-norm-diminishes": "confirmed",
}
"""Claim to the verdict that it had."""

IDEALISED = "A check of linear algebra on an idealised layer; the papers' sentences are about Transformers."
WHY: Mapping[str, str] = {
    "similarity-not-inevitable": (
        "The rule counted models in which any layer makes tokens less alike by any of four definitions, which can "
        "hardly fail. By mean cosine, from the first layer to the last, no lineage at hand ends less alike. The other "
        "half of the sentence is a claim of its own now, similarity-increases."
    ),
    "eigenvalues-decide": IDEALISED,
    "sign-of-spectrum": f"{IDEALISED} The condition is known from reviews.",
    "norm-sign-flips": f"{IDEALISED} That the sign matters is the paper's; how is derived here.",
    "geometric-escalation": f"{IDEALISED} Escalation rate and bound are reconstructed.",
    "second-eigenvalue-falls": "The formula is ours, and a limit of many tokens; no sentence of the paper says it.",
    "theory-predicts-layers": (
        "The rule that failed is not the paper's: it compares the modes of the token mean with the others, our rule "
        "looked at the largest |1 + λ| alone. The paper's comparison is dominance-predicts-layers."
    ),
    "steering-shows": "Judged in another form than the paper's, and at a third of its epochs.",
    "sharpening-helps": (
        "We called a sentence refuted that compares with another remedy, from runs beside the plain model, in a form "
        "that is not the paper's: a symmetric H with one scale for all eigenvalues, at four times the recipe's "
        "learning rate. Our own runs in the general basis gain accuracy. A mean over four settings counted the same "
        "models twice."
    ),
    "smoothing-helps": (
        "As for sharpening-helps; no model was smoothed in the general basis at all, and a sentence that says can "
        "asks for one setting."
    ),
    "asymmetry-falls": "The sentence is known from reviews, and its normalisation is not.",
    "bases-compared": (
        "A question of reviewers, not a sentence of the paper. Of the cost of the Gram form, part may be its one scale."
    ),
    "post-norm-fails-deep": (
        "Still undecided, for another reason. Failing was half of pre-norm's accuracy, judged beside a mean cosine "
        "that saturates; now it is no better than a linear probe, in float32. The first runs were short, in bfloat16, "
        "at an end of their rates."
    ),
    "deescalation-rescues": "Still undecided, with a rule of its own: a gain of two points. The runs are the same.",
    "pre-norm-diminishes": (
        "What was found holds, and is not what the sentence suggests: the MLP's share falls as much (stream-growth), "
        "and before training on noise attention's share need not fall. Smaller models than the sentence means."
    ),
}
"""Claim to why it has another verdict, or another rule."""

ALSO = """## Also wrong

- The largest scale of the runs was called that of the papers. It is the most that was run here: `full`.
- The mean cosine of deep post-norm stacks reads 1.00 while t_div falls over nine orders of magnitude; bfloat16 cannot
  hold such differences. Claims about depth are judged by log t_div in float32 and by what a model learns.
- `unsmooth explain` showed the Jacobian along the way as if it predicted. It is the integral of the measured change.
- The first version's ψ² model smooths; an option of ours said that it sharpens.
"""


def corrections_page(entries: Sequence[Entry]) -> str:
    """The page as Markdown."""
    now = {entry.claim.id: entry for entry in entries}
    rows = [
        [f"[{name}](README.md#{now[name].claim.number}-{name})", was, words.standing(now[name]), WHY[name]]
        for name, was in FIRST_EDITION.items()
        if name in now
    ]
    changed = sum(was != is_now for _, was, is_now, _ in rows)
    return f"""# What we got wrong before

The first edition of the ledger said confirmed or refuted of
{sum(was != "undecided" for was in FIRST_EDITION.values())} of {len(FIRST_EDITION)} claims, in our own words for the
papers' sentences. In the second, those words are kept for sentences that stand in an abstract, at the scale that they
state; other sentences are supported here or not supported here.
{changed} verdicts changed. What was measured did not.

{table(["claim", "was", "is", "why"], rows)}

{ALSO}"""
