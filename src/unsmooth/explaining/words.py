"""Verdicts in words: the reason, what it leaves out, and what would change it."""

from __future__ import annotations

import cmath
import math
from collections.abc import Sequence

from unsmooth.explaining.result import Growth, LayerFinding, Skill
from unsmooth.explaining.score import PERSISTENCE, VERDICTS, beats_persistence, best_tier, skill_of
from unsmooth.numbers import Precision, spoken
from unsmooth.spectra import Dominance


def reason(found: Dominance, known_rest: bool, ignored: Sequence[str], scale: float | None, place: str) -> str:
    """One sentence: who grows by how much, at which scale, and what was not looked at."""
    rest = "the fastest other mode" if known_rest else "the rest, were attention to average all tokens,"
    verb = {"smoothing": "outgrows", "sharpening": "is outgrown by"}.get(found.verdict, "grows as fast as")
    text = (
        f"The fastest mode of equal tokens grows by {spoken(found.mean_modulus, 3)} a layer and {verb} {rest} "
        f"at {spoken(found.rest_modulus, 3)}"
    )
    if found.verdict == "preserving":
        text = "Neither equal tokens nor differences between tokens grow"
    if found.verdict == "sharpening" and found.mode_cosine is not None:
        text += f", whose tokens have a mean cosine of {Precision(2)(found.mode_cosine)}"
    at = f" (norm folded in at σ = {spoken(scale, 3)})" if scale is not None else ""
    if scale is None and place == "pre":
        at = " (norm folded in at σ = 1, for want of data)"
    left_out = f"; leaves out {_listed(ignored)}" if ignored else ""
    return f"{text}{at}{left_out}."


def change(found: Dominance, known_rest: bool, flip: float | None, scale: float | None, place: str) -> str:
    """What would turn the verdict."""
    if found.verdict == "undecided":
        return "Any change of weights or attention decides it: both sides grow alike."
    if place == "post":
        note = " Neither the stream's scale nor the sign of the norm's weight matters: both sides go through the norm."
        return _change_of_eigenvalue(found, "of the layer's update of equal tokens, less 1,") + note
    if flip is None:
        return _change_of_eigenvalue(found) + _flip_note(found)
    if scale is None:
        return (
            f"Below σ = {spoken(flip, 3)} of the stream the token mean grows and the layer smooths, above it does not "
            f"(attention that averages all tokens)."
        )
    if (found.verdict == "smoothing") != (scale < flip):
        return _change_of_eigenvalue(found)  # measured attention decides, and not the averaging one behind `flip`
    side = "above" if scale < flip else "below"
    qualifier = ", were attention to average all tokens" if known_rest else ""
    now = f"where it now is {spoken(scale, 3)}{qualifier}"
    return f"A stream scaled to σ {side} {spoken(flip, 3)}, {now}; or a norm weight scaled so."


def _flip_note(found: Dominance) -> str:
    if found.verdict == "smoothing" and found.feature_eigenvalue.real >= 0.0:
        return " No scale of the stream alone does it: that eigenvalue has a positive real part."
    return ""


def _change_of_eigenvalue(found: Dominance, whose: str = "of the summed H") -> str:
    value = found.feature_eigenvalue
    if found.verdict == "smoothing":
        target = "into the unit disc around −1" if found.rest_modulus <= 1.0 else "below the rest's growth"
        return f"Moving the eigenvalue λ = {_spoken(value)} {whose} {target}."
    if found.verdict == "sharpening":
        return (
            f"Attention nearer to the average of all tokens, or an eigenvalue λ {whose} with |1 + λ| above "
            f"{spoken(found.rest_modulus, 3)}."
        )
    return f"An eigenvalue λ {whose} outside the unit disc around −1."


