"""What a model reads: how data becomes it, and what does not fit it, told in one line before the model is called.

A wrong id or a text that is too long ends a process on a GPU; here it is compared with the model's own tables first.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from unsmooth.errors import expected
from unsmooth.models import Anatomy, origin_of
from unsmooth.models.origin import unwrapped
from unsmooth.scanning.calling import RESERVED, STAND_INS, as_inputs, is_content, taken, transformers_core
from unsmooth.scanning.data import KINDS, PER_TOKEN, TOKEN_FIELDS, Preprocessing, RawBatch, is_whole

_POSITIONS = re.compile(r"wpe|(embed_)?positions?|position_embeddings?")


def preprocessing(
    module: nn.Module,
    stacks: Sequence[Anatomy],
    tokenizer: Any | None = None,
    image_processor: Any | None = None,
    batch_size: int = 16,
    max_length: int | None = None,
    column: str | None = None,
) -> Preprocessing:
    """How data becomes what `module` reads: its own tokenizer and image processor unless others are given."""
    origin, reading = origin_of(module), Reading.of(module, stacks)
    # A sentence-transformers model carries its tokenizer itself.
    tokenizer = tokenizer or (origin.tokenizer if origin else None) or getattr(module, "tokenizer", None)
    return Preprocessing(
        tokenizer=tokenizer,
        image_processor=image_processor or (origin.image_processor if origin else None),
        batch_size=batch_size,
        max_length=max_length,
        model_limit=reading.tables.places or _configured(getattr(reading.core, "config", None)),
        column=column,
        fields=reading.fields,
        check=reading.check,
    )


def _configured(config: Any) -> int | None:
    """How many tokens a configuration says the model was made for; positions that are computed know no end."""
    limit = getattr(getattr(config, "text_config", config), "max_position_embeddings", None)
    return limit if isinstance(limit, int) and limit > 0 else None


@dataclass(frozen=True)
class Tables:
    """How many words and places there are vectors for; None where that cannot be told, or there is no end to them."""

    words: int | None
    places: int | None


def tables_of(module: nn.Module) -> Tables:
    """Read off the embeddings: learned places lie beside the words, and some of their rows may be for padding.

    >>> class Text(nn.Module):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.words, self.positions = nn.Embedding(50, 4), nn.Embedding(16, 4)
    >>> tables_of(Text())
    Tables(words=50, places=16)
    """
    own, words, places = _own_words(module), [0], [0]
    for parent in module.modules():
        tables = {
            name: child
            for name, child in parent.named_children()
            # Tables that are made anew for longer texts have no end.
            if _count(child) and not hasattr(child, "make_weight")
        }
        found = [name for name in tables if _POSITIONS.fullmatch(name)]
        beside = [_count(child) for name, child in tables.items() if name not in found]
        words += beside
        # Towers of images have places too, beside no words; a part between two towers may have words of its own.
        if own in beside or (beside and not own):
            places += [_rows(tables[name]) for name in found]
    return Tables(words=own or max(words) or None, places=max(places) or None)


def _count(table: object) -> int:
    """Rows of an embedding; none of anything else."""
    rows = getattr(table, "num_embeddings", None)
    return rows if isinstance(rows, int) else 0


def _rows(table: nn.Module) -> int:
    """Rows that are for tokens: RoBERTa counts from the one after its padding's, OPT and BART leave two out."""
    padding = getattr(table, "padding_idx", None)
    left_out = getattr(table, "offset", None) or (0 if padding is None else padding + 1)
    return _count(table) - int(left_out)


def _placeholders(config: Any) -> tuple[int, ...]:
    names = [f"{kind}_token_{what}" for kind in ("image", "video", "audio") for what in ("id", "index")]
    return tuple(found for name in names if isinstance(found := getattr(config, name, None), int))


def _own_words(module: nn.Module) -> int:
    try:
        return _count(module.get_input_embeddings())  # type: ignore[operator]
    except (AttributeError, NotImplementedError, TypeError):  # of images, or of several towers
        return 0


