"""Tokenizers and image processors: found where their files are, absent otherwise, and never a reason to fail."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from unsmooth.errors import UnsmoothError
from unsmooth.files import open_file
from unsmooth.models.quiet import quiet

# What transformers reads beside the weights, and the most bytes of one; the largest vocabularies have a fourth of it.
_BESIDE = ("*.json", "*.txt", "*.model", "*.vocab", "*.bpe", "*.tiktoken", "*.jinja", "additional_chat_templates/*")
_LARGEST = 1 << 27
_OBJECTS = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "vocab.json")


def find_tokenizer(name: str, **options: Any) -> Any | None:
    """The tokenizer in a folder or the local cache, ready to pad; None where there is none."""
    if not _is_sane(Path(name)):
        return None
    # Left open, remote code is a question that transformers asks on the terminal.
    options = {"trust_remote_code": False} | options
    try:
        from transformers import AutoTokenizer

        with quiet():
            tokenizer = AutoTokenizer.from_pretrained(name, local_files_only=True, **options)
    except Exception:  # whatever stops a tokenizer, the model can still be fed token ids
        return None
    # Without files, transformers makes a tokenizer that knows nothing but its special tokens.
    if len(tokenizer) <= len(set(tokenizer.all_special_ids)):
        return None
    if tokenizer.pad_token is None and tokenizer.eos_token is not None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def _is_sane(folder: Path) -> bool:
    """Whether transformers may read what is beside the weights, whole and several times: it is of usual sizes."""
    for path in {path for pattern in _BESIDE for path in folder.glob(pattern) if path.is_file()}:
        try:
            with open_file(path) as file:
                start = file.read(1024).lstrip(b"\xef\xbb\xbf \t\r\n")
                if file.seek(0, 2) > _LARGEST or (path.name in _OBJECTS and not start.startswith(b"{")):
                    return False
        except (OSError, UnsmoothError):
            return False
    return True


def find_own_tokenizer(folder: Path, length: int | None) -> Any | None:
    """The tokenizer beside a network of ours, whose longest text is `length` tokens."""
    tokenizer = find_tokenizer(str(folder)) or _from_file(folder / "tokenizer.json")
    if tokenizer is None or not len(tokenizer):
        return None
    if tokenizer.pad_token is None:
        # Padding is masked, so any token will do; the last is the rarest, or a byte that no text has.
        tokenizer.pad_token = tokenizer.convert_ids_to_tokens(len(tokenizer) - 1)
    if length is not None:
        tokenizer.model_max_length = min(tokenizer.model_max_length, length)
    return tokenizer


def _from_file(file: Path) -> Any | None:
    if not (file.is_file() and _is_sane(file.parent)):
        return None
    try:
        from transformers import PreTrainedTokenizerFast

        with quiet():
            return PreTrainedTokenizerFast(tokenizer_file=str(file))
    except Exception:  # as above: without one, the network can still be fed token ids
        return None


def find_image_processor(name: str, **options: Any) -> Any | None:
    """The image processor in a folder or the local cache, on PIL and numpy; None where there is none."""
    if not _is_sane(Path(name)):
        return None
    options = {"trust_remote_code": False, "backend": "pil"} | options
    try:
        from transformers import AutoImageProcessor

        with quiet():
            return AutoImageProcessor.from_pretrained(name, local_files_only=True, **options)
    except Exception:
        return None
