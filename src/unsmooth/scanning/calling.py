"""How a model is called on a batch, and which of the batch's tokens a scan looks at."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from unsmooth.errors import UnsmoothError, expected
from unsmooth.models.anatomy import Anatomy, find_stacks
from unsmooth.models.hooks import ForAllThreads
from unsmooth.models.host import TARGET, TEXT, Reads
from unsmooth.models.hosts import not_padding
from unsmooth.models.origin import unwrapped
from unsmooth.models.spread import home_of, is_offloaded, is_sharded, is_spread, sharded_as_before
from unsmooth.models.walk import modules_of
from unsmooth.scanning.data import KINDS, RawBatch, is_whole
from unsmooth.scanning.marked_sounds import made_of, marks_padding, with_frames

TokenChoice = Literal["content", "all"]
TOKEN_CHOICES: Mapping[str, str] = {
    "content": "real tokens without padding, class, separator, start, end and other special tokens",
    "all": "every token that is not padding, special tokens included",
}
# Read by the scan, never handed to the model.
RESERVED = ("token_mask", "special_tokens_mask", "decoder_token_mask", "decoder_special_tokens_mask", "labels")


def transformers_core(model: nn.Module, *stacks: Anatomy) -> nn.Module | None:
    """The Hugging Face backbone inside `model` that holds the stacks, without its heads; None where there is none.

    Heads are left out because a language model's logits cost more memory than all its hidden states.
    """
    if any(base.__name__ == "FSDPModule" for base in type(model).__mro__):
        # Calling a part of an FSDP2 model first would make that part its root.
        return model if hasattr(model, "main_input_name") else None
    first_blocks = [next(iter(stack.blocks.values())) for stack in stacks]
    for module in model.modules():
        if hasattr(module, "main_input_name") and hasattr(module, "config"):
            core = getattr(module, "base_model", module)
            named: Any = module.main_input_name  # or several
            main = {named} if isinstance(named, str) else {*named}
            # In some classes it is an inner part that takes other things.
            if not isinstance(core, nn.Module) or (taken(core) and not main <= taken(core)):
                core = module
            for one in (core, module):
                if {*first_blocks} <= {*one.modules()}:
                    return one
    return None


def taken(model: nn.Module) -> frozenset[str]:
    """The names of what a model is called with; none where it takes anything, as a wrapper does.

    >>> sorted(taken(nn.Bilinear(2, 2, 2)))
    ['input1', 'input2']
    """
    parameters = inspect.signature(model.forward).parameters.values()
    return frozenset(one.name for one in parameters if one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD))


def every_stack(model: nn.Module, stacks: Sequence[Anatomy]) -> Sequence[Anatomy]:
    """All stacks of a model, of which some were asked for."""
    return find_stacks(model) if any(stack.stack for stack in stacks) else stacks


def entry_of(
    entry: nn.Module, stacks: Sequence[Anatomy], inputs: RawBatch, asked: Sequence[Anatomy] = ()
) -> tuple[nn.Module, RawBatch]:
    """What to call on a batch, and with what: the model, or one stack where the batch has the tokens of that one alone.

    Images or texts are enough for one tower, texts or sounds for an encoder without its decoder. `stacks` are all that
    the model has, `asked` those of which one must run; none for any.
    """
    if not isinstance(inputs, Mapping):
        return entry, inputs
    whole, own = stacks[0].model, taken(entry)
    beyond = any(is_content(name) for name in inputs.keys() & (taken(whole) - own))
    if beyond or not any(is_content(name) or name in STAND_INS for name in inputs.keys() & own):
        entry = whole  # which makes of it what the model inside its heads reads
    if len(stacks) == 1 or any(key in inputs for key in STAND_INS):
        return entry, inputs
    if is_sharded(entry):  # calling a part of an FSDP2 model first would make that part its root
        return entry, inputs
    given = [stack for stack in stacks if stack.reads.tokens in inputs]
    if len(given) != 1:
        return entry, inputs
    part, other = given[0].part, next(stack for stack in stacks if stack is not given[0])
    useless = given[0].reads == TARGET or (asked and all(stack.stack != given[0].stack for stack in asked))
    if part is None or not hasattr(part, "main_input_name") or useless:
        wanted = f"{other.reads.tokens!r} in each batch, which the {other.stack} reads"
        raise expected(wanted, ", ".join(map(repr, inputs)), "a dict with all inputs of the model")
    accepted = taken(part)
    if any(key in own - accepted for key, one in inputs.items() if isinstance(one, Tensor) and "mask" not in key):
        return entry, inputs  # sounds in a text, say, which the part alone knows nothing of
    return part, {key: value for key, value in inputs.items() if key in accepted or key in RESERVED}


# Other fields from which a model can make the tokens of a stack.
STAND_INS = ("inputs_embeds", "decoder_inputs_embeds", "encoder_outputs")


def as_inputs(batch: RawBatch, core: nn.Module | None) -> RawBatch:
    """Name a bare tensor the way a Hugging Face model wants it; a mask of sound also says which tokens are real."""
    if core is None:
        return batch
    return {_input_name(batch, core): batch} if isinstance(batch, Tensor) else with_frames(batch, core)


def _input_name(tensor: Tensor, core: nn.Module) -> str:
    if is_whole(tensor) and tensor.ndim == 2:
        return "input_ids"
    if tensor.is_floating_point() and tensor.ndim == 4:
        return "pixel_values"
    if tensor.is_floating_point() and tensor.ndim == 2 and getattr(core, "main_input_name", None) == "input_values":
        return "input_values"
    if tensor.is_floating_point() and tensor.ndim == 3:
        sound = getattr(core, "main_input_name", None) == "input_features"
        return "input_features" if sound else "inputs_embeds"
    raise expected(
        "token ids (batch, tokens), pixels (batch, channels, height, width) or embeddings (batch, tokens, dim)",
        f"a {tensor.dtype} tensor of shape {tuple(tensor.shape)}",
        "a dict that names the model's inputs",
    )


def is_content(name: str) -> bool:
    """Whether an input of this name becomes tokens."""
    return name.removeprefix("decoder_") in (*KINDS, "inputs_embeds")


def call(model: nn.Module, inputs: RawBatch) -> None:
    """Run the model for its hooks' sake, without a key/value cache, on vectors and pixels of its own precision."""
    # Weights of one byte are a way of storing them, not a precision to compute in.
    dtypes = (one.dtype for one in model.parameters() if one.is_floating_point() and one.element_size() > 1)
    dtype = next(dtypes, None)
    if isinstance(inputs, Tensor):
        with _refusals_told(model):
            model(_in_precision(inputs, dtype))
        return
    accepted = taken(model)
    # A tokenizer may return more than its model takes (token_type_ids for MPNet).
    left_out = RESERVED if "token_type_ids" in accepted else (*RESERVED, "token_type_ids")
    # Not by the model's configuration, which another thread may be generating by.
    uncached = {"use_cache": False} if "use_cache" in accepted else {}
    given = {key: _in_precision(value, dtype) for key, value in inputs.items() if key not in left_out}
    with _refusals_told(model):
        model(**(uncached | given))