@dataclass(frozen=True)
class Reading:
    """What one model takes.

    Args:
        name: Of its class.
        core: Its transformers backbone, where it has one.
        fields: What it takes by name, with what a scan reads beside it.
        tables: Of the whole model.
        by_field: Of the part that reads a field, where a model has several stacks.
        placeholders: Ids beyond the words, in whose place the model puts images or sounds.
        closed: Whether it takes nothing but those fields.
        pictures: Whether it convolves images and has no words.
    """

    name: str
    core: nn.Module | None
    fields: frozenset[str]
    tables: Tables
    by_field: Mapping[str, Tables]
    placeholders: tuple[int, ...]
    closed: bool
    pictures: bool

    @classmethod
    def of(cls, module: nn.Module, stacks: Sequence[Anatomy]) -> Reading:
        """Read it off the model."""
        core = transformers_core(module, *stacks)
        entry = unwrapped(module if core is None else core)
        parts: dict[str, list[Tables]] = {}
        for stack in stacks:
            if stack.part is not None:
                parts.setdefault(stack.reads.tokens, []).append(tables_of(stack.part))
        takes, tables = inspect.signature(entry.forward).parameters, tables_of(entry)
        outside = frozenset() if core is None else taken(unwrapped(module))  # which may make of it what is read inside
        return cls(
            name=type(unwrapped(module)).__name__,
            core=core,
            fields=frozenset({*takes, *outside, *RESERVED}),
            tables=tables,
            # Of several, tables of relative positions are none of words.
            by_field={field: max(found, key=lambda one: one.words or 0) for field, found in parts.items()},
            placeholders=_placeholders(getattr(core, "config", None)),
            closed=all(one.kind is not one.VAR_KEYWORD for one in takes.values()),
            pictures=tables.words is None and any(isinstance(module, nn.Conv2d) for module in entry.modules()),
        )

    def check(self, batch: RawBatch) -> None:
        """Refuse a batch with which the model cannot be called."""
        inputs = as_inputs(batch, self.core)
        fields: Mapping[str, Any] = {_implied(inputs): inputs} if isinstance(inputs, Tensor) else inputs
        given = {field: value for field, value in fields.items() if isinstance(value, Tensor)}
        self._check_kind(fields)
        # What tokenizers return beyond what a model takes is left out of its call.
        others = {*fields} - self.fields - {"token_type_ids"}
        if self.closed and others and not isinstance(inputs, Tensor):
            named = ", ".join(sorted(self.fields - {*RESERVED}))
            raise expected(f"inputs that {self.name} takes ({named})", repr(min(others)), "data without it")
        for field, tensor in given.items():
            if field in TOKEN_FIELDS and tensor.numel() == 0:
                got = f"{field} of shape {tuple(tensor.shape)}"
                raise expected("at least one token in each batch", got, "leaving out what is empty")
        for field in ("input_ids", "decoder_input_ids", "inputs_embeds", "decoder_inputs_embeds"):
            if field in given and given[field].ndim == 2 and is_whole(given[field]):
                self._check_ids(field, given[field])
            if field in given and given[field].ndim > 1 and "position_ids" not in given:
                self._check_length(field, given[field].shape[1])
        for field, rows in self._other_tables().items():
            if field in given and given[field].numel() and not 0 <= (most := int(given[field].max())) < rows:
                hint = "leaving it out: the model makes its own"
                raise expected(f"{field} from 0 to {rows - 1}, those that {self.name} knows,", most, hint)
        _check_masks(fields, given)

    def _check_kind(self, fields: Mapping[str, Any]) -> None:
        own = "pixel_values" if self.pictures else next((name for name in KINDS if name in self.fields), None)
        main = getattr(self.core, "main_input_name", own)
        own = main if isinstance(main, str) else own  # some have several
        given = [name for name in fields if is_content(name)]
        taken_up = self.fields & {*fields} & {*given, *STAND_INS}
        if given and not taken_up and (own in self.fields or (self.pictures and given != [own])):
            kind = KINDS.get(str(own), "other things")
            raise expected(f"{own!r}, as {self.name} reads {kind}", ", ".join(map(repr, given)), kind)

    def _check_ids(self, field: str, ids_BN: Tensor) -> None:
        tables = self.by_field.get(field, self.tables)
        if tables.words is not None:
            beyond = [one for one in self.placeholders if one >= tables.words]
            words = ids_BN[~torch.isin(ids_BN, ids_BN.new_tensor(beyond))] if beyond else ids_BN
            least, most = (int(bound) for bound in torch.aminmax(words)) if words.numel() else (0, 0)
            if least < 0 or most >= tables.words:
                got = f"{field} with {least if least < 0 else most}"
                hint = "the tokenizer that belongs to the model"
                raise expected(f"token ids from 0 to {tables.words - 1}, the words that {self.name} knows,", got, hint)

    def _other_tables(self) -> dict[str, int]:
        """How many vectors there are for what tells tokens apart beside their words."""
        config: Any = getattr(self.core, "config", None)
        # Places that are computed know no end.
        places = _configured(config) if self.tables.places else None
        rows = {"token_type_ids": getattr(config, "type_vocab_size", 0), "position_ids": places}
        return {field: size for field, size in rows.items() if isinstance(size, int) and size > 0}

    def _check_length(self, field: str, tokens: int) -> None:
        places = self.by_field.get(field.replace("inputs_embeds", "input_ids"), self.tables).places
        if places is not None and tokens > places:
            hint = f"shorter sequences, such as the first {places} tokens"
            got = f"{field} of {tokens}"
            raise expected(f"at most {places} tokens, the positions that {self.name} has,", got, hint)


