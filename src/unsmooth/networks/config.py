"""What a network is made of, in numbers and words: all of it fits into a JSON file."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, ClassVar

from unsmooth.errors import expected, unknown_name
from unsmooth.schema import parse

NORMS = ("pre", "post", "peri", "parallel")
ACTIVATIONS = ("gelu", "gelu_tanh", "relu", "geglu")
POOLINGS = ("class", "mean")


@dataclass(frozen=True, kw_only=True)
class Stack:
    """The stack of blocks that all our networks have.

    Args:
        depth: Blocks.
        dim: Width of the stream.
        heads: Attention heads in each block.
        hidden: Width inside the MLP.
        norm: "pre" x + f(LN x), "post" LN(x + f x), "peri" x + LN(f(LN x)) or "parallel" x + f(LN x) + g(LN x), where
            attention and MLP read the same stream.
        activation: "gelu", "gelu_tanh" (its approximation in GPT-2), "relu" or "geglu" (gated; Shazeer 2020, arXiv
            2002.05202).
        qkv_bias: Whether queries, keys and values have biases.
        out_bias: Whether attention's output projection has one.
        mlp_bias: Whether the MLP's maps have them, and the vocabulary logits of an `Encoder`.
        norm_bias: Whether norms have them.
        eps: Added to the variance in norms.
        dropout: Share of elements dropped from embeddings, attention outputs and inside and after the MLP.
        drop_path: Share of samples whose branch is dropped in the last block; it grows linearly from 0 at the first
            (stochastic depth; Huang et al. 2016, arXiv 1603.09382).
        init: How weights start: a name in `unsmooth.networks.INITS`.
    """

    kind: ClassVar[str] = "stack"

    depth: int = 12
    dim: int = 192
    heads: int = 3
    hidden: int = 768
    norm: str = "pre"
    activation: str = "gelu"
    qkv_bias: bool = True
    out_bias: bool = True
    mlp_bias: bool = True
    norm_bias: bool = True
    eps: float = 1e-6
    dropout: float = 0.0
    drop_path: float = 0.0
    init: str = "truncated_normal"

    def __post_init__(self) -> None:
        for name in ("depth", "dim", "heads", "hidden"):
            _at_least_one(name, getattr(self, name))
        if self.dim % self.heads:
            raise expected("dim divisible by heads", f"dim={self.dim}, heads={self.heads}", f"dim={self.heads * 64}")
        _one_of("norm", self.norm, NORMS)
        _one_of("activation", self.activation, ACTIVATIONS)
        _one_of("init", self.init, tuple(_inits()))
        for name in ("dropout", "drop_path"):
            rate = getattr(self, name)
            if not isinstance(rate, int | float) or isinstance(rate, bool) or not 0.0 <= rate < 1.0:
                raise expected(f"{name} from 0 up to, not including, 1", repr(rate), f"{name}=0.1")
        if not 0.0 < self.eps < math.inf:
            raise expected("eps above 0", repr(self.eps), "eps=1e-6")
        if not math.isfinite(scale := getattr(self, "embedding_scale", 1.0)):
            raise expected("a finite embedding_scale", repr(scale), "embedding_scale=1.0")

    @property
    def head_dim(self) -> int:
        """Width of one head."""
        return self.dim // self.heads

    def to_dict(self) -> dict[str, Any]:
        """Plain values, with the kind of network under "kind".

        >>> ViTConfig(depth=2).to_dict()["kind"], ViTConfig(depth=2).to_dict()["depth"]
        ('vit', 2)
        """
        return {"kind": self.kind, **asdict(self)}


@dataclass(frozen=True, kw_only=True)
class ViTConfig(Stack):
    """A Vision Transformer (Dosovitskiy et al. 2021, arXiv 2010.11929).

    Args:
        image: Side of the square image.
        patch: Side of a patch.
        channels: Colours.
        classes: Logits.
        pooling: What is classified: a class token ("class") or the mean of the patches ("mean").
    """

    kind: ClassVar[str] = "vit"

    image: int = 32
    patch: int = 2
    channels: int = 3
    classes: int = 100
    pooling: str = "class"

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("image", "patch", "channels", "classes"):
            _at_least_one(name, getattr(self, name))
        if self.image % self.patch:
            raise expected("image divisible by patch", f"image={self.image}, patch={self.patch}", "patch=2")
        _one_of("pooling", self.pooling, POOLINGS)

    @property
    def patches(self) -> int:
        """Patches in an image."""
        return (self.image // self.patch) ** 2


@dataclass(frozen=True, kw_only=True)
class EncoderConfig(Stack):
    """A text encoder that predicts masked tokens (Devlin et al. 2019, arXiv 1810.04805).

    Args:
        vocabulary: Tokens.
        length: Longest text.
        positions: "learned", "sinusoidal", or "scaled_sinusoidal": sinusoids times one learned number.
        tied: Whether the logits use the matrix of the embeddings.
        embedding_norm: Whether embeddings are normalised before the first block.
        embedding_scale: What token embeddings are multiplied by.
        transform_head: Whether a linear map, an activation and a norm stand before the logits, as in BERT.
    """

    kind: ClassVar[str] = "encoder"
    POSITIONS: ClassVar[tuple[str, ...]] = ("learned", "sinusoidal", "scaled_sinusoidal")

    vocabulary: int
    length: int = 128
    positions: str = "learned"
    tied: bool = True
    embedding_norm: bool = False
    embedding_scale: float = 1.0
    transform_head: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("vocabulary", "length"):
            _at_least_one(name, getattr(self, name))
        _one_of("positions", self.positions, self.POSITIONS)


@dataclass(frozen=True, kw_only=True)
class DecoderConfig(Stack):
    """A language model that reads a text segment by segment.

    Args:
        vocabulary: Tokens.
        length: Tokens in a segment.
        memory: Earlier tokens that attention sees beside the segment (Dai et al. 2019, arXiv 1901.02860).
        positions: "relative" (Dai et al.), "learned" or "sinusoidal".
        tied: Whether the logits use the matrix of the embeddings.
        embedding_scale: What token embeddings are multiplied by; Dai et al. have √dim.
        output_dropout: Whether elements are dropped after the last block too, as Dai et al. do.
    """

    kind: ClassVar[str] = "decoder"
    POSITIONS: ClassVar[tuple[str, ...]] = ("relative", "learned", "sinusoidal")

    vocabulary: int
    length: int = 128
    memory: int = 0
    positions: str = "relative"
    tied: bool = True
    embedding_scale: float = 1.0
    output_dropout: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("vocabulary", "length"):
            _at_least_one(name, getattr(self, name))
        _one_of("positions", self.positions, self.POSITIONS)
        if not isinstance(self.memory, int) or self.memory < 0:
            raise expected("memory of 0 tokens or more", repr(self.memory), "memory=128")
        if self.memory and self.positions != "relative":
            got = f"positions={self.positions!r}, which begin anew in every segment"
            raise expected("relative positions where there is a memory", got, 'positions="relative" or memory=0')


Config = ViTConfig | EncoderConfig | DecoderConfig
_KINDS: Mapping[str, type[Config]] = {kind.kind: kind for kind in (ViTConfig, EncoderConfig, DecoderConfig)}


def from_dict(values: Mapping[str, Any]) -> Config:
    """The configuration that `to_dict` wrote.

    >>> from_dict({"kind": "encoder", "vocabulary": 99, "depth": 2}).depth
    2
    >>> from_dict({"kind": "vit", "dept": 2})
    Traceback (most recent call last):
    unsmooth.errors.UnsmoothError: Expected a known setting of a vit in ... but got 'dept'. Did you mean 'depth'? ...
    """
    kind = str(values.get("kind"))[:80]
    if kind not in _KINDS:
        raise unknown_name("kind of network", kind, _KINDS)
    if "vocabulary" not in values and any(field.name == "vocabulary" for field in fields(_KINDS[kind])):
        raise expected(f"a vocabulary for a {kind}", "none", "vocabulary=32768")
    return parse(_KINDS[kind], values, where=f"the configuration of a {kind}", what=f"setting of a {kind}")


def _inits() -> Iterable[str]:
    from unsmooth.networks.inits import INITS  # which is built on the blocks, which are built on this

    return INITS


def _at_least_one(name: str, number: object) -> None:
    if not isinstance(number, int) or isinstance(number, bool) or number < 1:
        raise expected(f"{name} of 1 or more", repr(number), f"{name}=1")


def _one_of(name: str, got: object, known: Sequence[str]) -> None:
    if got not in known:
        raise unknown_name(name, str(got), known)