@contextmanager
def _refusals_told(model: nn.Module) -> Iterator[None]:
    """What a model says of a batch that it does not take, in one line; any other error is its own."""
    try:
        yield
    except UnsmoothError:
        raise
    except (ValueError, IndexError) as error:
        said = " ".join(str(error).split())[:300].rstrip(".") or type(error).__name__
        wanted = f"a batch that {type(unwrapped(model)).__name__} can be called with"
        raise expected(wanted, f"its {type(error).__name__}: {said}", "the sizes and ids it was made for") from error


def _in_precision(value: Any, dtype: torch.dtype | None) -> Any:
    """Vectors in another type; numbers such as time steps, of which there is one for a sequence, keep theirs."""
    vectors = isinstance(value, Tensor) and value.is_floating_point() and value.ndim > 1
    return value.to(dtype) if vectors and dtype is not None else value


@dataclass(frozen=True)
class Selection:
    """Which tokens of a batch are measured: those of `window` where `selected_BN` is True, None for all of them.

    `real_BN` marks what is not padding, None where nothing is known to be; `width` is the number of tokens that the
    batch's masks speak of, None where there are none. `image` is the height and width of the images in the batch, and
    `prefix` the number of tokens that the model puts in front of their patches. Of a model that puts tokens
    of its own around those of the batch, `own` are the latter; `start` is how many made of other inputs stand in front.
    `finer` makes a mask of so many tokens of one that marks padding in what the model made them of, and of the mask
    that the blocks were handed.
    `padded` says that images are filled up, and that only the model knows which of the tokens that makes padding.
    """

    window: slice = field(default_factory=lambda: slice(None))
    selected_BN: Tensor | None = None
    real_BN: Tensor | None = None
    ids_BN: Tensor | None = None
    width: int | None = None
    image: tuple[int, int] | None = None
    prefix: int = 0
    own: slice | None = None
    start: int | None = None
    padded: bool = False
    finer: Callable[[int, Tensor | None], Tensor] | None = None

    def marking(self, tokens: int, handed_BN: Tensor | None) -> Selection:
        """The same where padding was marked in what the tokens were made of: by the blocks' own mask, if they have one.

        Raises:
            UnsmoothError: They have none, and the model does not say how it would make one.
        """
        if self.finer is None:
            return self
        real_BN = self.finer(tokens, handed_BN)
        chosen_BN = torch.zeros_like(real_BN)
        chosen_BN[:, self.window] = real_BN[:, self.window]
        if self.selected_BN is not None:
            chosen_BN &= self.selected_BN.to(chosen_BN.device)
        return replace(
            self, window=slice(None), selected_BN=chosen_BN, real_BN=real_BN, width=real_BN.shape[1], finer=None
        )

    def check_padding(self, handed_BN: Tensor | None) -> None:
        """Refuse padding of images where blocks are not handed a mask either."""
        if self.padded and handed_BN is None:
            raise expected(
                "to know which tokens are padding of images, where the data's 'pixel_mask' marks some,",
                "blocks that are handed no mask of their tokens",
                'images of one size, or a "token_mask" in the data',
            )

    def among(self, tokens: int) -> Selection:
        """The same with masks for all of so many tokens: those made of other inputs are real ones."""
        if self.start is None or self.width in (None, tokens):
            return self
        around = self.start, tokens - self.start - self.width
        wide = [None if one is None else pad(one, around, value=True) for one in (self.chosen_BN, self.real_BN)]
        return replace(self, window=slice(None), selected_BN=wide[0], real_BN=wide[1], width=tokens, ids_BN=None)

    def real_tokens(self, shape: Sequence[int], handed_BN: Tensor | None) -> Tensor:
        """Which tokens (batch, tokens) are not padding: by the data, else by the mask that blocks were handed."""
        found = self.marking(shape[1], handed_BN).among(shape[1])
        found.check_padding(handed_BN)
        real_BN = handed_BN if found.real_BN is None else found.real_BN
        if found.own is not None and (real_BN is None or real_BN.shape[1] != shape[1]):
            own_BN = torch.ones(shape[0], found.own.stop - found.own.start) if real_BN is None else real_BN
            real_BN = pad(own_BN.bool(), (found.own.start, shape[1] - found.own.stop), value=False)
        if real_BN is None:
            return torch.ones(shape[0], shape[1], dtype=torch.bool)
        check_width(shape, *real_BN.shape)
        return real_BN

    @property
    def chosen_BN(self) -> Tensor | None:
        """Which tokens are measured, the window's too."""
        if self.selected_BN is not None or self.real_BN is None:
            return self.selected_BN
        inside = torch.zeros_like(self.real_BN)
        inside[:, self.window] = True
        return inside


