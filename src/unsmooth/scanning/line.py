"""Layers that wait in line to be measured together: a call into torch costs more than the numbers of a small tensor."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from unsmooth.functional import Tokens
from unsmooth.functional._blocks import Workspace
from unsmooth.scanning.statistics import Place

# Numbers that wait. On a CPU, more of them would no longer be in the cache of a core when their turn comes; on a GPU
# one pass over so many takes as long as the launch of its kernel, so that more would only cost memory.
_ROOM, _ROOM_OF_GPU = 1 << 19, 1 << 22


@dataclass
class Line:
    """Copies of small tensors of one shape, mask and stage. A large one waits for nobody.

    Args:
        workspace: Where the copies are.
    """

    workspace: Workspace
    places: list[Place] = field(default_factory=list)
    _values: dict[int, list[Tensor]] = field(default_factory=dict)
    _first: Tokens | None = None
    _room: Tensor | None = None

    def takes(self, tokens: Tokens, place: Place) -> bool:
        """Whether these tokens can be measured together with those that wait."""
        if self._first is None:
            return True
        first, x = self._first.input_BND, tokens.input_BND
        alike = (first.shape, first.dtype, first.device) == (x.shape, x.dtype, x.device)
        return alike and tokens.mask_BN is self._first.mask_BN and place.stage == self.places[0].stage

    def add(self, tokens: Tokens, place: Place) -> None:
        """Have tokens wait."""
        x = tokens.input_BND
        if self._first is None:
            self._first = tokens
            most = (_ROOM if x.device.type == "cpu" else _ROOM_OF_GPU) // max(x.numel(), 1)
            self._room = self.workspace.take("line", (most, *x.shape), x.dtype, x.device) if most > 1 else None
        if self._room is not None:
            self._first = self._first if self.places else Tokens(self._room[0], tokens.mask_BN)
            self._room[len(self.places)].copy_(x)
        self.places.append(place)

    def put(self, number: int, values_B: Tensor) -> None:
        """Keep the values that a metric already has for the tokens that come last."""
        self._values.setdefault(number, []).append(values_B)

    @property
    def full(self) -> bool:
        """Whether nothing more can wait."""
        return bool(self.places) and (self._room is None or len(self.places) == len(self._room))

    @property
    def shape(self) -> torch.Size:
        """Shape of the tokens of one layer."""
        assert self._first is not None
        return self._first.input_BND.shape

    def together(self) -> Tokens:
        """All that wait as one batch, layer after layer."""
        assert self._first is not None
        if self._room is None:
            return self._first
        count, mask_BN = len(self.places), self._first.mask_BN
        return Tokens(self._room[:count].flatten(0, 1), None if mask_BN is None else mask_BN.repeat(count, 1))

    def values(self) -> dict[int, Tensor]:
        """What was put beside, layer after layer."""
        return {number: torch.cat(values) for number, values in self._values.items()}

    def clear(self) -> None:
        """The next tokens are the first."""
        self.places, self._values, self._first, self._room = [], {}, None, None
