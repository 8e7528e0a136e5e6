"""How much attention and MLP add to the stream, layer by layer."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from unsmooth.errors import expected
from unsmooth.models.anatomy import Anatomy, Watch, find_anatomy
from unsmooth.scanning.calling import as_inputs, call, quiet_evaluation, select_tokens, transformers_core
from unsmooth.scanning.data import RawBatch, to_device

BRANCHES = ("attention", "mlp")


def branch_shares(model: nn.Module, batches: Iterable[RawBatch]) -> list[dict[str, float]]:
    r"""Norm of each branch's output over the norm of the stream it is added to, mean over all tokens but padding.

    .. math:: \frac1n \sum_i \frac{\lVert f(x)_i \rVert}{\lVert x_i \rVert}

    with x the stream in front of the addition: in a pre-norm block x + f(LN x), in a post-norm block LN(x + f(x)). A
    remedy that scales the branch is seen, one that scales the stream itself is not. The model is called in evaluation
    mode, where it is.

    Args:
        model: Any model whose blocks are known and show both branches.
        batches: What it is called with, as `unsmooth.scan` takes it; at least one.

    Returns:
        One entry {"attention": …, "mlp": …} per layer, the first layer first.

    Example:
        >>> from unsmooth.networks import ViT, ViTConfig
        >>> model = ViT(ViTConfig(depth=2, dim=8, heads=2, hidden=16, image=8, patch=4, classes=5))
        >>> _ = nn.init.zeros_(model.stack.blocks[0].attention.out.weight)
        >>> [sorted(layer) for layer in branch_shares(model, [torch.ones(2, 3, 8, 8)])]
        [['attention', 'mlp'], ['attention', 'mlp']]
        >>> branch_shares(model, [torch.ones(2, 3, 8, 8)])[0]["attention"]
        0.0
    """
    anatomy = find_anatomy(model)
    if missing := [branch for branch in BRANCHES if branch not in anatomy.sites]:
        known = f"blocks that show their {' and '.join(missing)} branch"
        raise expected(known, f"blocks of {anatomy.host.name}", "one of unsmooth.networks")
    # Where attention and MLP run side by side there is nothing between them, and both add to what enters the block.
    sites = [site for site in ("residual", "attention", "mid", "mlp") if site in anatomy.sites]
    core = transformers_core(model, anatomy)
    entry = model if core is None else core
    device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
    shares = _Shares()
    with quiet_evaluation(model), Anatomy(entry, anatomy.host, anatomy.blocks).watch(shares, sites) as watch:
        shares.watch = watch
        for batch in batches:
            inputs = to_device(as_inputs(batch, core), device)
            shares.real_BN = select_tokens(inputs, "all", frozenset(), 0).real_BN
            call(entry, inputs)
    return shares.means()


@dataclass
class _Shares:
    """Adds up shares while the blocks run."""

    watch: Watch | None = None
    real_BN: Tensor | None = None
    _stream: Tensor | None = None
    _sums: dict[tuple[int, str], list[float]] = field(default_factory=dict)

    def __call__(self, layer: int, site: str, tensor: Tensor) -> None:
        """A branch is compared with the stream seen last: what entered the block, or what is between its branches."""
        norms_BN = tensor.float().norm(dim=-1)
        if site not in BRANCHES:
            self._stream = norms_BN
            return
        assert self._stream is not None, "what enters the first block is seen before its branches"
        share_BN = norms_BN / self._stream
        real = self._real()
        chosen = share_BN if real is None else share_BN[real.to(share_BN.device)]
        total = self._sums.setdefault((layer, site), [0.0, 0.0])
        total[0] += float(chosen.double().sum())
        total[1] += chosen.numel()

    def _real(self) -> Tensor | None:
        """The batch's own mask, else the one that the model handed to its blocks."""
        handed = None if self.watch is None else self.watch.real_tokens_BN
        return handed if self.real_BN is None else self.real_BN

    def means(self) -> list[dict[str, float]]:
        """Layer by layer."""
        layers = sorted({layer for layer, _ in self._sums})
        if not layers:
            raise expected("a batch at least", "none", "a list of tensors, as the model takes them")
        return [{branch: _mean(*self._sums[layer, branch]) for branch in BRANCHES} for layer in layers]


def _mean(total: float, count: float) -> float:
    if count == 0:
        raise expected("a token that is not padding", "none", "other batches")
    return total / count