EVERYTHING = Selection()


def check_width(shape: Sequence[int], sequences: int, tokens: int) -> None:
    """Refuse a mask for so many sequences and tokens where those of the blocks are as many as `shape` says."""
    if tokens != shape[1]:
        raise expected(
            f"a mask for the {shape[1]} tokens of the model's hidden states",
            f"one for {tokens}",
            'data with "attention_mask" or "token_mask" of that width',
        )
    if sequences != shape[0]:
        got = f"one for {sequences}"
        raise expected(f"a mask for the {shape[0]} sequences in the model's hidden states", got, 'a "token_mask"')


def select_tokens(
    inputs: RawBatch, choice: TokenChoice, special_ids: frozenset[int], prefix_tokens: int, reads: Reads = TEXT
) -> Selection:
    """Padding is never selected; special tokens only for "all". `reads` says which fields speak of the stack."""
    fields: Mapping[str, Any] = inputs if isinstance(inputs, Mapping) else {}
    ids = token_ids(fields, reads)
    real = _real_tokens(fields, reads)
    special = _special_tokens(fields, ids, special_ids, reads) if choice == "content" else None
    selected = real if special is None else (~special if real is None else real & ~special)
    known = Selection(
        real_BN=real,
        ids_BN=ids,
        image=image_size(inputs) if ids is None else None,
        prefix=prefix_tokens,
        padded=_has_images(reads, real) and "token_mask" not in fields and _is_filled_up(fields.get("pixel_mask")),
    )
    if ids is not None and reads.start is not None:
        counted = reads.beside or (choice == "all" and reads.start > 0)  # as class tokens are
        own = None if counted else slice(reads.start, reads.start + ids.shape[1])
        known = replace(known, own=own, start=reads.start if counted else None)
    if selected is None:
        return replace(known, window=slice(prefix_tokens if choice == "content" else 0, None))
    window, width = _common_window(selected), selected.shape[1]
    if window is not None:
        return replace(known, window=window, width=width)
    return replace(known, selected_BN=selected, width=width)


