"""Texts on disk as tokens: splits, formats, cache."""

from __future__ import annotations

import gzip
import json
import pickle
from pathlib import Path

import numpy
import pytest
import torch

from unsmooth.errors import UnsmoothError
from unsmooth.training.data import text as texts
from unsmooth.training.data.text import check_length, open_text
from unsmooth.training.data.text_stream import Stretch, splits

CONTENT = "".join(f"line {number}: größer\n" for number in range(3000)).encode()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "source" / "page.txt"
    path.parent.mkdir()
    path.write_bytes(CONTENT)
    return path


def test_bytes_are_cut_at_90_and_95_percent(path: Path, tmp_path: Path) -> None:
    text = open_text(path, cache=tmp_path / "cache")
    size = len(CONTENT)
    cuts = [0, size * 90 // 100, size * 95 // 100, size]
    assert text.test is not None
    for tokens, start, stop in zip((text.train, text.valid, text.test), cuts, cuts[1:], strict=False):
        assert bytes(tokens[:].tolist()) == CONTENT[start:stop]
        assert len(tokens) == stop - start
    assert (text.vocabulary, text.name, text.synthetic) == (256, "page.txt", False)
    special = open_text(path, special=True, cache=tmp_path / "cache")
    assert torch.equal(special.train[:], text.train[:] + 5)
    assert special.vocabulary == 261


def test_pairs_come_back(path: Path, tmp_path: Path) -> None:
    text = open_text(path, "bpe", 400, cache=tmp_path / "cache")
    assert text.tokenizer.decode(text.train[:].tolist()).encode() == CONTENT[: len(CONTENT) * 90 // 100]
    assert len(text.train) < len(CONTENT) * 90 // 100 / 2
    assert int(text.train[:].max()) < text.vocabulary <= 400


def test_any_packing_gives_the_same_tokens(path: Path, tmp_path: Path) -> None:
    lines = CONTENT.decode().splitlines()
    packed = tmp_path / "a.txt.gz"
    packed.write_bytes(gzip.compress(CONTENT))
    jsonl = tmp_path / "a.jsonl"
    jsonl.write_text("".join(json.dumps({"text": line}) + "\n\n" for line in lines))
    both = tmp_path / "b.jsonl.gz"
    both.write_bytes(gzip.compress(jsonl.read_bytes()))
    whole = open_text(path, cache=tmp_path / "cache")
    for other in (packed, jsonl, both, path.parent):
        text = open_text(other, cache=tmp_path / "cache")
        assert text.digest == whole.digest
        assert text.train.source == whole.train.source  # encoded once


def test_files_named_after_splits(tmp_path: Path) -> None:
    folder = tmp_path / "corpus"
    folder.mkdir()
    for name, content in (("wiki.train.txt", b"aaa"), ("wiki-valid.txt", b"bb"), ("test.txt", b"c"), ("x.json", b"{}")):
        (folder / name).write_bytes(content)
    text = open_text(folder, cache=tmp_path / "cache")
    assert text.test is not None
    assert [bytes(each[:].tolist()) for each in (text.train, text.valid, text.test)] == [b"aaa", b"bb", b"c"]
    (folder / "wiki-valid.txt").unlink()
    text = open_text(folder, cache=tmp_path / "cache")
    assert bytes(text.valid[:].tolist()) == b"c"
    (folder / "wiki.train.txt").rename(folder / "other.txt")
    assert len(open_text(folder, cache=tmp_path / "cache").train) == 3  # of the four bytes, no split is named train


def test_windows_are_slices(path: Path, tmp_path: Path) -> None:
    tokens = open_text(path, cache=tmp_path / "cache").train
    starts = torch.tensor([0, 17, len(tokens) - 8])
    wanted = [list(CONTENT[start : start + 8]) for start in starts.tolist()]
    for each in (tokens, pickle.loads(pickle.dumps(tokens))):
        assert each.windows(starts, 8).tolist() == wanted
        assert each.windows(starts, 8).dtype == torch.int64
    assert torch.equal(tokens.whole(), tokens[:])
    assert tokens.whole(torch.uint8).dtype == torch.uint8


def test_the_cache_is_used_and_mended(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = open_text(path, "bpe", 300, cache=tmp_path / "cache")
    wanted = first.train[:]
    source = first.train.source
    assert isinstance(source, Path)
    with monkeypatch.context() as patch:
        patch.setattr(texts, "train_bpe", None)  # would be called if the tokens were made anew
        assert torch.equal(open_text(path, "bpe", 300, cache=tmp_path / "cache").train[:], wanted)
    tokens = source.read_bytes()
    for broken in (tokens[:-2], bytes([tokens[0] ^ 128]) + tokens[1:]):
        source.write_bytes(broken)
        assert torch.equal(open_text(path, "bpe", 300, cache=tmp_path / "cache").train[:], wanted)
    path.write_bytes(CONTENT + b"more")
    assert open_text(path, "bpe", 300, cache=tmp_path / "cache").digest != first.digest
    assert not [each for each in (tmp_path / "cache").iterdir() if each.name.startswith(".")]


def test_progress_ends_at_the_end(path: Path, tmp_path: Path) -> None:
    steps: list[tuple[int, int]] = []
    open_text(path, cache=tmp_path / "cache", progress=lambda done, total: steps.append((done, total)))
    assert steps[-1] == (len(CONTENT), len(CONTENT))


def test_pieces_end_with_lines_and_miss_nothing(path: Path) -> None:
    stretch = Stretch((path, path), 5, 2 * len(CONTENT) - 7)
    pieces = list(stretch.lines(size=1000))
    assert b"".join(pieces) == (CONTENT * 2)[5:-7]
    assert all(piece.endswith(b"\n") and len(piece) <= 1000 for piece in pieces[:-1])
    # Without lines, characters stay whole.
    path.write_text("ü" * 5000)
    pieces = list(Stretch((path,), 0, 10_000).lines(size=999))
    assert b"".join(pieces).decode() == "ü" * 5000
    assert all(piece.decode() for piece in pieces)


def test_a_long_text_is_never_in_memory_at_once(tmp_path: Path) -> None:
    import tracemalloc

    path = tmp_path / "long.txt"
    block = b"many words in many lines of a text\n" * 30_000
    with path.open("wb") as file:
        for _ in range(24):
            file.write(block)
    size = 24 * len(block)
    tracemalloc.start()
    text = open_text(path, special=True, cache=tmp_path / "cache")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(text.train) == size * 90 // 100
    assert peak < size / 2  # it is 9 MB for a text of any length


def test_the_sample_for_pairs_is_spread_over_the_text(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path.write_bytes(b"early words\n" * 30_000 + b"later words\n" * 30_000)
    monkeypatch.setattr(texts, "_SAMPLE", 1 << 18)
    sample = "".join(texts._sample(splits(path)[0]["train"]))
    assert len(sample) <= 1.3 * (1 << 18)
    assert 0.3 < sample.count("early") / sample.count("words") < 0.7


def test_what_is_refused(path: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    broken = tmp_path / "a.jsonl"
    broken.write_text('{"text": "a"}\n{"text": \n')
    with pytest.raises(UnsmoothError, match=r"JSON object with \"text\" .*line 2 of .*a\.jsonl"):
        open_text(broken, cache=cache)
    broken.write_text('{"text": "a"}\n\n{"words": "a"}\n')
    with pytest.raises(UnsmoothError, match="KeyError in line 3"):
        open_text(broken, cache=cache)
    with pytest.raises(UnsmoothError, match="no such file or folder"):
        open_text(tmp_path / "absent.txt", cache=cache)
    (tmp_path / "empty").mkdir()
    with pytest.raises(UnsmoothError, match="an empty folder"):
        open_text(tmp_path / "empty", cache=cache)
    cut = tmp_path / "cut.txt.gz"
    cut.write_bytes(gzip.compress(CONTENT)[:-20])
    with pytest.raises(UnsmoothError, match=r"a whole gzip file in .*cut\.txt\.gz"):
        open_text(cut, cache=cache)
    with pytest.raises(UnsmoothError, match=r"known tokenizer but got 'byte'\. Did you mean 'bytes'"):
        open_text(path, "byte", cache=cache)  # type: ignore[arg-type]
    assert not cache.exists()


def test_a_text_shorter_than_a_sequence(tmp_path: Path) -> None:
    (tmp_path / "short.txt").write_text("short")
    text = open_text(tmp_path / "short.txt", cache=tmp_path / "cache")
    with pytest.raises(UnsmoothError, match=r"at least 129 tokens in train of short\.txt but got 4"):
        check_length(text, 128)
    (tmp_path / "void.txt").write_text("")
    with pytest.raises(UnsmoothError, match="at least 2 tokens in train"):
        check_length(open_text(tmp_path / "void.txt", cache=tmp_path / "cache"), 1)


def test_large_vocabularies_take_wider_numbers(tmp_path: Path) -> None:
    assert texts.dtype_for(65_536) == "uint16"
    ids = numpy.array([0, 65_536, 99_999], dtype=texts.dtype_for(100_000))
    assert texts.held(ids)[:].tolist() == [0, 65_536, 99_999]