def _spoken(value: complex) -> str:
    if abs(value.imag) < 1e-6 * max(abs(value), 1e-30):
        return spoken(value.real, 3)
    modulus, phase = cmath.polar(value)
    turn = Precision(0)(math.degrees(phase))
    return f"{spoken(value.real, 3)}{spoken(value.imag, 3, signed=True)}i (modulus {spoken(modulus, 3)}, {turn}°)"


def sentence(
    name: str, layers: Sequence[LayerFinding], skills: Sequence[Skill], growth: Growth | None, broken: bool = False
) -> str:
    """The finding in one sentence: what was measured, what foretells it on this model, and only then the verdicts.

    Args:
        name: The model's name.
        layers: Their findings.
        skills: How well each tier foretells what was measured.
        growth: Growth over all layers.
        broken: Whether activations were NaN or Inf; then nothing that was measured is told.
    """
    counts = {verdict: sum(one.verdict == verdict for one in layers) for verdict in _ORDER}
    said = _listed([f"{count} {verdict}" for verdict, count in counts.items() if count])
    changes = [one.measured if one.logit_change is None else one.logit_change for one in layers]
    measured = [change for change in changes if change is not None and math.isfinite(change)]
    if broken or not measured:
        why = "activations were NaN or Inf, so nothing measured is told; " if broken else ""
        return f"{name}: {why}of {len(layers)} layers taken alone, {said}{'' if broken else ' (weights only)'}."
    rises, falls = sum(value > 0 for value in measured), sum(value < 0 for value in measured)
    text = f"{name}: measured, t_sim rises over {rises} and falls over {falls} of {len(layers)} layers"
    if told := lead(skills):
        text += f"; {told}"
    if verdicts_hold(skills):
        text += f"; taken alone, of {len(layers)} layers {said}"
    if growth is not None:
        way = "outgrows" if growth.margin > 0 else "is outgrown by"
        text += f"; over the whole stack a change of the token mean {way} differences between tokens"
    return text + "."


def lead(skills: Sequence[Skill]) -> str:
    """What foretells this model best, what it knew, and how well beside persistence; empty without data."""
    other, best = skill_of(skills, PERSISTENCE), best_tier(skills)
    if other is None:
        return ""
    if best is None:
        return f"no tier foretells the directions better than a coin and persistence, right in {other.accuracy:.0%}"
    return (
        f"{best.name}, which knows {best.knows}, foretells {best.accuracy:.0%} of the directions"
        f"{_of_variance(best)}; persistence {other.accuracy:.0%}{_of_variance(other)}"
    )


def _of_variance(one: Skill) -> str:
    if one.explained is None:
        return ""
    return f" and {one.explained:.0%} of the variance" if one.explained > 0 else " and none of the variance"


def verdicts_hold(skills: Sequence[Skill]) -> bool:
    """Whether verdicts may be shown: nothing was measured, or they beat persistence and a coin on this model."""
    found = skill_of(skills, VERDICTS)
    return found is None or beats_persistence(found, skills)


def verdicts_judged(skills: Sequence[Skill]) -> str:
    """How well verdicts tell what the layers of this model did; empty where that was not measured."""
    found, other = skill_of(skills, VERDICTS), skill_of(skills, PERSISTENCE)
    if found is None or other is None:
        return ""
    text = (
        f"Read as forecasts of what each layer did, verdicts from eigenvalues are right in {found.accuracy:.0%} of "
        f"{found.layers} layers{_balanced(found)}; persistence in {other.accuracy:.0%}{_balanced(other)}."
    )
    if not verdicts_hold(skills):
        text += " They say what a layer repeated for ever would do, not what it did here, and are not drawn."
    return text


def _balanced(one: Skill) -> str:
    return "" if one.balanced_accuracy is None else f" (balanced {one.balanced_accuracy:.0%})"


_ORDER = ("smoothing", "sharpening", "preserving", "undecided")


def _listed(words: Sequence[str]) -> str:
    if len(words) < 2:
        return "".join(words)
    return f"{', '.join(words[:-1])} and {words[-1]}"