def select_and_tell(
    inputs: RawBatch, choice: TokenChoice, special_ids: frozenset[int], anatomy: Anatomy
) -> tuple[Selection, dict[str, None]]:
    """Which tokens of a batch are measured in a stack, and what a reader must know of that."""
    selection, notes = select_tokens(inputs, choice, special_ids, anatomy.prefix_tokens, anatomy.reads), []
    fields: Mapping[str, Any] = inputs if isinstance(inputs, Mapping) else {}
    if (padding := padding_shown(selection, choice, anatomy)) is not None:
        notes.append(
            f"Some texts are filled up with the padding id {padding} and the data has no "
            f"{anatomy.reads.mask!r}: the model attends to that as to any token, and so it is counted."
        )
    notes += anatomy.told
    if marks_padding(fields, anatomy.reads):
        finer = fields[anatomy.reads.marked or ""]
        selection = replace(selection, finer=lambda tokens, handed_BN: made_of(finer, anatomy, tokens, handed_BN))
    own = anatomy.reads.tokens or anatomy.reads.marked or anatomy.flow.rows is not None
    if fields and not own and "token_mask" not in fields:
        notes.append(
            "The model makes the tokens of these blocks itself, so no mask in the data is about them: all are "
            'counted, unless a "token_mask" says which are real.'
        )
    return selection, dict.fromkeys(notes)


