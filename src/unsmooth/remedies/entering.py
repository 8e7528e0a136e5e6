"""Hooks before a pass and before each of its blocks: what an edit must know about the call it is in."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch._C._functorch import is_functorch_wrapped_tensor

from unsmooth.errors import expected
from unsmooth.models.host import Host
from unsmooth.models.look import in_batch, lengths_in
from unsmooth.models.watch import first_input, with_first_input
from unsmooth.models.wiring import ValueParts, Wiring
from unsmooth.remedies.base import Edit, leak
from unsmooth.remedies.call import Call, Volatile, are_one_way, are_packed, packed_starts, read_mask, seen_by
from unsmooth.remedies.hooks import EditHeads, EditValues, Hook
from unsmooth.remedies.memory import Memory
from unsmooth.remedies.passes import begin_pass, end_pass, goes_past_the_stack, shared_in
from unsmooth.remedies.site import is_causal

# What blocks call their masks.
_MASKS = ("attention_mask", "attn_mask", "src_mask", "src_key_padding_mask", "tgt_mask", "tgt_key_padding_mask")


class EnterStack(Hook):
    """Before a pass of the stack: forget the last one, and let edits do what they do for all layers at once."""

    def __init__(self, shared: Volatile, blocks: Sequence[nn.Module]) -> None:
        self.shared = shared
        self.blocks = blocks

    def __call__(self, module: nn.Module, args: Any) -> None:
        """Called by torch before the stack."""
        begin_pass(self.shared)
        prepare(self.blocks)


def prepare(blocks: Sequence[nn.Module]) -> None:
    """Let the edits of these blocks do what they do together before a pass."""
    together: dict[type[Edit], list[Edit]] = {}
    for block in blocks:
        for edit in block.children():
            if type(edit).prepare.__func__ is not Edit.prepare.__func__:  # type: ignore[attr-defined]
                together.setdefault(type(edit), []).append(edit)  # type: ignore[arg-type]
    for kind, edits in together.items():
        kind.prepare(edits)


class LeaveStack(Hook):
    """After a pass: let go of what its blocks shared, unless they may run again in the backward pass."""

    def __init__(self, shared: Volatile) -> None:
        self.shared = shared

    def __call__(self, module: nn.Module, args: Any, output: Any) -> None:
        """Called by torch after the stack."""
        end_pass(self.shared)


class EnterBlock(Hook):
    """Before a block: note who sees whom in this call, and let edits change the stream that it reads."""

    def __init__(
        self, home: nn.Module, now: Volatile, shared: Volatile, block: nn.Module, host: Host, wiring: Wiring
    ) -> None:
        self.home = home
        self.now = now
        self.shared = shared
        self.host = host
        self.batch_first = host.batch_first(block)
        # Images have no padding, whatever mask their blocks are handed.
        self.pads = host.reads(block).mask is not None
        self.wiring = wiring
        # Weights that are proved read the last axis of the stream, which is then its width.
        self.is_image = isinstance(wiring.values, ValueParts)
        self.attention = block.get_submodule(wiring.attention)
        self.layer: int | None = getattr(self.attention, "layer_idx", None)
        names = list(inspect.signature(block.forward).parameters)
        self.at = {name: place for place, name in enumerate(names)}

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Called by torch before the block."""
        self._check_projections(module)
        self._begin_past_the_stack()
        stream = first_input(args, kwargs)
        shared = shared_in(stream, self.shared)
        lengths = self._lengths(stream, args, kwargs)
        laid_out = self.is_image and stream.ndim == 4 and stream.shape[-1] == self.wiring.dim
        if (stream.ndim != 3 or stream.is_nested) and not lengths and not laid_out:
            got = "a nested tensor" if stream.is_nested else f"shape {tuple(stream.shape)}"
            raise expected("a block called with (batch, tokens, dim)", got, "a batch, if of one")
        call = self._call(stream, lengths, shared, args, kwargs)
        given_BND = call.stream
        self.now.begin()["call"] = call
        for edit in self._edits():
            if "on_entering" in edit.places():
                call.stream = edit.on_entering(call.stream, call)
        if call.stream is given_BND:
            return None
        return with_first_input(args, kwargs, call.restored(call.stream, stream, self.batch_first))

    def _call(
        self, stream: Tensor, lengths: tuple[int, ...], shared: dict[str, Any], args: Any, kwargs: Mapping[str, Any]
    ) -> Call:
        """What edits must know of this call."""
        if lengths:
            place_N = torch.arange(max(lengths), device=stream.device)
            inside_BN = place_N < torch.tensor(lengths, device=stream.device)[:, None]
            rows_BND = in_batch(stream, lengths)
            hides = bool(is_causal(self.attention, self.wiring)) or self._causal_by_call(args, kwargs)
            return Call(rows_BND, hides, inside_BN, None, None, shared, masked=True, lengths=lengths)
        places = tuple(stream.shape[1:3]) if stream.ndim == 4 else ()
        stream = stream.flatten(1, 2) if places else stream if self.batch_first else stream.transpose(0, 1)
        batch, tokens = stream.shape[:2]
        causal = is_causal(self.attention, self.wiring)
        if causal is None:
            causal = self._causal_by_call(args, kwargs)
            real_BN: Tensor | None = self.host.real_tokens(args, kwargs)
            starts_BN: Tensor | None = None
        else:
            causal = causal or self._causal_by_call(args, kwargs)  # timm's blocks may be told so
            real_BN, starts_BN = self._masks(args, kwargs, batch, tokens, causal)
        cache = self._argument("past_key_values", args, kwargs)
        cache = cache if cache is not None else self._argument("layer_past", args, kwargs)
        memory = Memory(cache, self.layer) if cache is not None and causal and self.layer is not None else None
        masked = any(self._argument(name, args, kwargs) is not None for name in _MASKS)
        return Call(stream, causal, real_BN, starts_BN, memory, shared, masked=masked, places=places)

    def _lengths(self, stream: Tensor, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[int, ...]:
        """Tokens of each sequence, where the block is handed several in one row and told where each begins."""
        parts: Any = self.home.parts
        in_row = parts.rows is not None and (stream.ndim == 2 or (stream.ndim == 3 and stream.shape[0] == 1))
        return lengths_in(self._argument(parts.rows, args, kwargs), stream.shape[-2]) if in_row else ()

    def _edits(self) -> list[Edit]:
        return [edit for edit in self.home.children() if isinstance(edit, Edit)]

    def _check_projections(self, block: nn.Module) -> None:
        """Refuse a module in the place of one whose values or heads are edited: what it adds would go unedited."""
        if torch.compiler.is_dynamo_compiling():
            return
        projections: Any = self.home.projections
        for path, known in projections.items():
            found = _submodule(block, path)
            if found is not known and not _acts_in(found, known):
                what = f"the {path!r} that remedies were applied to"
                hint = "unsmooth.undo before it is replaced, and unsmooth.apply once it is merged"
                raise expected(what, f"a {type(found).__name__} in its place", hint)

    def _begin_past_the_stack(self) -> None:
        """Where blocks are called one by one: the first begins a pass, and each prepares its own edits."""
        if goes_past_the_stack(self.shared):
            if self.home.is_first:
                begin_pass(self.shared, by_stack=False)
            prepare([self.home])

    def _argument(self, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        if name in kwargs:
            return kwargs[name]
        place = self.at.get(name)
        return args[place] if place is not None and place < len(args) else None

    def _masks(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any], batch: int, tokens: int, causal: bool
    ) -> tuple[Tensor | None, Tensor | None]:
        # Inside a CUDA graph transformers hands on a mask even where nothing is masked.
        mask = whole = self._argument("attention_mask", args, kwargs) if self.pads else None
        if mask is None:  # timm's word for it, in any shape that torch's attention takes
            mask = self._argument("attn_mask", args, kwargs)
            whole = None if mask is None else mask[(None,) * (4 - mask.ndim)]
        held = self.shared.here().get("mask")
        if held is None or held[0] is not mask:  # most models hand all their blocks the same one
            held = self.shared.here()["mask"] = (mask, read_mask(whole, batch, tokens, causal))
        if not causal and whole is not None and whole.ndim == 4 and whole.shape[-2] > 1:
            self._refuse_apart(mask, lambda: seen_by(whole))
        if mask is None and causal and batch == 1 and self._in_one_kernel():
            return None, packed_starts(kwargs, tokens)
        return held[1]

    def _in_one_kernel(self) -> bool:
        """Whether attention is a kernel that is told about packed rows beside the mask."""
        implementation = getattr(getattr(self.attention, "config", None), "_attn_implementation", None)
        return "flash" in str(implementation)

    def _causal_by_call(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
        """Torch's layer is causal where its mask is; torch itself recognises only one form of such a mask."""
        edits = [edit for edit in self._edits() if edit.causal != "unchanged"]
        if not edits:  # nobody asks
            return False
        said = (self._argument(name, args, kwargs) for name in ("is_causal", "tgt_is_causal"))
        masks = (self._argument(name, args, kwargs) for name in ("src_mask", "tgt_mask"))
        causal = any(map(bool, said)) or any(self._hides_future(mask) for mask in masks if mask is not None)
        leaking = [edit for edit in edits if edit.would_leak]
        if causal and leaking:
            raise leak("where attention is causal", type(leaking[0]))
        return causal

    def _hides_future(self, mask: Tensor) -> bool:
        """Reads the mask: a graph break where a model is compiled, and none where `is_causal=True` says it."""
        held = self.shared.here().get("mask")
        if held is None or held[0] is not mask:
            seen = _seen_in_torch(mask)
            held = self.shared.here()["mask"] = (mask, seen.shape[-1] > 1 and not bool(seen.triu(1).any()))
        self._refuse_apart(mask, lambda: _seen_in_torch(mask), causal=bool(held[1]))
        return bool(held[1])

    def _refuse_apart(self, mask: Tensor, seen: Callable[[], Tensor], causal: bool = False) -> None:
        """Tokens that a mask keeps apart would meet in a mean over tokens: sequences in one row, or later ones.

        Looked at where one can look.

        Args:
            mask: As the block is handed it: most models hand all their blocks the same one, or two of them by turns.
            seen: From it, where a query sees a key, (..., queries, keys).
            causal: Whether it is known to hide what comes later, and means are over what came before.
        """
        averaging = [edit for edit in self._edits() if edit.causal != "unchanged" and not _goes_by_attention(edit)]
        if not averaging or torch.compiler.is_dynamo_compiling() or is_functorch_wrapped_tensor(mask):
            return
        if mask.is_cuda and torch.cuda.is_current_stream_capturing():
            return
        looked_at = self.shared.here().setdefault("packed", [])
        known = next((found for one, found in looked_at if one is mask), None)
        if known is None:
            who = seen()
            known = are_packed(who), not causal and are_one_way(who)
            looked_at.append((mask, known))
        packed, one_way = known
        if packed:
            what = f"one sequence in each row for {averaging[0].name}, which compares a token with all others"
            raise expected(what, "several that the mask keeps apart", "a row for each of them, padded")
        leaking = [edit for edit in averaging if edit.would_leak or not edit.leaks(edit.chosen)]
        if one_way and leaking:
            what = f"tokens that see each other for {leaking[0].name}, which compares a token with all others"
            hint = "a model that is causal itself (is_decoder=True), or is_causal=True where the block is told so"
            raise expected(what, "a mask that hides later ones from those before them", hint)


def _seen_in_torch(mask: Tensor) -> Tensor:
    """Where a query sees a key, by a mask of torch's layers, which is True where it does not."""
    return ~mask if mask.dtype == torch.bool else seen_by(mask)


def _submodule(block: nn.Module, path: str) -> nn.Module | None:
    try:
        return block.get_submodule(path)
    except AttributeError:  # a wrapper that hands no names on
        return None


def _acts_in(found: nn.Module | None, known: nn.Module) -> bool:
    """Whether edits that hang on a module still see all there is, with another in its place.

    So it is where that took the hooks over, as quantised modules and replicas do, and where it only wraps the module,
    as compiled ones do; not where it has weights of its own beside it, or other ones.
    """
    if found is None:
        return True
    hooks = (*found._forward_hooks.values(), *found._forward_pre_hooks.values())
    if any(isinstance(hook, EditValues | EditHeads) for hook in hooks):
        return True
    own = {id(one) for one in known.parameters()}
    return any(one is known for one in found.modules()) and all(id(one) in own for one in found.parameters())


def _goes_by_attention(edit: Edit) -> bool:
    """Whether a token gets of others only what attention's own map lets it see."""
    return "on_mixing" in edit.places() and edit.keeps_to_map()
