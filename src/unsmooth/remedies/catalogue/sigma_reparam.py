r"""σReparam (Zhai et al. 2023, arXiv 2303.06296): the largest singular value of every weight is a parameter of its own.

.. math:: \hat W = \frac{\gamma}{\sigma(W)} W

for every linear map of a block, with σ(W) the largest singular value and γ learned, one number per matrix. What bounds
σ of queries and keys bounds the logits, so that the entropy of attention cannot collapse. σ is followed by one power
step in every training pass, from vectors that are kept: u and v get no gradient, W gets one through
:math:`\sigma = v^\top W u`. In evaluation a step is taken, but not kept.

``variant="paper"`` starts at γ = 1, ``variant="official"`` at γ = σ(W), as the authors' code (apple/ml-sigma-reparam)
does, so that a model starts as it was. There and here matrices that a host keeps as one (queries, keys and values side
by side) have one γ. That code also starts weights anew and can drop the norms; here weights stay as they are, and
``rezero`` or ``b2t`` drop norms. Undoing it leaves W, without γ.

Neutral at ``variant="official"``. Causal: nothing looks across tokens. Cost in training: two matrix-vector products for
all weights of one shape together, and one product, one sum and one scaling per weight; none once folded. Under FSDP2
(shard block by block) weights are gathered one by one for the step. With gradient checkpointing, run the backward pass
before the next forward pass: blocks that run again read the u and v of the last step, so that gradients of an earlier
pass are a little off.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from unsmooth.errors import expected
from unsmooth.models.stored import gathered
from unsmooth.remedies.base import CausalForm, Edit, remedy
from unsmooth.remedies.block import HOME
from unsmooth.remedies.derived import is_derived, read_plainly, read_through
from unsmooth.remedies.leading import ExactBuffers, leading, power_step
from unsmooth.remedies.site import Site, is_conv1d
from unsmooth.remedies.together import copy_all, grouped


@remedy
class SigmaReparam(Edit):
    """Divide every weight of a block by its largest singular value, and multiply it by a learned number.

    Example:
        >>> import unsmooth
        >>> layer = nn.TransformerEncoderLayer(4, nhead=2, batch_first=True)
        >>> model = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
        >>> _ = unsmooth.apply(model, "sigma_reparam")
        >>> round(torch.linalg.matrix_norm(model.layers[0].linear1.weight, ord=2).item(), 5)
        1.0
    """

    name = "sigma_reparam"
    summary = "weights are divided by their largest singular value and multiplied by a learned number"
    paper = "Zhai et al. 2023, arXiv 2303.06296"
    equation = "W ← (γ/σ(W))·W for every linear map, γ learned"
    neutral: ClassVar[Mapping[str, Any] | None] = {"variant": "official"}
    causal: ClassVar[CausalForm] = "unchanged"
    folds = "the weights as they are read become the block's own"
    fold_order = 0
    cost = "a few small kernels for all layers together, and three per weight; none once folded"
    options: ClassVar[Mapping[str, str]] = {
        "variant": "where γ starts: 'paper' at 1, 'official' at σ(W), as the authors' code does",
    }

    def __init__(self, site: Site, *, variant: Literal["paper", "official"] = "paper") -> None:
        super().__init__(site)
        self.weights = nn.ModuleDict(
            {place.key: Reparametrised(place, variant == "official") for place in _places(site.block)}
        )

    @classmethod
    def refusal(cls, site: Site, options: Mapping[str, Any]) -> str | None:
        """Weights that are computed already, zero, or those of several maps."""
        if any(is_derived(module) for module in site.block.modules()):
            return "another remedy computes some of its weights already"
        if site.wiring.experts:
            return "its experts have their weights in one tensor, and each would need a σ of its own"
        zero = next((place.path for place in _places(site.block) if not place.raw().any()), None)
        return None if zero is None else f"the weight of {zero!r} is zero, and cannot be divided by its size"

    @classmethod
    def prepare(cls, edits: Sequence[Edit]) -> None:
        """One power step in training, for all weights of one shape together."""
        due = [
            one
            for edit in edits
            if isinstance(edit, SigmaReparam) and edit.training
            for one in edit.weights.values()
            if isinstance(one, Reparametrised)
        ]
        for together in grouped(due, Reparametrised.alike, lambda one: one.place.raw().numel()):
            _step(together)

    def alters(self, site: Site) -> Iterable[nn.Module]:
        """Every linear map: read by two blocks, it would have a γ of each, and only one can count."""
        return [one.place.module for one in self._each()]

    def install(self, site: Site) -> None:
        """Have every weight read through its factor."""
        for one in self._each():
            read_through(one.place.module, one.place.name, one.weight)

    def remove(self, site: Site) -> None:
        """Read the weights as they are."""
        for one in self._each():
            read_plainly(one.place.module)

    @torch.no_grad()
    def fold(self, site: Site) -> None:
        """Write down what is read."""
        for one in self._each():
            raw = one.place.raw()
            if isinstance(raw, DTensor):
                raise expected("whole weights", "sharded ones", "unsmooth.fold on a model that is not sharded")
            raw.copy_(one.weight())
            read_plainly(one.place.module)

    def folds_into(self, site: Site) -> Iterable[nn.Parameter]:
        """Every weight that is read through its factor."""
        return site.weights_at(*(f"{one.place.path}.{one.place.name}" for one in self._each()))

    def adopt(self, state: dict[str, Any], prefix: str, block_prefix: str, site: Site) -> None:
        """γ, u and v begin anew, from the weights of the checkpoint."""
        for one in self._each():
            found = state.get(f"{block_prefix}{one.place.path}.{one.place.name}")
            if isinstance(found, Tensor) and not isinstance(found, DTensor) and found.shape == one.place.raw().shape:
                one.begin(found.detach().to(one.place.raw()))
        super().adopt(state, prefix, block_prefix, site)

    def report(self) -> Mapping[str, float]:
        """γ of every weight."""
        return {f"gamma of {one.place.path}": float(one.rest + gathered(one.gamma.detach())) for one in self._each()}

    def _each(self) -> Iterator[Reparametrised]:
        return (one for one in self.weights.values() if isinstance(one, Reparametrised))


class _Place:
    """Where a block keeps a weight.

    A plain object, so that the module it points to is not registered a second time, and so that the copy in a copied
    model points into that model.
    """

    def __init__(self, module: nn.Module, path: str, name: str) -> None:
        self.module, self.path, self.name = module, path, name
        self.key = (path if name == "weight" else f"{path}.{name}").replace(".", "_")

    def raw(self) -> Tensor:
        """The parameter itself, which is not what readers of the module get."""
        found = self.module._parameters[self.name]
        assert found is not None, "only made for weights that are there"
        return found


def _places(block: nn.Module) -> list[_Place]:
    """Every linear map of the block, and what torch's attention keeps without one; no remedy's."""
    found = []
    for path, module in block.named_modules():
        if HOME in path.split("."):
            continue
        if isinstance(module, nn.Linear) or is_conv1d(module):
            found.append(_Place(module, path, "weight"))
        elif isinstance(module, nn.MultiheadAttention):
            found.append(_Place(module, path, "in_proj_weight"))
    return found


class Reparametrised(ExactBuffers):
    """One weight: γ, and the singular vectors u and v of its largest singular value.

    Args:
        place: Where the weight is.
        keeps_size: Whether γ starts at σ(W) rather than at 1.
    """

    left: Tensor
    right: Tensor
    rest: Tensor

    def __init__(self, place: _Place, keeps_size: bool) -> None:
        super().__init__()
        self.place, self.keeps_size = place, keeps_size
        raw = place.raw().detach()
        exact = torch.promote_types(raw.dtype, torch.float32)
        # Not a scalar: FSDP shards parameters, and a scalar has nothing to shard.
        self.gamma = nn.Parameter(torch.ones(1, dtype=raw.dtype, device=raw.device))
        self.register_buffer("left", raw.new_zeros(raw.shape[0], dtype=exact))
        self.register_buffer("right", raw.new_zeros(raw.shape[1], dtype=exact))
        # What a γ in half precision cannot hold of σ where it starts, so that γ/σ is one there too.
        self.register_buffer("rest", raw.new_zeros(1, dtype=exact))
        self.begin(raw)

    @torch.no_grad()
    def begin(self, raw: Tensor) -> None:
        """Start from the singular vectors of `raw`, and γ at σ or at 1."""
        right_D, _ = leading(raw)
        left_LM, right_LD, _ = power_step(raw.to(right_D.dtype).unsqueeze(0), right_D.unsqueeze(0))
        copy_all([self.left, self.right], [left_LM[0], right_LD[0]])
        # Worked out as it is in evaluation, so that γ/σ is 1 to the bit.
        size = self._size(raw, *self._ahead(raw)) if self.keeps_size else torch.ones_like(self.rest[0])
        self.gamma.fill_(size)
        self.rest.fill_(size - size.to(self.gamma.dtype))

    def alike(self) -> Any:
        """What weights that are stacked must share; sharded ones are gathered one by one."""
        raw = self.place.raw()
        return raw.shape, raw.dtype, raw.device, id(self) if isinstance(raw, DTensor) else None

    def weight(self) -> Tensor:
        """(γ/σ)W, in which gradients flow into both, also by way of σ."""
        raw = self.place.raw()
        if isinstance(raw, DTensor):  # FSDP2 looks for its shard; where the weight is used it has gathered it
            return raw
        # Copies: another pass may step before the gradient of this one is due.
        ends = (self.left.clone(), self.right.clone()) if self.training else self._ahead(raw.detach())
        size = self._size(raw, *ends)
        return raw * ((self.rest + self.gamma) / size).to(raw.dtype)

    def _ahead(self, raw: Tensor) -> tuple[Tensor, Tensor]:
        left_LM, right_LD, _ = power_step(raw.to(self.right.dtype).unsqueeze(0), self.right.unsqueeze(0))
        return left_LM[0], right_LD[0]

    @staticmethod
    def _size(raw: Tensor, left_M: Tensor, right_D: Tensor) -> Tensor:
        with torch.autocast(raw.device.type, enabled=False):
            return torch.dot(left_M, raw.to(left_M.dtype) @ right_D)


@torch.no_grad()
def _step(together: Sequence[Reparametrised]) -> None:
    dtype = together[0].right.dtype
    raw_LMD = torch.stack([gathered(one.place.raw().detach()) for one in together]).to(dtype)
    left_LM, right_LD, _ = power_step(raw_LMD, torch.stack([one.right for one in together]))
    places = [one.left for one in together] + [one.right for one in together]
    copy_all(places, [*left_LM.unbind(), *right_LD.unbind()])