def _implied(tensor: Tensor) -> str:
    """What a bare tensor is, by its shape, for a model that names nothing."""
    if is_whole(tensor) and tensor.ndim == 2:
        return "input_ids"
    return "pixel_values" if tensor.ndim == 4 and tensor.is_floating_point() else ""


def _check_masks(fields: Mapping[str, Any], given: Mapping[str, Tensor]) -> None:
    """A mask has an entry for each token of the field it speaks of."""
    if fields.get("past_key_values") is not None:  # the mask speaks of those too
        return
    for side in ("", "decoder_"):
        tokens = next((field for field in TOKEN_FIELDS if f"{side}{field}" in given), None)
        if tokens is None:
            continue
        shape = tuple(given[f"{side}{tokens}"].shape)
        per_token = shape[:2] if tokens in ("input_ids", "inputs_embeds", "input_values") else shape[:1]
        for name in PER_TOKEN:
            mask = given.get(f"{side}{name}")
            if mask is None and fields.get(f"{side}{name}") is not None:
                got = type(fields[f"{side}{name}"]).__name__
                raise expected(f"{side}{name} for {side}{tokens} of shape {shape}", got, "an array of numbers")
            if mask is None or mask.ndim != 2:
                continue
            if name != "token_type_ids" and not (name == "attention_mask" and f"{side}token_mask" in given):
                _check_marks(f"{side}{name}", mask)
            # How many tokens a model makes of sound is compared later with those that it has made.
            compared = per_token[:1] if name == "token_mask" and tokens == "input_values" else per_token
            if tuple(mask.shape[: len(compared)]) != compared:
                raise expected(
                    f"{side}{name} for {side}{tokens} of shape {shape}",
                    f"one of shape {tuple(mask.shape)}",
                    "the mask that came with those tokens",
                )


def _check_marks(name: str, mask: Tensor) -> None:
    """What is added to attention's scores marks the other way round: there 0 is a real token, and padding far below."""
    odd = mask[(mask < 0) | (mask != mask.round()) | mask.isinf()] if mask.is_floating_point() else mask[mask < 0]
    if len(odd):  # NaN, too, which is unlike itself
        raise expected(f"{name} of ones and zeros", f"{odd[0].item():g}", "the mask that a tokenizer returns")
