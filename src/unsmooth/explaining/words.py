"""Verdicts in words: the reason, what it leaves out, and what would change it."""

from __future__ import annotations

import cmath
import math
from collections.abc import Sequence

from unsmooth.explaining.result import LayerFinding, RuleScore, Stack
from unsmooth.spectra import Dominance


def reason(found: Dominance, known_rest: bool, ignored: Sequence[str], scale: float | None, place: str) -> str:
    """One sentence: who grows by how much, at which scale, and what was not looked at."""
    rest = "the fastest other mode" if known_rest else "the rest, were attention to average all tokens,"
    verb = {"smoothing": "outgrows", "sharpening": "is outgrown by"}.get(found.verdict, "grows as fast as")
    text = (
        f"The fastest mode of equal tokens grows by {found.mean_modulus:.3g} a layer and {verb} {rest} "
        f"at {found.rest_modulus:.3g}"
    )
    if found.verdict == "preserving":
        text = "Neither equal tokens nor differences between tokens grow"
    if found.verdict == "sharpening" and found.mode_cosine is not None:
        text += f", whose tokens have a mean cosine of {found.mode_cosine:.2f}".replace("-", "−")
    at = f" (norm folded in at σ = {scale:.3g})" if scale is not None else ""
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
            f"Below σ = {flip:.3g} of the stream the token mean grows and the layer smooths, above it does not "
            f"(attention that averages all tokens)."
        )
    if (found.verdict == "smoothing") != (scale < flip):
        return _change_of_eigenvalue(found)  # measured attention decides, and not the averaging one behind `flip`
    side = "above" if scale < flip else "below"
    qualifier = ", were attention to average all tokens" if known_rest else ""
    return (
        f"A stream scaled to σ {side} {flip:.3g}, where it now is {scale:.3g}{qualifier}; or a norm weight scaled so."
    )


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
            f"{found.rest_modulus:.3g}."
        )
    return f"An eigenvalue λ {whose} outside the unit disc around −1."


def _spoken(value: complex) -> str:
    if abs(value.imag) < 1e-6 * max(abs(value), 1e-30):
        return f"{value.real:.3g}".replace("-", "−")
    modulus, phase = cmath.polar(value)
    return f"{value.real:.3g}{value.imag:+.3g}i (modulus {modulus:.3g}, {math.degrees(phase):.0f}°)".replace("-", "−")


def sentence(name: str, layers: Sequence[LayerFinding], scores: Sequence[RuleScore], stack: Stack | None) -> str:
    """The finding in one sentence."""
    counts = {verdict: sum(one.verdict == verdict for one in layers) for verdict in _ORDER}
    said = _listed([f"{count} {verdict}" for verdict, count in counts.items() if count])
    text = f"{name}: of {len(layers)} layers taken alone, {said}"
    measured = [one.measured for one in layers if one.measured is not None]
    if not measured:
        return f"{text} (weights only)."
    rises = sum(value > 0 for value in measured)
    text += f"; measured, t_sim rises over {rises} and falls over {len(measured) - rises}"
    right = {one.rule: one.accuracy for one in scores}
    if "eigenvalue" in right and "jacobian" in right:
        text += (
            f"; the plain eigenvalue rule gets {right['eigenvalue']:.0%} of directions right, the blocks' Jacobians "
            f"{right['jacobian']:.0%}, always guessing the commoner one {scores[0].majority:.0%}"
        )
    if stack is not None:
        way = "outgrows" if stack.margin > 0 else "is outgrown by"
        text += f"; over the whole stack a change of the token mean {way} differences between tokens"
    return text + "."


_ORDER = ("smoothing", "sharpening", "preserving", "undecided")


def _listed(words: Sequence[str]) -> str:
    if len(words) < 2:
        return "".join(words)
    return f"{', '.join(words[:-1])} and {words[-1]}"
