"""Tokenizers against the library and against transformers."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from unsmooth.errors import UnsmoothError
from unsmooth.training.data.tokenizing import (
    CLS,
    MASK,
    SEP,
    SPECIAL,
    BpeTokenizer,
    ByteTokenizer,
    encode_segments,
    load_tokenizer,
    train_bpe,
)

TEXT = "The cat sat on the mat; der Kater saß auf der Matte. 猫 \n\tx  y"


@pytest.fixture(scope="module")
def bpe() -> BpeTokenizer:
    return train_bpe([TEXT * 20, "another text about cats and mats"], vocabulary=300)


@pytest.mark.parametrize("special", [False, True])
def test_the_library_reads_bytes_as_we_do(tmp_path: Path, special: bool) -> None:
    import tokenizers

    ours = ByteTokenizer(special)
    ours.save(tmp_path)
    theirs = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    everything = TEXT + "".join(chr(sign) for sign in range(256)) + "\U0001f600"
    assert theirs.encode(everything).ids == ours.encode(everything.encode()).tolist()
    assert theirs.decode(ours.encode(TEXT.encode()).tolist()) == TEXT
    assert theirs.get_vocab_size() == ours.vocabulary
    again = load_tokenizer(tmp_path)
    assert isinstance(again, ByteTokenizer)
    assert again.special == special


def test_transformers_reads_the_folder(tmp_path: Path, bpe: BpeTokenizer) -> None:
    from transformers import AutoTokenizer

    bpe.save(tmp_path)
    theirs = AutoTokenizer.from_pretrained(tmp_path)
    assert theirs(TEXT)["input_ids"] == bpe.encode(TEXT.encode()).tolist()
    assert theirs.mask_token_id == MASK
    assert theirs.pad_token_id == 0


@settings(max_examples=30, deadline=None)
@given(st.text())
def test_bytes_come_back(text: str) -> None:
    content = text.encode("utf-8", "replace")
    for tokenizer in (ByteTokenizer(), ByteTokenizer(special=True)):
        assert tokenizer.decode(tokenizer.encode(content)).encode() == content


def test_pairs_come_back(bpe: BpeTokenizer, tmp_path: Path) -> None:
    ids = bpe.encode(TEXT.encode())
    assert bpe.decode(ids) == TEXT
    assert bpe.decode([CLS, *ids, SEP]) == TEXT
    assert len(ids) < len(TEXT.encode())
    assert bpe.vocabulary == 300
    assert [bpe.inner.token_to_id(name) for name in SPECIAL] == [0, 1, 2, 3, 4]
    bpe.save(tmp_path)
    for again in (load_tokenizer(tmp_path), pickle.loads(pickle.dumps(bpe))):
        assert again.encode(TEXT.encode()).tolist() == ids.tolist()
        # A text that spells a special token has none.
        assert again.encode(b"[MASK]").min() >= len(SPECIAL)


def test_what_cannot_be_loaded(tmp_path: Path) -> None:
    with pytest.raises(UnsmoothError, match=r"no tokenizer\.json"):
        load_tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_text(json.dumps({"model": {}}))
    with pytest.raises(UnsmoothError, match="a broken file"):
        load_tokenizer(tmp_path)
    with pytest.raises(UnsmoothError, match="at least 261"):
        train_bpe(["x"], vocabulary=260)


def one_at_a_time(sizes: list[int], room: int) -> int:
    """Cut one id after the other from the longest segment."""
    sizes = list(sizes)
    while sum(sizes) > room:
        sizes[sizes.index(max(sizes))] -= 1
    return sum(sizes)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(1, 40), min_size=1, max_size=4), st.integers(9, 60))
def test_segments_are_cut_from_the_longest(sizes: list[int], length: int) -> None:
    segments = ["abcd"[place] * size for place, size in enumerate(sizes)]
    ids = encode_segments(ByteTokenizer(special=True), segments, length)
    room = length - 1 - len(sizes)
    assert len(ids) == 1 + len(sizes) + one_at_a_time(sizes, room)
    assert ids[0] == CLS
    kept, current = [], 0
    for each in ids[1:]:
        current = current + 1 if each != SEP else kept.append(current) or 0
    assert len(kept) == len(sizes)
    if sum(sizes) > room:
        # What was cut is now as long as the longest that was not, give or take one.
        cut = [count for count, size in zip(kept, sizes, strict=True) if count < size]
        assert min(cut) >= max(kept) - 1


def test_segments_need_special_ids_and_room() -> None:
    with pytest.raises(UnsmoothError, match="a tokenizer without special ids"):
        encode_segments(ByteTokenizer(), ["a"], 10)
    with pytest.raises(UnsmoothError, match="a length of at least 5"):
        encode_segments(ByteTokenizer(special=True), ["a", "b"], 4)
