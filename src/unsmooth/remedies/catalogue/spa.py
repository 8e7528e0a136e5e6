r"""Signal-preserving attention, U-SPA and E-SPA (He et al. 2023, arXiv 2302.10322): maps made for a wanted similarity.

.. math:: A = D\,\mathrm{softmax}(Q K^\top / \sqrt{d} + \log P), \; D P = L_l L_{l-1}^{-1}, \; L_l L_l^\top = \Sigma_l

with P of rows that sum to one and D diagonal. While queries are zero, attention without a way past it takes tokens of
the inner products :math:`\Sigma_{l-1}` to those of :math:`\Sigma_l`, as :math:`A \Sigma_{l-1} A^\top = \Sigma_l`:
``kind="uniform"`` has :math:`\Sigma_l = (1-\rho_l) I + \rho_l \mathbf{1}\mathbf{1}^\top`, ``kind="exponential"``
:math:`(\Sigma_l)_{ij} = e^{-\gamma_l |i-j|}`. ρ must grow and γ fall with depth, or entries would be negative. Here ρ,
or :math:`e^{-\gamma}`, goes from 0 (tokens that have nothing in common) linearly to `last`; the schedule and the
default of `last` are ours. Mode map: triangular maps have their diagonal for eigenvalues, 1 for the first token and
for the others the ratio of the diagonals of both factors, at most 1.

``init="paper"`` starts from scratch: queries zero, values and output orthogonal; ``skip="drop"`` takes away the way
past attention, as the paper does. Norms stay; their place is another remedy's matter. P and D are not learned. What a
host adds to its logits besides (Transformer-XL's u and v, which all layers share) stays as it is, and the start is the
paper's where that is zero, as it is before training.

No neutral setting: no ρ gives back plain attention. Causal only, as the factors are triangular; a token's place counts
the real tokens of its sequence, those in the key/value cache included. Where attention is held to a window, that gets
what P gives to the whole row. Refused where a memory of earlier segments is seen (Transformer-XL): where a text began
before them is not known. Cost: attention adds a bias, which keeps torch from its fastest kernel; in bfloat16 the bias
is rounded as logits are. Where blocks are compiled one by one, each is by itself, as its map is another:
``torch._dynamo.config.recompile_limit`` has to allow as many.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch._C._functorch import is_functorch_wrapped_tensor

from unsmooth.errors import expected
from unsmooth.remedies.base import CausalForm, remedy
from unsmooth.remedies.call import Call
from unsmooth.remedies.derived import is_derived
from unsmooth.remedies.mixing import Mix
from unsmooth.remedies.queries import queries_and_keys, query_bias
from unsmooth.remedies.redrawing import Redrawing
from unsmooth.remedies.segments import remembers_segments
from unsmooth.remedies.shaping import no_way_past
from unsmooth.remedies.site import Site
from unsmooth.spec import Range

# Tokens of a map that is kept: a larger one takes megabytes in every block, and no share of the time that counts.
_MOST_KEPT = 512


@remedy
class SignalPreserving(Redrawing):
    """Add log P to the logits, and multiply what each token gets by its entry of D."""

    name = "spa"
    summary = "attention starts as maps that give the tokens of each layer a chosen similarity"
    paper = "He et al. 2023, arXiv 2302.10322"
    equation = "A = D·softmax(QKᵀ/√d + log P), DP = L_l·L_{l−1}⁻¹, LLᵀ = Σ"
    causal: ClassVar[CausalForm] = "masked"
    cost = "a bias on the logits of every block, and one multiplication"
    options: ClassVar[Mapping[str, str]] = {
        "kind": "'uniform' (U-SPA: all tokens equally alike) or 'exponential' (E-SPA: near ones more)",
        "last": "similarity of neighbours after the last layer, above 0 and below 1: ρ, or e^-γ",
        "init": "'paper' starts anew (queries zero, V and O orthogonal), 'keep' leaves the weights alone",
        "skip": "'keep', or 'drop' the way past attention, as the paper does",
    }

    def __init__(
        self,
        site: Site,
        *,
        kind: Literal["uniform", "exponential"] = "uniform",
        last: Annotated[float, Range(0.01, 0.9999)] = 0.8,
        init: Literal["paper", "keep"] = "paper",
        skip: Literal["keep", "drop"] = "keep",
    ) -> None:
        super().__init__(site, draws=init == "paper")
        self.kind, self.starts_anew, self.drops_skip = kind, init == "paper", skip == "drop"
        step = last / site.depth
        self.before, self.after = step * site.index, step * (site.index + 1)
        self._kept: tuple[tuple[int, torch.device], tuple[Tensor, Tensor]] | None = None

    @classmethod
    def refusal(cls, site: Site, options: Mapping[str, Any]) -> str | None:
        """Where attention is not causal, sees tokens whose place is not known, or has no weights to start anew."""
        if site.causal is False:
            return "its attention is not causal, and the maps are products of triangular factors"
        if (reason := remembers_segments(site)) is not None:
            return reason
        if options.get("init") == "paper":
            if any(is_derived(module) for module in site.block.modules()):
                return 'another remedy computes its weights, so there are none to start anew; init="keep" works'
            if (reason := site.why_not_written()) is not None:
                return f'{reason}; init="keep" works'
            if queries_and_keys(site) is None:
                return 'the weights of its queries are not known, so they cannot be made zero; init="keep" works'
        return no_way_past(site, options)

    @classmethod
    def keeps_to_map(cls) -> bool:
        """Its maps are of places that are counted from where a row, or a packed sequence, begins."""
        return False

    def places(self) -> tuple[str, ...]:
        """The sum with the stream only where the stream is taken off."""
        return ("on_mixing", "on_attention_sum") if self.drops_skip else ("on_mixing",)

    @torch.no_grad()
    def install(self, site: Site) -> None:
        """Start queries at zero, values and output orthogonal."""
        if self.starts_anew:
            weights = _weights(site)
            self.keep(weights)
            value_DKE, output_FD, *queries = weights
            value_DKE.copy_(_orthogonal(value_DKE))
            output_FD.copy_(_orthogonal(output_FD))
            for weight in queries:
                weight.zero_()

    def remove(self, site: Site) -> None:
        """Put the weights back."""
        if self.starts_anew:
            self.give_back(_weights(site))

    def on_mixing(self, mix: Mix, call: Call) -> Tensor:
        """D·softmax(logits + log P)·V."""
        if not call.causal:
            raise expected("causal attention for spa", "a call in which tokens see later ones", "is_causal=True")
        bias_BNM, rows_BN1 = self._whole_map(mix) if _is_whole(mix, call) else self._map(*_places(mix, call))
        mixed = mix(bias=bias_BNM[:, None])
        return mixed * rows_BN1[:, None].to(mixed.dtype)

    def _map(self, query_BN: Tensor, key_BM: Tensor, tokens: int) -> tuple[Tensor, Tensor]:
        """The logarithm of P, and D, between places."""
        query_BN1, key_B1M = query_BN.clamp(min=0)[:, :, None], key_BM.clamp(min=0)[:, None, :]
        wanted = uniform_map if self.kind == "uniform" else exponential_map
        bias_BNM, rows_BN1 = wanted(self.before, self.after, tokens, query_BN1, key_B1M)
        # What comes later is hidden; its bias need only be finite.
        return torch.where(query_BN1 >= key_B1M, bias_BNM, 0.0), rows_BN1

    def _whole_map(self, mix: Mix) -> tuple[Tensor, Tensor]:
        """The same of one sequence without padding, kept for the next call: it is made of some thirty small kernels."""
        tokens, device = mix.query.shape[2], mix.query.device
        if self._kept is not None and self._kept[0] == (tokens, device):
            return self._kept[1]
        place_1N = torch.arange(tokens, device=device)[None]
        found = self._map(place_1N, place_1N, tokens)
        if _lasts(found[0]):
            self._kept = (tokens, device), found
        return found

    def on_attention_sum(self, sum_BND: Tensor, call: Call) -> Tensor:
        """Take off the stream that went past attention."""
        return -call.stream

    def report(self) -> Mapping[str, float]:
        """The similarity it is made for."""
        return {"similarity after it": self.after}


def uniform_map(before: float, after: float, tokens: int, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
    r"""U-SPA between places from 0 to below `tokens`: log A, and the sums of A's rows, in double.

    Both factors have columns of equal entries below the diagonal, so there A_ij = f_j + g_i.

    Args:
        before: ρ of the layer before.
        after: ρ of this one, which is larger.
        tokens: How many places there are.
        query: Places of queries, broadcastable with `key`.
        key: Places of keys.

    Example:
        >>> bias, rows = uniform_map(0.0, 0.5, 2, torch.tensor([[1]]), torch.tensor([[0, 1]]))
        >>> bias.exp(), rows  # the last row of the Cholesky factor of [[1, 0.5], [0.5, 1]]
        (tensor([[0.5000, 0.8660]], dtype=torch.float64), tensor([[1.3660]], dtype=torch.float64))
    """
    place = torch.arange(tokens, dtype=torch.float64, device=query.device)
    old = ((1 - before) * (1 + place * before) / (1 + (place - 1) * before)).sqrt()
    new = ((1 - after) * (1 + place * after) / (1 + (place - 1) * after)).sqrt()
    below = (1 - after) * after / (1 + (place - 1) * after) / new
    predicted = before / (1 + (place - 1) * before) / old
    summed = (below * predicted).cumsum(0)
    by_key, by_query = below / old + summed, below * predicted - summed - new * predicted
    diagonal = new / old
    rows = by_key.cumsum(0) - by_key + place * by_query + diagonal
    off = (by_key[key] + by_query[query]).clamp(min=1e-30)
    return torch.where(query == key, diagonal[query], off).log(), rows[query]


def exponential_map(before: float, after: float, tokens: int, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
    r"""The same of E-SPA, with :math:`e^{-\gamma}` before and after: factors of an autoregressive process.

    .. math:: A_{ij} = \tfrac{a}{b} (r - s)\, r^{i-j-1}, \; A_{ii} = \tfrac{a}{b}, \; a^2 = 1 - r^2, \; b^2 = 1 - s^2

    with s before and r after, but for the first column: :math:`A_{i0} = r^{i-1}(r - s a / b)` and :math:`A_{00} = 1`.

    >>> bias, rows = exponential_map(0.0, 0.5, 2, torch.tensor([[1]]), torch.tensor([[0, 1]]))
    >>> bias.exp(), rows
    (tensor([[0.5000, 0.8660]], dtype=torch.float64), tensor([[1.3660]], dtype=torch.float64))
    """
    ratio = math.sqrt((1 - after**2) / (1 - before**2))
    step, first = ratio * (after - before), after - before * ratio
    far = (query - key - 1).clamp(min=0).double() * math.log(after)  # as logarithms, which do not vanish far away
    off = far + math.log(step) + (key == 0).double() * math.log(first / step)
    diagonal = (query > 0).double() * math.log(ratio)
    reach = after ** (query - 1).clamp(min=0).double()
    rows = ratio + step * (1 - reach) / (1 - after) + reach * first
    return torch.where(query == key, diagonal, off), rows.where(query > 0, 1.0)


def _is_whole(mix: Mix, call: Call) -> bool:
    """Whether places are the same in every sequence, and all in this call. A compiler makes one kernel of the map."""
    plain = call.memory is None and call.real_BN is None and call.starts_BN is None
    return plain and mix.key.shape[2] == mix.query.shape[2] and not torch.compiler.is_dynamo_compiling()


def _lasts(map_1NN: Tensor) -> bool:
    """Whether a map may be kept: it is small, and no tensor that is good for this call alone."""
    captured = map_1NN.is_cuda and torch.cuda.is_current_stream_capturing()
    passing = captured or map_1NN.is_inference() or is_functorch_wrapped_tensor(map_1NN)
    return map_1NN.shape[-1] <= _MOST_KEPT and type(map_1NN) is Tensor and not passing


def _places(mix: Mix, call: Call) -> tuple[Tensor, Tensor, int]:
    """Places of queries and keys in their sequence, -1 for padding before it, and a bound on how many there are."""
    tokens, keys = mix.query.shape[2], mix.key.shape[2]
    if call.memory is None and keys != tokens:
        got = f"{keys - tokens} keys of tokens that are not in this call"
        raise expected("attention over the tokens of a call, or a key/value cache", got, "a model without a memory")
    if call.real_BN is None:
        rows = 1 if call.memory is None and call.starts_BN is None else mix.query.shape[0]
        place_BN = torch.arange(tokens, device=mix.query.device).expand(rows, tokens)
    else:
        place_BN = call.real_BN.long().cumsum(dim=1) - 1
    past = None if call.memory is None else call.memory.read("spa.places")
    begun = torch.zeros_like(place_BN) if past is None else (past[:, -1:] + 1).expand_as(place_BN)
    if call.starts_BN is not None:
        begun = torch.where(call.starts_BN.cummax(dim=1).values, 0, begun)
        place_BN = place_BN - torch.where(call.starts_BN, place_BN, 0).cummax(dim=1).values
    place_BN = place_BN + begun
    key_BM = place_BN if past is None else torch.cat([past[:, past.shape[1] - (keys - tokens) :], place_BN], dim=1)
    if call.memory is not None:
        call.memory.write("spa.places", key_BM)
    return place_BN, key_BM, tokens + (0 if call.memory is None else call.memory.past)


def _orthogonal(like: Tensor) -> Tensor:
    """A matrix with orthogonal rows or columns, whatever its columns are split into."""
    drawn = torch.empty(like.flatten(1).shape, dtype=torch.promote_types(like.dtype, torch.float32))
    return nn.init.orthogonal_(drawn).reshape(like.shape).to(like)


def _weights(site: Site) -> list[Tensor]:
    """Those that start anew, to be written to: of values, output and queries, and the bias of the queries."""
    found, bias = queries_and_keys(site), query_bias(site)
    assert found is not None, "refused where they are not known"
    return [site.value_places(), site.output_matrix().data, found[0], *([] if bias is None else [bias])]
