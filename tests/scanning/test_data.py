"""Every kind of data a user may have."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import transformers
from PIL import Image
from torch.utils.data import DataLoader

import unsmooth
from unsmooth import UnsmoothError
from unsmooth.models import load
from unsmooth.scanning.data import read_texts


@pytest.fixture(scope="module")
def bert(bert_folder):
    return load(str(bert_folder))


@pytest.fixture(scope="module")
def vit():
    config = transformers.ViTConfig(
        hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32, image_size=16, patch_size=8
    )
    return transformers.ViTModel(config)


@pytest.fixture(scope="module")
def processor():
    return transformers.ViTImageProcessorPil(size={"height": 16, "width": 16})


def means(model, data, **options):
    return unsmooth.scan(model, data, progress=False, **options).to_frame()["mean"].to_numpy()


def test_texts_file_folder_and_tensors_agree(bert, texts, tmp_path):
    (tmp_path / "page.txt").write_text("\n\n".join(texts), encoding="utf-8")
    encoded = dict(bert.unsmooth_origin.tokenizer(texts, padding=True, return_tensors="pt"))
    reference = means(bert, texts)
    for data in (
        tmp_path / "page.txt",
        str(tmp_path / "page.txt"),
        tmp_path,
        encoded,
        [encoded],
        DataLoader([{key: value[row] for key, value in encoded.items()} for row in range(len(texts))], batch_size=2),
    ):
        np.testing.assert_allclose(means(bert, data), reference, atol=1e-5)


def test_a_string_with_spaces_is_one_text(bert, texts):
    np.testing.assert_allclose(means(bert, texts[1]), means(bert, [texts[1]]), atol=1e-6)


def test_bare_token_ids(bert):
    ids = torch.randint(5, 20, (3, 7))
    np.testing.assert_allclose(means(bert, ids), means(bert, {"input_ids": ids}), atol=1e-6)


def test_embeddings_go_in_as_embeddings(bert):
    found = unsmooth.scan(bert, torch.randn(2, 5, 32), progress=False)
    assert found.rows[0].tokens == 10


def test_long_texts_are_cut(bert):
    found = unsmooth.scan(bert, ["the cat sat on a mat and saw one dog run"], max_length=6, progress=False)
    assert found.rows[0].tokens == 4
    assert found.manifest["data"]["max_length"] == 6


class Slow:
    """A tokenizer that keeps nothing of what it cuts off, as those written in Python do."""

    def __init__(self, tokenizer):
        self.tokenizer, self.pad_token = tokenizer, tokenizer.pad_token

    def __call__(self, *texts, **options):
        return dict(self.tokenizer(*texts, **options))

    def __getattr__(self, name):
        return getattr(self.tokenizer, name)


@pytest.mark.parametrize("slow", [False, True])
def test_what_is_cut_off_is_counted(bert, slow):
    tokenizer = bert.unsmooth_origin.tokenizer
    texts = ["the cat " * 15, "a dog", "the mat " * 4, "the cat sat"]
    options = {"max_length": 6, "batch_size": 2, "progress": False, "baseline": True}
    found = unsmooth.scan(bert, texts, tokenizer=Slow(tokenizer) if slow else tokenizer, **options)
    # Four words of 30 and of 8 are left beside two special tokens; nothing of the others went.
    assert found.manifest["data"]["cut"] == {"texts": 2, "tokens": 30, "of_tokens": 30 + 6 + 4 + 6 + 5}
    assert "Texts of more than 6 tokens were cut (2 of them): 30 of 51 tokens went." in found.notes
    assert "; texts were cut at 6 tokens, which left out 58 % of all tokens." in found.sentence
    first = unsmooth.scan(bert, texts, max_batches=1, **{**options, "max_length": 31})
    assert first.manifest["data"]["cut"] == {"texts": 1, "tokens": 1, "of_tokens": 31 + 1 + 4}
    assert "cut" not in first.sentence  # less than a tenth
    assert unsmooth.scan(bert, torch.randint(5, 20, (3, 7)), progress=False).manifest["data"].get("cut") is None


def test_texts_are_cut_at_the_model_s_positions(bert):
    found = unsmooth.scan(bert, ["the cat " * 100], progress=False)
    assert found.manifest["data"]["max_length"] == 64


@pytest.mark.parametrize(
    ("name", "content", "texts"),
    [
        ("a.txt", "one\ntwo\n\n\nthree\n", ["one two", "three"]),
        ("b.txt", "one\ntwo\n", ["one", "two"]),
        ("c.jsonl", '{"text": "one"}\n{"text": "two"}\n', ["one", "two"]),
        ("d.txt", "\ufeffone\r\n\r\ntwo", ["one", "two"]),
    ],
)
def test_how_a_file_becomes_texts(tmp_path, name, content, texts):
    (tmp_path / name).write_bytes(content.encode("utf-8"))
    assert read_texts(tmp_path / name) == texts


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.txt", b"\xff\xfe\xfa", "UTF-8"),
        ("b.jsonl", b'{"txt": 1}', "line 1 of b.jsonl"),
        ("c.txt", b"", "at least one text"),
    ],
)
def test_unreadable_files_say_why(bert, tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UnsmoothError, match=message):
        unsmooth.scan(bert, tmp_path / name, progress=False)


def test_an_empty_folder_is_refused(bert, tmp_path):
    with pytest.raises(UnsmoothError, match="an empty folder"):
        unsmooth.scan(bert, tmp_path, progress=False)


def test_images_from_a_folder_and_in_memory(vit, processor, tmp_path):
    generator = np.random.default_rng(0)
    images = [Image.fromarray(generator.integers(0, 255, (20, 20, 3), dtype=np.uint8)) for _ in range(3)]
    for number, image in enumerate(images):
        image.save(tmp_path / f"{number}.png")
    from_folder = means(vit, tmp_path, image_processor=processor)
    np.testing.assert_allclose(from_folder, means(vit, images, image_processor=processor), atol=1e-6)


def test_a_broken_image_is_named(vit, processor, tmp_path):
    (tmp_path / "broken.png").write_bytes(b"\x89PNG\r\n\x1a\n nothing more")
    with pytest.raises(UnsmoothError, match=r"a readable image at broken.png"):
        unsmooth.scan(vit, tmp_path, image_processor=processor, progress=False)


def test_images_need_a_processor(vit, tmp_path):
    Image.new("RGB", (8, 8)).save(tmp_path / "a.png")
    with pytest.raises(UnsmoothError, match="an image processor"):
        unsmooth.scan(vit, tmp_path, progress=False)


def test_the_data_hash_follows_the_data_and_not_the_batches(bert, texts):
    def data_hash(data, **options):
        return unsmooth.scan(bert, data, progress=False, **options).manifest["data"]["sha256"]

    assert data_hash(texts) == data_hash(texts)
    assert data_hash(texts) != data_hash([*texts[:-1], "the cat"])


def test_a_tokenizer_given_by_hand_says_what_is_special(bert):
    tokenizer = bert.unsmooth_origin.tokenizer
    config = transformers.BertConfig(
        vocab_size=len(tokenizer), hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32
    )
    stranger = transformers.BertModel(config)
    found = unsmooth.scan(stranger, ["the cat sat", "a dog saw rain"], tokenizer=tokenizer, progress=False)
    assert found.rows[0].tokens == 3 + 4
