r"""Admin (Liu et al. 2020, "Understanding the difficulty of training Transformers", arXiv 2004.08249).

.. math:: x \leftarrow \mathrm{LN}(\omega_i \odot x + f_i(x)), \qquad \omega_1 = 1, \quad
    \omega_{i+1}^2 = \mathrm{Var}(\omega_i x) + \mathrm{Var}\,f_i(x)

over the branches i of a post-norm model, two to a block, so that its stream starts as little dependent on the newest
branch as that of a pre-norm model. ω has one number per channel, all the same at the start, and is learned. The
variances are over all numbers of all real tokens in one pass over data; each ω is set before its branch is passed, as
in the official code (LiyuanLucasLiu/Transformer-Clinic, ``transformer_layer.py``), so that one pass does. Where the
norms have their weights at one, Var x = 1 and :math:`\omega_{i+1}^2 = 1 + \sum_{j \le i} \mathrm{Var}\,f_j`.

``unsmooth.remedies.calibrate(model, batch)`` is that pass, on data of yours. Until then ω is from a pass of random
tokens through the blocks alone (`start="random"`): independent tokens of variance one, of which attention makes less
than of real ones, which have more in common. Blocks that cannot be called by themselves (relative positions) start at
one. Both passes are in evaluation mode, where the official code has dropout. A plain checkpoint that is loaded later
leaves ω as it is: calibrate again.

Neutral at ``start="ones"``. Only for post-norm blocks. Causal: nothing looks across tokens. Cost: one multiplication
and one addition per branch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from unsmooth.errors import expected
from unsmooth.remedies.base import CausalForm, Edit, remedy
from unsmooth.remedies.branches import crossed
from unsmooth.remedies.calibrating import run_alone, runs_alone
from unsmooth.remedies.call import Call
from unsmooth.remedies.norms import are_dropped
from unsmooth.remedies.shaping import who_dropped_skip
from unsmooth.remedies.site import Site


@remedy
class Admin(Edit):
    """Weigh the stream by ω in front of each norm, ω from the variance of the branches below.

    Example:
        >>> import unsmooth
        >>> layer = nn.TransformerEncoderLayer(8, nhead=2, batch_first=True)
        >>> model = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
        >>> _ = unsmooth.apply(model, "admin")
        >>> omegas = [block.unsmooth.admin.omega[:, 0].tolist() for block in model.layers]
        >>> omegas[0][0], omegas[0] < omegas[1] < omegas[2]  # one in front, and larger with depth
        (1.0, True)
    """

    name = "admin"
    summary = "the stream is weighed by ω in front of each norm, ω from the variance of the branches below"
    paper = "Liu et al. 2020, arXiv 2004.08249"
    equation = "x ← LN(ω⊙x + f(x)), ω² = 1 + the variances of the branches below, at the start"
    neutral: ClassVar[Mapping[str, Any] | None] = {"start": "ones"}
    causal: ClassVar[CausalForm] = "unchanged"
    cost = "one multiplication and one addition per branch"
    options: ClassVar[Mapping[str, str]] = {
        "start": "'random' sets ω by random tokens when it is applied, 'ones' leaves it at one; "
        "unsmooth.remedies.calibrate(model, batch) sets it by data",
    }
    # Dropped norms would leave ω⊙x + f(x) to grow.
    needs_norms: ClassVar[bool] = True
    # Whoever takes the stream off the sum takes it once, and not ω times.
    weighs_skip: ClassVar[bool] = True

    def __init__(self, site: Site, *, start: Literal["random", "ones"] = "random") -> None:
        super().__init__(site)
        self.profiles = start == "random"
        self.omega = nn.Parameter(torch.ones(2, site.dim, **site.like_weights()))
        # In a profiling pass, what all edits of a stack share: the ω of the next branch.
        self.next: dict[str, float] | None = None

    @classmethod
    def refusal(cls, site: Site, options: Mapping[str, Any]) -> str | None:
        """Where no norm follows the addition, or one block is many layers."""
        if site.wiring.style != "post":
            where = "has its norms before the branches" if site.wiring.style == "pre" else "adds both branches at once"
            return f"it {where}, so no norm follows ω⊙x + f(x) and the stream would grow at every addition"
        if (reason := crossed(site, "and has no ω here")) is not None:
            return reason
        if site.host.depth({site.path: site.block}) > 1:
            return "it is called at every depth, so it cannot have an ω for each"
        other = who_dropped_skip(site)
        if other is not None:
            return f"{other} has dropped the way past its attention, which ω weighs"
        return "another remedy has dropped its norms" if are_dropped(site) else None

    @classmethod
    def arrange(cls, edits: Sequence[Edit], sites: Sequence[Site]) -> None:
        """Without data, random tokens have to do."""
        if all(isinstance(edit, Admin) and edit.profiles for edit in edits) and all(map(runs_alone, sites)):
            cls.calibrate(edits, lambda: run_alone(sites))

    @classmethod
    def calibrate(cls, edits: Sequence[Edit], run: Callable[[], object]) -> None:
        """Set each ω as a pass comes by."""
        shared = {"omega": 1.0}
        mine = [edit for edit in edits if isinstance(edit, Admin)]
        before = [edit.omega.detach().clone() for edit in mine]
        try:
            for edit in mine:
                edit.next = shared
            run()
        except BaseException:
            for edit, omega in zip(mine, before, strict=True):
                edit.omega.data.copy_(omega)
            raise
        finally:
            for edit in mine:
                edit.next = None

    def on_attention_sum(self, sum_BND: Tensor, call: Call) -> Tensor:
        """What ω adds to the stream that attention's branch was added to."""
        return self._more(0, call.stream, sum_BND, call)

    def on_mlp_sum(self, sum_BND: Tensor, call: Call) -> Tensor:
        """What ω adds to the stream that the MLP's branch was added to."""
        assert call.middle is not None, "noted for every edit of that sum"
        return self._more(1, call.middle, sum_BND, call)

    def _more(self, place: int, stream_BND: Tensor, sum_BND: Tensor, call: Call) -> Tensor:
        if self.next is not None:
            omega = self.next["omega"]
            with torch.no_grad():
                self.omega[place].fill_(omega)
                spread = omega**2 * _variance(stream_BND, call) + _variance(sum_BND - stream_BND, call)
                self.next["omega"] = _finite(float(spread.sqrt()))
        return ((self.omega[place] - 1.0) * stream_BND).to(sum_BND.dtype)

    def why_not_foldable(self) -> str | None:
        """The branch reads the stream as it is."""
        return "the stream that it weighs is also what the branch reads, so no weight of the block holds ω"

    def report(self) -> Mapping[str, float]:
        """The mean of ω in front of both norms."""
        mean = self.omega.detach().mean(dim=1)
        return {"mean omega of attention": float(mean[0]), "mean omega of the MLP": float(mean[1])}


def _finite(omega: float) -> float:
    if not math.isfinite(omega):
        hint = 'a batch and weights without NaN and inf, or start="ones"'
        raise expected("finite numbers in the pass that sets ω", f"ω = {omega}", hint)
    return omega


def _variance(x_BND: Tensor, call: Call) -> Tensor:
    """Over all numbers of all real tokens."""
    x = x_BND.to(torch.promote_types(x_BND.dtype, torch.float32))
    real = x.flatten() if call.real_BN is None else x[call.real_BN].flatten()
    return real.var(correction=0)
