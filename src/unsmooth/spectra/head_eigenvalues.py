"""Eigenvalues of every head's value-output product, through a matrix of the head's own size."""

from __future__ import annotations

import torch
from torch import Tensor

from unsmooth.spectra._checks import check_heads
from unsmooth.spectra._lapack import eigenvalues_of


def head_eigenvalues(w_v_HDK: Tensor, w_o_HKD: Tensor) -> Tensor:
    r"""Eigenvalues of H_h = w_v[h] w_o[h] that are not zero for its shape alone.

    H_h is d×d of rank d_h at most. The nonzero eigenvalues of a product are those of the product the other way
    round, w_o[h] w_v[h], which is d_h×d_h: no matrix of the model's width is ever decomposed. H = W_V W_O is the
    matrix of P1 (arXiv 2401.04301), here for each head.

    Args:
        w_v_HDK: Value weights (heads, d, d_h), tokens as rows: values are x @ w_v[h].
        w_o_HKD: Output weights (heads, d_h, d).

    Returns:
        Complex (heads, min(d, d_h)) in float64 precision, in no order. H_h has d − d_h more eigenvalues, all zero;
        where d_h >= d, all of its eigenvalues are here and none is added.

    Example:
        >>> w_v = torch.tensor([[[1.0], [2.0]]])
        >>> w_o = torch.tensor([[[3.0, -1.0]]])
        >>> head_eigenvalues(w_v, w_o)  # of [[3, -1], [6, -2]]: 1·3 + 2·(-1), and 0
        tensor([[1.+0.j]], dtype=torch.complex128)
    """
    check_heads(w_v_HDK, w_o_HKD)
    other_way_round = w_v_HDK.shape[2] <= w_v_HDK.shape[1]
    # A head at a time: its copy in float64 then stays near the processor. Float32 products would be off by 2e-5.
    small = [
        w_o.double() @ w_v.double() if other_way_round else w_v.double() @ w_o.double()
        for w_v, w_o in zip(w_v_HDK.detach().unbind(), w_o_HKD.detach().unbind(), strict=True)
    ]
    return eigenvalues_of(torch.stack(small)).to(w_v_HDK.device)