def unread_masks(inputs: RawBatch, choice: TokenChoice, measured: Sequence[Reads]) -> dict[str, None]:
    """What a reader must know of masks that were made for a scan and are of none of the stacks measured."""
    fields = inputs if isinstance(inputs, Mapping) else {}
    kinds = ("token_mask", "special_tokens_mask") if choice == "content" else ("token_mask",)
    own = {f"{_side(reads)}{kind}": None for kind in kinds for reads in measured if reads.mask is not None}
    theirs = f"theirs would be {' or '.join(map(repr, own))}" if own else "theirs has no name beside those"
    unread = [name for kind in kinds for name in (kind, f"decoder_{kind}") if name in fields and name not in own]
    return {f"The data's {name!r} is of other tokens than those measured: {theirs}.": None for name in unread}


def token_ids(inputs: RawBatch, reads: Reads) -> Tensor | None:
    """The ids of a batch's tokens, None where it has none: the tokens of a stack may be pixels or sounds."""
    found = inputs.get(reads.tokens) if isinstance(inputs, Mapping) else None
    return found if isinstance(found, Tensor) and not found.is_floating_point() else None


def padding_shown(selection: Selection, choice: TokenChoice, anatomy: Anatomy) -> int | None:
    """The id of padding where texts are filled up with it and nothing masks it, so that it is measured; else None."""
    ids_BN = selection.ids_BN
    if selection.real_BN is not None or choice == "content" or ids_BN is None:
        return None
    config = _config_of(anatomy)
    if config is None or ids_BN.shape[1] < 2:
        return None
    padding, is_padding_BN = int(config.pad_token_id), ids_BN == config.pad_token_id
    # A decoder may start with that id, and a text end with it where it also marks ends.
    behind = 2 if padding == getattr(config, "eos_token_id", None) else 1
    filled = any(bool(part.all(dim=1).any()) for part in (is_padding_BN[:, -behind:], is_padding_BN[:, :2]))
    return padding if filled else None


def _config_of(anatomy: Anatomy) -> Any:
    """The configuration that knows of padding, nearest to the stack: each part of a model may have one."""
    first, found = next(iter(anatomy.blocks.values())), None
    path = next((name for name, module in anatomy.model.named_modules() if module is first), "")
    module = anatomy.model
    for step in path.split("."):
        config = getattr(module, "config", None)
        found = config if getattr(config, "pad_token_id", None) is not None else found
        module = module.get_submodule(step)
    return found


def image_size(inputs: RawBatch) -> tuple[int, int] | None:
    """Height and width of the images of a batch (batch, channels, height, width), None where there are none."""
    for value in inputs.values() if isinstance(inputs, Mapping) else (inputs,):
        if isinstance(value, Tensor) and value.ndim == 4 and value.is_floating_point():
            return value.shape[2], value.shape[3]
    return None


def _common_window(selected_BN: Tensor) -> slice | None:
    """The one run of tokens that every sequence selects, where there is one: a view, and a mask costs a copy a layer.

    Masks start on the CPU, where asking is free.
    """
    if selected_BN.device.type != "cpu" or not bool((selected_BN == selected_BN[:1]).all()):
        return None
    places = selected_BN[0].nonzero().flatten()
    if len(places) == 0 or int(places[-1] - places[0]) + 1 != len(places):
        return None
    return slice(int(places[0]), int(places[-1]) + 1)


def _real_tokens(fields: Mapping[str, Any], reads: Reads) -> Tensor | None:
    if reads.mask is None:
        return None
    for key in (f"{_side(reads)}token_mask", reads.mask):
        mask = fields.get(key)
        if isinstance(mask, Tensor):
            if mask.ndim != 2:
                raise expected(f"`{key}` of shape (batch, tokens)", tuple(mask.shape), 'a 2-D "token_mask" beside it')
            # A token that is made of several entries is real where the first of them is.
            return mask[:, :: reads.each if key == reads.mask else 1] != 0
    padding = fields.get("tgt_key_padding_mask" if _side(reads) else "src_key_padding_mask")
    if isinstance(padding, Tensor):
        return not_padding(padding)
    return None


def _has_images(reads: Reads, real: Tensor | None) -> bool:
    """Whether a stack's tokens are of images, or are so beside words, of which alone a mask is."""
    return (reads.tokens == "pixel_values" and real is None) or reads.beside


