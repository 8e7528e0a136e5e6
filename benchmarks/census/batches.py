"""Batches for any model of transformers, from the signature of its forward and its configuration.

Three sequences of which two end in padding, wherever the model takes a mask. Values of padding are ordinary values.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.census.shrink import FIRST_FREE_ID, VOCABULARY

Batch = dict[str, Any]

SEQUENCES, TOKENS, DECODER_TOKENS, FRAMES, SAMPLES = 3, 11, 7, 64, 2400
PADDING = (0, 2, 4)


class NoBatchError(Exception):
    """No batch was found that the model takes."""


def parts_of(config: Any, depth: int = 0) -> Iterator[Any]:
    """A configuration, then the parts it holds."""
    yield config
    if depth < 4:
        for value in list(vars(config).values()):
            if hasattr(value, "sub_configs"):
                yield from parts_of(value, depth + 1)


def look_up(config: Any, *names: str, kind: type | tuple[type, ...] = int, default: Any = None) -> Any:
    """The first of these fields that a configuration or a part of it has."""
    for name in names:
        for part in parts_of(config):
            value = (
                getattr(part, name, None) if name in vars(part) or name in getattr(part, "attribute_map", {}) else None
            )
            if isinstance(value, kind) and not isinstance(value, bool):
                return value
    return default


class Maker:
    """Makes the fields of a batch for one model."""

    def __init__(self, model: nn.Module, seed: int = 1) -> None:
        self.model, self.config = model, model.config
        self.random = torch.Generator().manual_seed(seed)
        self.fields = {
            name: one
            for name, one in inspect.signature(model.forward).parameters.items()
            if one.kind is not inspect.Parameter.VAR_KEYWORD
        }
        self.placed: dict[int, int] = {}
        self.tokens = TOKENS

    def normal(self, *shape: int) -> Tensor:
        """Random values."""
        return torch.randn(shape, generator=self.random)

    def mask(self, width: int) -> Tensor:
        """Ones, and zeros where two of the sequences end."""
        mask = torch.ones(SEQUENCES, width, dtype=torch.long)
        for row, lost in enumerate(PADDING):
            if lost:
                mask[row, width - lost :] = 0
        return mask

    def ids(self, width: int) -> Tensor:
        """Ids that are no special token."""
        vocabulary = min(look_up(self.config, "vocab_size", default=VOCABULARY) or VOCABULARY, VOCABULARY)
        low = FIRST_FREE_ID if vocabulary > FIRST_FREE_ID + 10 else min(4, vocabulary // 2)
        return torch.randint(low, vocabulary, (SEQUENCES, width), generator=self.random)

    def text(self) -> Batch:
        """Ids with their mask, and tokens placed where features of other kinds go."""
        width = self.tokens + sum(self.placed.values())
        ids = self.ids(width)
        start = 2
        for token, count in self.placed.items():
            ids[:, start : start + count] = token
            start += count
        batch: Batch = {"input_ids": ids}
        if "attention_mask" in self.fields:
            batch["attention_mask"] = self.mask(width)
        if "mm_token_type_ids" in self.fields:
            image = look_up(self.config, "image_token_id", "image_token_index")
            kinds = torch.zeros_like(ids)
            kinds[ids == image] = 1
            batch["mm_token_type_ids"] = kinds
        if "bbox" in self.fields and self.config.model_type == "bros":
            batch["bbox"] = torch.rand(SEQUENCES, width, 8, generator=self.random)
        elif "bbox" in self.fields:
            low = torch.randint(0, 50, (SEQUENCES, width, 2), generator=self.random)
            batch["bbox"] = torch.cat([low, low + torch.randint(1, 49, low.shape, generator=self.random)], -1)
        return batch

    def decoder(self) -> Batch:
        """Ids of a decoder with their mask."""
        batch: Batch = {}
        if "decoder_input_ids" in self.fields:
            batch["decoder_input_ids"] = self.ids(DECODER_TOKENS)
            if "decoder_attention_mask" in self.fields:
                batch["decoder_attention_mask"] = self.mask(DECODER_TOKENS)
        return batch

    def image_size(self) -> tuple[int, int]:
        """Height and width of a picture."""
        size = look_up(self.config, "image_size", "img_size", "input_size", kind=(int, list, tuple), default=32)
        if isinstance(size, int):
            return size, size
        return int(size[-2]), int(size[-1])

    def pixels(self) -> Iterator[Batch]:
        """Pictures in the shapes that models take."""
        name = next(one for one in ("pixel_values", "pixel_values_videos", "image_pixel_values") if one in self.fields)
        channels = look_up(self.config, "num_channels", "in_channels", "in_chans", default=3)
        channels = channels if channels in (1, 3, 4) else 3
        height, width = self.image_size()
        plain = {name: self.normal(SEQUENCES, channels, height, width)}
        frames = look_up(self.config, "num_frames", "frames_per_clip", default=4)
        video = {name: self.normal(SEQUENCES, frames, channels, height, width)}
        many = {name: self.normal(SEQUENCES, 1, channels, height, width)}
        if "image_sizes" in self.fields:
            sized = {"image_sizes": torch.tensor([[height, width]] * SEQUENCES)}
            yield {**plain, **sized}
            yield {name: self.normal(SEQUENCES, 2, channels, height, width), **sized}
            yield {name: self.normal(SEQUENCES, 5, channels, height, width), **sized}
        yield from self.packed_pixels()
        yield plain
        yield many
        yield video
        side = 4
        patch = look_up(self.config, "patch_size", default=8)
        patch = patch if isinstance(patch, int) else patch[0]
        flat = {name: self.normal(SEQUENCES, side * side, channels * patch * patch)}
        grid = torch.stack(torch.meshgrid(torch.arange(side), torch.arange(side), indexing="xy"), -1).reshape(1, -1, 2)
        places = grid.repeat(SEQUENCES, 1, 1)
        extra: Batch = {}
        if "target_sizes" in self.fields:
            sizes = {"target_sizes": torch.tensor([[side, side]] * SEQUENCES)}
            yield {name: self.normal(SEQUENCES, channels, patch, side * side * patch), **sizes}
            yield {name: self.normal(1, channels, patch, SEQUENCES * side * side * patch), **sizes}
        if "spatial_shapes" in self.fields:
            extra["spatial_shapes"] = torch.tensor([[side, side]] * SEQUENCES)
        for field in ("pixel_position_ids", "image_position_ids"):
            if field in self.fields:
                extra[field] = places
        for field in ("pixel_attention_mask", "attention_mask"):
            if field in self.fields and "input_ids" not in self.fields:
                extra[field] = torch.ones(SEQUENCES, side * side, dtype=torch.long)
        yield {**flat, **extra}
        for size in (64, 128, 224):
            if size > height:
                yield {name: self.normal(SEQUENCES, channels, size, size)}

    def packed_pixels(self) -> Iterator[Batch]:
        """Patches of all pictures in one matrix, with the grid of each."""
        grid_name = next((one for one in ("image_grid_thw", "grid_thw") if one in self.fields), None)
        if grid_name is None:
            return
        for channels in (3,):
            patch = look_up(self.config, "patch_size", default=8)
            frames = look_up(self.config, "temporal_patch_size", default=1)
            merge = look_up(self.config, "spatial_merge_size", "merge_size", default=1)
            side = 2 * merge if merge > 1 else 4
            for depth in dict.fromkeys((frames, 1, 2)):
                rows = SEQUENCES * side * side
                patches = self.normal(rows, channels * depth * patch * patch)
                name = "pixel_values" if "pixel_values" in self.fields else "hidden_states"
                batch = {name: patches, grid_name: torch.tensor([[1, side, side]] * SEQUENCES)}
                yield batch
                if depth == 1:
                    yield {**batch, name: patches.reshape(rows, channels, patch, patch)}
                    yield {**batch, name: patches.reshape(1, rows, channels, patch, patch)}

    def sound(self) -> Iterator[Batch]:
        """Samples or features of sound."""
        bins = look_up(self.config, "num_mel_bins", "feature_size", "n_mels", "input_dim", "num_mel_filters",
                       "feature_projection_input_dim", "input_feat_size", "input_feat_per_channel",
                       "input_channels", default=16)  # fmt: skip
        limit = look_up(self.config, "max_source_positions", default=None)
        length = 2 * limit if limit else FRAMES
        for name in ("input_features", "audio_features", "input_values", "audio_values", "audio_input_features"):
            if name not in self.fields:
                continue
            masks: Batch = {}
            features = {
                "last": self.normal(SEQUENCES, length, bins),
                "first": self.normal(SEQUENCES, bins, length),
                "samples": self.normal(SEQUENCES, SAMPLES),
                "channel": self.normal(SEQUENCES, 1, SAMPLES),
                "picture": self.normal(SEQUENCES, 1, 4 * length, bins),
            }
            order = (
                ("last", "first", "samples", "channel", "picture")
                if "features" in name
                else ("samples", "channel", "last", "first")
            )
            if (
                look_up(self.config, "max_length", default=0)
                and name == "input_values"
                and hasattr(self.config, "num_mel_bins")
            ):
                features["last"] = self.normal(SEQUENCES, self.config.max_length, bins)
                order = ("last", "samples")
            for shape in order:
                frames = length if shape in ("last", "first", "picture") else SAMPLES
                for field in ("input_features_mask", "feature_attention_mask", "padding_mask", "input_values_mask",
                              "audio_attention_mask", "attention_mask"):  # fmt: skip
                    if field in self.fields and (field != "attention_mask" or "input_ids" not in self.fields):
                        cut = self.lengths_mask(frames)
                        yield {name: features[shape], **masks, field: cut}
                        yield {name: features[shape], **masks, field: cut.bool()}
                yield {name: features[shape], **masks}

    def lengths_mask(self, frames: int) -> Tensor:
        """Ones, and zeros in the last eighth and quarter of two sequences."""
        mask = torch.ones(SEQUENCES, frames, dtype=torch.long)
        for row, share in enumerate((0, 8, 4)):
            if share:
                mask[row, frames - frames // share :] = 0
        return mask

    def proposals(self) -> Iterator[list[Callable[[], Batch]]]:
        """What to hand in, the fullest first, as makers of parts that go together."""
        has_text = "input_ids" in self.fields
        has_pixels = any(one in self.fields for one in ("pixel_values", "image_pixel_values")) or (
            "pixel_values_videos" in self.fields and not has_text
        )
        packed = "grid_thw" in self.fields
        has_sound = any(
            one in self.fields for one in ("input_features", "input_values", "audio_input_features", "audio_values")
        )
        words = [self.text, self.decoder] if has_text else [self.decoder]
        pictures = list(self.pixels()) if has_pixels else list(self.packed_pixels()) if packed else []
        sounds = list(self.sound()) if has_sound else []
        for picture in pictures:
            if sounds:
                for sound in sounds[:2]:
                    yield [*words, lambda one=picture: one, lambda one=sound: one]
            yield [*words, lambda one=picture: one]
        for sound in sounds:
            yield [*words, lambda one=sound: one]
        if has_text:
            yield words
        for picture in pictures:
            yield [lambda one=picture: one]
        for sound in sounds:
            yield [lambda one=sound: one]
        if "inputs_embeds" in self.fields:
            width = look_up(self.config, "hidden_size", "d_model", default=32)
            yield [lambda: {"inputs_embeds": self.normal(SEQUENCES, TOKENS, width)}]
        if "hidden_states" in self.fields:
            yield [lambda: {"hidden_states": self.normal(SEQUENCES, 3, 2 * 32, 2 * 32)}]
            for width in (
                look_up(self.config, "hidden_size", "d_model", default=32),
                look_up(self.config, "input_dim", default=32),
            ):
                yield [lambda width=width: {"hidden_states": self.normal(SEQUENCES, TOKENS, width)}]


MISMATCH = re.compile(
    r"tokens:? (?:tensor\()?(\d+)\)?,? (?:and )?(?:image |audio )?features:?\s*(?:tensor\()?(\d+)", re.IGNORECASE
)


def placeholder(maker: Maker, message: str) -> int | None:
    """The token that the message asks for more of."""
    kinds = ("audio",) if "udio" in message.split("tokens")[0] else ("image", "img", "im_patch", "media")
    for kind in kinds:
        found = look_up(maker.config, f"{kind}_token_id", f"{kind}_token_index", f"{kind}_token")
        if found is not None:
            return int(found)
    return None


@torch.no_grad()
def try_out(model: nn.Module, maker: Maker, parts: list[Callable[[], Batch]]) -> Batch | str:
    """The batch if the model takes it, with as many placeholders as there are features; else what went wrong."""
    maker.placed = {}
    for _ in range(4):
        batch: Batch = {}
        for part in parts:
            batch |= part()
        try:
            model(**batch)
        except Exception as error:  # what a model raises may be anything
            message = f"{type(error).__name__}: {error}"
            hit = MISMATCH.search(message)
            token = placeholder(maker, message) if hit else None
            if hit is None or token is None or int(hit[2]) % SEQUENCES or int(hit[1]) % SEQUENCES:
                return message
            count = int(hit[2]) // SEQUENCES
            if maker.placed.get(token) == count:
                return message
            maker.placed[token] = count
        else:
            return batch
    return "no number of placeholders was right"


def batch_for(model: nn.Module, extra: Callable[[Maker], Batch] | None = None, most: int = 90) -> Batch:
    """The fullest batch that a model takes.

    Args:
        model: A model of transformers.
        extra: Makes the batch by hand instead.
        most: Give up after so many tries.

    Raises:
        NoBatchError: None was taken; says what the first and the last try met.
    """
    maker = Maker(model)
    if extra is not None:
        batch = extra(maker)
        with torch.no_grad():
            model(**batch)
        return batch
    met = []
    for number, parts in enumerate(maker.proposals()):
        if number == most:
            break
        found = try_out(model, maker, parts)
        if not isinstance(found, str):
            return found
        met.append(found)
    first = met[0] if met else f"no known input among {', '.join(maker.fields)}"
    raise NoBatchError(" | ".join(dict.fromkeys(one[:200].replace("\n", " ") for one in (first, *met[-1:]))))
