"""All there is to see of a model from outside, so that two moments can be compared."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_load_state_dict_pre_hooks", "_state_dict_hooks", "_backward_hooks")


@dataclass(frozen=True)
class Snapshot:
    """A model's weights, the order of its parameters, its modules with their attributes, and its hooks.

    Args:
        state: The state_dict, copied.
        parameters: Name and parameter, in order.
        modules: Path to class and names of attributes, in order.
        hooks: Path and table to the hooks in it.
        training: Path to mode.
    """

    state: dict[str, Tensor]
    parameters: list[tuple[str, nn.Parameter]]
    modules: list[tuple[str, type, frozenset[str]]]
    hooks: dict[tuple[str, str], list[int]]
    training: dict[str, bool]

    @classmethod
    def of(cls, model: nn.Module) -> Snapshot:
        """The model now."""
        return cls(
            state={key: value.detach().clone() for key, value in model.state_dict().items()},
            parameters=list(model.named_parameters()),
            modules=[(path, type(module), frozenset(vars(module))) for path, module in model.named_modules()],
            hooks={
                (path, table): [id(hook) for hook in getattr(module, table).values()]
                for path, module in model.named_modules()
                for table in _HOOKS
            },
            training={path: module.training for path, module in model.named_modules()},
        )

    def check(self, model: nn.Module, copied: bool = False) -> None:
        """Refuse a model that differs from what it was, to the bit.

        Args:
            model: The same model later, or a copy of it.
            copied: Whether it is a copy, whose parameters and hooks are equal but not the same objects.
        """
        self.check_form(model, copied)
        now = Snapshot.of(model)
        changed = [key for key in self.state if not torch.equal(self.state[key], now.state[key])]
        assert not changed, f"weights changed: {changed[:3]}"

    def check_form(self, model: nn.Module, copied: bool = False) -> None:
        """Refuse a model that differs in anything but the numbers in its weights."""
        now = Snapshot.of(model)
        assert list(now.state) == list(self.state), "other keys in the state_dict, or in another order"
        names = [name for name, _ in self.parameters]
        assert [name for name, _ in now.parameters] == names, "other parameters, or in another order"
        if not copied:
            pairs = zip(self.parameters, now.parameters, strict=True)
            others = [name for (name, was), (_, parameter) in pairs if was is not parameter]
            assert not others, f"parameters replaced by others: {others[:3]}"
        for was, module in zip(self.modules, now.modules, strict=True):
            assert was[:2] == module[:2], f"{was[0]}: {was[1].__name__} became {module[1].__name__} at {module[0]}"
            assert was[2] == module[2], f"attributes of {was[0]!r} changed: {set(was[2] ^ module[2])}"
        for place, hooks in self.hooks.items():
            found = now.hooks[place]
            assert (len(found) == len(hooks)) if copied else (found == hooks), f"hooks changed at {place}"
        assert now.training == self.training, "training mode changed"