def _is_filled_up(pixel_mask: Any) -> bool:
    return isinstance(pixel_mask, Tensor) and bool(pixel_mask.eq(0).any())


def _side(reads: Reads) -> str:
    """What stands before the names of fields that speak of a decoder."""
    return "decoder_" if (reads.mask or "").startswith("decoder_") else ""


def _special_tokens(
    fields: Mapping[str, Any], ids: Tensor | None, special_ids: frozenset[int], reads: Reads
) -> Tensor | None:
    given = fields.get(f"{_side(reads)}special_tokens_mask")
    beside_ids = ids is None and f"{_side(reads)}input_ids" in fields  # which it is about then
    if isinstance(given, Tensor) and reads.mask is not None and not beside_ids:
        return given != 0
    if ids is not None and special_ids:
        return torch.isin(ids, torch.tensor(sorted(special_ids), device=ids.device, dtype=ids.dtype))
    return None


@contextmanager
def quiet_evaluation(model: nn.Module) -> Iterator[None]:
    """Evaluation mode and no gradients; afterwards each part is in the mode it was in.

    Modes are no thread's own: what others run meanwhile of a model in training mode, they run in evaluation mode.

    Raises:
        UnsmoothError: Another thread has put a part into training mode meanwhile.
    """
    modules = modules_of(model)
    with _RESTING(modules, lambda module: module.training, lambda _: _evaluate(model)):
        quiet = [module for module in modules if not module.training]
        with torch.no_grad(), sharded_as_before(model):
            yield
        if any(module.training for module in quiet):
            got = "one that another thread has put into training mode"
            raise expected("a model that stays in evaluation mode while it is looked at", got, "a copy of the model")


def _evaluate(module: nn.Module) -> None:
    """`module.eval()`, which takes a few hundred modules a millisecond; a look at a training has not many of them."""
    if type(module).eval is not nn.Module.eval or type(module).train is not nn.Module.train:
        # Not where it is so already: what a remedy then does once more, another thread may be reading.
        if any(one.training for one in modules_of(module)):
            module.eval()
        return
    _set_mode(module, training=False)
    for child in module._modules.values():
        if child is not None:
            _evaluate(child)


def _train_again(module: nn.Module, _: None) -> None:
    """A module with a say in its mode, as some remedies have, is asked; one with parts would switch those too."""
    if type(module).train is nn.Module.train or any(True for _ in module.children()):
        _set_mode(module, training=True)
    else:
        module.train()


def _set_mode(module: nn.Module, *, training: bool) -> None:
    """Without the way through `nn.Module.__setattr__`, which asks whether it is a parameter, a module, a buffer."""
    if type(module).__setattr__ is nn.Module.__setattr__ and "training" in vars(module):
        vars(module)["training"] = training
    else:
        module.training = training


_RESTING = ForAllThreads[nn.Module, None](lambda _: None, _train_again)
_AWAY = ForAllThreads[nn.Module, torch.device](home_of, nn.Module.to)


@contextmanager
def moved(model: nn.Module, device: torch.device | None) -> Iterator[torch.device]:
    """The model on `device` for the duration, in all threads, or where it already is."""
    home = home_of(model)
    if any(one.is_meta for one in model.parameters()) and not is_offloaded(model):
        raise expected("a model with weights", "one on the meta device, which holds none", "loading them first")
    away = device is not None and device != home
    if away and (is_spread(model) or is_sharded(model)):
        how = "sharded by FSDP2" if is_sharded(model) else "spread over devices by accelerate"
        raise expected(f"a model in one place, to move it to {device}", f"one that is {how}", "leaving out the device")
    with _AWAY([model], lambda _: away, lambda _: model.to(device)):
        here = home_of(model)
        if device not in (None, here):
            raise expected(f"a model that can go to {device}", f"one that another thread looks at on {here}", "later")
        yield here
