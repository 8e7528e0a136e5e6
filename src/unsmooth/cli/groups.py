"""Options that come together: a verb takes them as one dataclass, the command line shows each of them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass, replace
from functools import wraps
from typing import Any, get_type_hints


def grouped(verb: Callable[..., int]) -> Callable[..., int]:
    """A verb for typer: a parameter whose default is a dataclass becomes an option for each of its fields.

    >>> from dataclasses import dataclass
    >>> @dataclass(frozen=True)
    ... class Sizes:
    ...     width: int = 2
    ...     height: int = 3
    >>> @grouped
    ... def area(unit: int = 1, sizes: Sizes = Sizes(height=5)) -> int:
    ...     return unit * sizes.width * sizes.height
    >>> list(inspect.signature(area).parameters), area(), area(width=4)
    (['unit', 'width', 'height'], 10, 20)
    """
    # Evaluated here: typer leaves the annotations of a signature that is handed to it as they are.
    signature = inspect.signature(verb, eval_str=True)
    defaults = {name: one.default for name, one in signature.parameters.items()}
    groups: dict[str, Any] = {name: default for name, default in defaults.items() if is_dataclass(default)}

    @wraps(verb)
    def flat(**given: Any) -> int:
        for name, group in groups.items():
            own = {field.name: given.pop(field.name) for field in fields(group) if field.name in given}
            given[name] = replace(group, **own)
        return verb(**given)

    options = [
        option
        for name, one in signature.parameters.items()
        for option in (_options_of(groups[name]) if name in groups else [one])
    ]
    flat.__signature__ = signature.replace(parameters=options)  # type: ignore[attr-defined]
    return flat


def _options_of(group: Any) -> Iterator[inspect.Parameter]:
    hints = get_type_hints(type(group), include_extras=True)
    for field in fields(group):
        yield inspect.Parameter(
            field.name,
            inspect.Parameter.POSITIONAL_OR_KEYWORD,
            default=getattr(group, field.name),
            annotation=hints[field.name],
        )
