"""Every kind of data a user may have: beside the numbers that the same data give as a plain tensor or list."""

from __future__ import annotations

import json

import numpy as np
import pandas
import pytest
import torch
import transformers
from PIL import Image
from torch.utils.data import DataLoader, TensorDataset

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


def test_an_empty_text_is_not_the_folder_one_is_in(bert):
    with pytest.raises(UnsmoothError, match="Expected at least one sequence of two or more tokens"):
        unsmooth.scan(bert, "", progress=False)


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


def test_long_texts_together_are_encoded_as_one_by_one(bert, monkeypatch):
    texts = ["the cat " * 15, "a dog", "the mat " * 4, "the cat sat"]
    options = {"max_length": 6, "batch_size": 4, "progress": False}
    whole = unsmooth.scan(bert, texts, **options)
    monkeypatch.setattr("unsmooth.scanning.rows._LONGEST", 130)
    apart = unsmooth.scan(bert, texts, **options)
    assert apart.manifest["data"] == whole.manifest["data"]
    assert apart.rows == whole.rows
    with pytest.raises(UnsmoothError, match="Expected texts of at most 130 characters but got one of 160"):
        unsmooth.scan(bert, ["a dog", "the mat " * 20], **options)


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
    with pytest.raises(UnsmoothError, match=r"Expected a whole image in .*broken.png but got "):
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


IDS = torch.tensor([[5, 9, 7, 12, 6, 20, 8, 5], [11, 6, 6, 19, 5, 21, 10, 9], [8, 20, 13, 5, 9, 9, 7, 15]])


@pytest.mark.parametrize(
    "made",
    [
        *(
            pytest.param(lambda kind=kind: IDS.to(kind), id=str(kind))
            for kind in (torch.int8, torch.uint8, torch.int32)
        ),
        *(
            pytest.param(lambda kind=kind: IDS.numpy().astype(kind), id=kind)
            for kind in ("i1", "u2", "u4", "u8", ">i4")
        ),
        pytest.param(lambda: torch.repeat_interleave(IDS, 2, dim=1)[:, ::2], id="every second"),
        pytest.param(lambda: IDS.T.contiguous().T, id="transposed"),
        pytest.param(lambda: IDS[:1].expand(3, 8).clone().copy_(IDS), id="expanded"),
        pytest.param(lambda: IDS.numpy()[:, ::-1].copy()[:, ::-1], id="backwards"),
        pytest.param(lambda: np.broadcast_to(IDS.numpy(), (1, 3, 8))[0], id="read-only"),
        pytest.param(IDS.tolist, id="nested list"),
        pytest.param(lambda: tuple(map(tuple, IDS.tolist())), id="nested tuple"),
        pytest.param(lambda: list(IDS), id="list of rows"),
        pytest.param(lambda: [list(row) for row in IDS.numpy()], id="list of numpy's numbers"),
        pytest.param(lambda: pandas.Series(IDS.tolist()), id="Series of lists"),
        pytest.param(lambda: TensorDataset(IDS, torch.zeros(3)), id="TensorDataset"),
    ],
)
def test_ids_however_they_are_stored(bert, made):
    wanted = unsmooth.scan(bert, IDS, progress=False)
    found = unsmooth.scan(bert, made(), progress=False)
    assert found.rows == wanted.rows
    assert found.manifest["data"]["sha256"] == wanted.manifest["data"]["sha256"]


def test_another_id_is_another_hash(bert):
    other = IDS.clone()
    other[2, 7] = 14
    hashes = {unsmooth.scan(bert, ids, progress=False).manifest["data"]["sha256"] for ids in (IDS, other, IDS[:, :-1])}
    assert len(hashes) == 3


def test_a_strided_mask_and_ids_of_another_kind_in_a_dict(bert):
    wide = torch.ones(3, 16)
    wide[0, 8:] = 0
    batch = {"input_ids": IDS, "attention_mask": wide[:, ::2].contiguous()}
    given = {"input_ids": IDS.numpy().astype("i2"), "attention_mask": (wide[:, ::2] > 0).numpy()}
    np.testing.assert_array_equal(means(bert, given), means(bert, batch))


def table(texts):
    return pandas.DataFrame({"text": texts, "label": range(len(texts))})


@pytest.mark.parametrize(
    "made",
    [
        pytest.param(table, id="DataFrame"),
        pytest.param(lambda texts: table(texts)["text"], id="Series"),
        pytest.param(lambda texts: table(texts).rename(columns={"text": "anything"}), id="only column of strings"),
        pytest.param(lambda texts: table(texts).assign(author="somebody"), id="column called text"),
        pytest.param(lambda texts: {"text": texts, "label": [0] * len(texts)}, id="dict of lists"),
        pytest.param(lambda texts: table(texts).to_dict("records"), id="list of dicts"),
        pytest.param(lambda texts: [(text, 0) for text in texts], id="list of pairs"),
        pytest.param(lambda texts: (text for text in texts), id="generator"),
        pytest.param(np.array, id="array of strings"),
        pytest.param(lambda texts: DataLoader(texts, batch_size=16), id="DataLoader"),
        pytest.param(lambda texts: DataLoader([(text, 0) for text in texts], batch_size=16), id="DataLoader of pairs"),
        pytest.param(lambda texts: DataLoader(table(texts).to_dict("records"), batch_size=16), id="DataLoader of rows"),
    ],
)
def test_texts_however_they_are_held(bert, texts, made):
    found, wanted = (unsmooth.scan(bert, data, max_length=8, progress=False) for data in (made(texts), texts))
    assert found.rows == wanted.rows
    # With their ends the texts have 8, 15, 4, 13 and 10 tokens.
    assert found.manifest["data"]["cut"] == {"texts": 3, "tokens": 7 + 5 + 2, "of_tokens": 50}
    assert found.notes == wanted.notes


def test_a_loader_whose_last_batch_is_one_pair(bert, texts):
    loader = DataLoader([(text, 0) for text in texts], batch_size=2)
    np.testing.assert_array_equal(means(bert, loader), means(bert, texts, batch_size=2))


def test_tokenised_rows_are_padded_and_masked(bert, texts):
    tokenizer = bert.unsmooth_origin.tokenizer
    padded = dict(tokenizer(texts, padding=True, return_tensors="pt"))
    wanted = means(bert, padded)
    ids = tokenizer(texts)["input_ids"]
    assert len({len(row) for row in ids}) > 1
    for data in (ids, [torch.tensor(row) for row in ids], tokenizer(texts), [dict(tokenizer(text)) for text in texts]):
        np.testing.assert_array_equal(means(bert, data), wanted)
    one = {"input_ids": padded["input_ids"][2:3, :4], "attention_mask": padded["attention_mask"][2:3, :4]}
    np.testing.assert_array_equal(means(bert, tokenizer(texts[2])), means(bert, one))


@pytest.mark.parametrize("ids_first", [True, False])
def test_a_mask_beside_rows_of_several_lengths_is_theirs(bert, ids_first):
    masked, plain = {"attention_mask": [[0, 0, 1, 1, 1], [1, 1, 1]]}, {"input_ids": [[0, 0, 5, 6, 7], [8, 9, 10]]}
    rows = {**plain, **masked} if ids_first else {**masked, **plain}
    padded = {"input_ids": torch.tensor([[0, 0, 5, 6, 7], [8, 9, 10, 0, 0]])}
    padded["attention_mask"] = torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 0, 0]])
    np.testing.assert_array_equal(means(bert, rows), means(bert, padded))
    rows["attention_mask"][1].append(1)
    message = "Expected attention_mask for 3 tokens but got 4 in row 1 of its batch"
    with pytest.raises(UnsmoothError, match=message):
        means(bert, rows)


@pytest.mark.parametrize(
    ("made", "kind"),
    [
        (lambda: torch.nested.nested_tensor([IDS[0], IDS[1, :5]]), "nested"),
        (lambda: torch.nested.nested_tensor([IDS[0], IDS[1, :5]], layout=torch.jagged), "nested"),
        (lambda: {"input_ids": IDS.to_sparse()}, "sparse"),
    ],
)
def test_tensors_of_other_layouts_are_refused(bert, made, kind):
    with pytest.raises(UnsmoothError, match=f"Expected dense tensors but got one that is {kind}"):
        means(bert, made())


@pytest.mark.parametrize("made", [IDS.to("meta"), {"input_ids": IDS.to("meta")}, [IDS.to("meta")]])
def test_tensors_without_numbers_are_refused(bert, made):
    with pytest.raises(UnsmoothError, match="Expected tensors with numbers but got one on the meta device"):
        means(bert, made)


def test_a_model_without_a_mask_takes_ids_of_one_length_only():
    stack = torch.nn.Sequential(torch.nn.Embedding(30, 8), torch.nn.Linear(8, 8), torch.nn.Linear(8, 8))
    assert unsmooth.scan(stack, IDS.tolist(), blocks="[12]", progress=False).rows[0].tokens == 24
    with pytest.raises(UnsmoothError, match=r"rows of one shape in 'input_ids' but got \(2,\) and \(3,\)"):
        unsmooth.scan(stack, [[1, 2], [3, 4, 5]], blocks="[12]", progress=False)


@pytest.mark.parametrize("form", [None, "torch", "numpy", "pandas", "arrow"])
def test_data_sets(bert, texts, form):
    datasets = pytest.importorskip("datasets")
    plain = datasets.Dataset.from_dict({"text": texts, "label": list(range(len(texts)))})
    tokenised = datasets.Dataset.from_dict({**bert.unsmooth_origin.tokenizer(texts), "label": list(range(len(texts)))})
    wanted = means(bert, texts)
    for data in (plain, tokenised):
        np.testing.assert_array_equal(means(bert, data.with_format(form)), wanted)
        # As a stream, a table at a time has one row.
        exactly = {"rtol": 1e-6} if form in ("pandas", "arrow") else {"rtol": 0}
        np.testing.assert_allclose(means(bert, data.to_iterable_dataset().with_format(form)), wanted, **exactly)
    stream = plain.to_iterable_dataset()
    np.testing.assert_array_equal(
        means(bert, stream, batch_size=2, max_batches=1), means(bert, texts[:2], batch_size=2)
    )
    with pytest.raises(UnsmoothError, match=r"one split of a data set but got 'train' and 'test'. Try data\['train'\]"):
        unsmooth.scan(bert, datasets.DatasetDict(train=plain, test=plain), progress=False)


class Columns:
    """What a datasets.Dataset is to its reader, where that package is not there."""

    column_names = ("text", "label")

    def __init__(self, texts):
        self.texts = texts

    def __len__(self):
        return len(self.texts)

    def __getitem__(self, rows):
        return {"text": self.texts[rows], "label": [0] * len(self.texts[rows])}


class Frames(Columns):
    """The same as a data set of the format "pandas" has it."""

    def __getitem__(self, rows):
        return pandas.DataFrame(super().__getitem__(rows))


def test_tables_of_tables(bert, texts):
    for data in (Frames(texts), (Frames(texts)[start : start + 2] for start in range(0, 6, 2))):
        np.testing.assert_array_equal(means(bert, data, batch_size=2), means(bert, texts, batch_size=2))


def test_a_table_by_columns_is_read_slice_by_slice(bert, texts):
    np.testing.assert_array_equal(means(bert, Columns(texts), batch_size=2), means(bert, texts, batch_size=2))
    with pytest.raises(UnsmoothError, match="a text in every row but got broken text in row 3"):
        unsmooth.scan(bert, [*texts[:3], "half a pair \ud800"], progress=False)
    with pytest.raises(UnsmoothError, match="a text in every row but got NoneType in row 3"):
        unsmooth.scan(bert, Columns([*texts[:3], None]), batch_size=2, progress=False)


def three_images():
    pixels = np.random.default_rng(0).integers(0, 255, (3, 20, 24, 3), dtype=np.uint8)
    return pixels, [Image.fromarray(one) for one in pixels]


def test_images_however_they_are_held(vit, processor):
    pixels, images = three_images()
    wanted = means(vit, images, image_processor=processor)
    first = torch.from_numpy(pixels).permute(0, 3, 1, 2)
    frame = pandas.DataFrame({"image": images, "caption": "one"})
    for data in (pixels, list(pixels), first, [(one, 0) for one in images], frame):
        np.testing.assert_array_equal(means(vit, data, image_processor=processor), wanted)


@pytest.mark.parametrize("form", [None, "torch", "numpy"])
def test_data_sets_of_images(vit, processor, form):
    datasets = pytest.importorskip("datasets")
    _, images = three_images()
    features = datasets.Features(image=datasets.Image(), label=datasets.Value("int64"))
    data = datasets.Dataset.from_dict({"image": images, "label": [0, 1, 2]}, features=features).with_format(form)
    wanted = means(vit, images, image_processor=processor)
    np.testing.assert_array_equal(means(vit, data, image_processor=processor), wanted)


def test_files_with_columns(bert, texts, tmp_path):
    frame = table(texts).rename(columns={"text": "review"}).assign(author="somebody")
    frame.to_csv(tmp_path / "a.csv", index=False)
    frame.to_csv(tmp_path / "a.tsv", index=False, sep="\t")
    lines = [json.dumps(row) for row in frame.to_dict("records")]
    (tmp_path / "a.jsonl").write_text("\n".join(lines), encoding="utf-8")
    wanted = means(bert, texts)
    for suffix in ("csv", "tsv", "jsonl"):
        np.testing.assert_array_equal(means(bert, tmp_path / f"a.{suffix}", column="review"), wanted)
    (tmp_path / "a.txt").write_text("one text", encoding="utf-8")
    (tmp_path / "b.csv").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "c.csv").write_text('a,b\n1,2,3\n"', encoding="utf-8")
    (tmp_path / "d.csv").write_text("", encoding="utf-8")
    (tmp_path / "e.csv").write_text("," * 1_000_000, encoding="utf-8")
    for name, column, message in (
        ("a.csv", None, "a column of texts or images"),
        ("a.txt", "review", "a table or a .jsonl file"),
        ("b.csv", None, "a readable table at b.csv"),
        ("c.csv", None, "a readable table at c.csv"),
        ("d.csv", None, "a readable table at d.csv"),
        ("e.csv", None, "a table of at most 10,000 columns at e.csv but got one of 1,000,001"),
    ):
        with pytest.raises(UnsmoothError, match=message):
            unsmooth.scan(bert, tmp_path / name, column=column, progress=False)


@pytest.mark.parametrize(
    ("made", "options", "message"),
    [
        (lambda texts: pandas.DataFrame({"a": texts, "b": texts}), {}, "got the columns 'a', 'b'. Try column='a'"),
        (lambda texts: pandas.DataFrame({"n": [1]}), {}, "got the columns 'n'"),
        (table, {"column": "txt"}, "one of the columns 'text', 'label' but got 'txt'"),
        (lambda texts: texts, {"column": "text"}, "a table to read a column of"),
        (lambda texts: table([*texts[:3], None]), {}, "a text in every row but got (float|NoneType) in row 3"),
        (lambda texts: [("one", "two"), ("three", "four")], {}, "got pairs of texts"),
        (lambda texts: table(texts).iloc[:0], {}, "empty data"),
        (lambda texts: {"text": texts, "label": [0]}, {}, "columns of one length but got 'text': 5, 'label': 1"),
        (lambda texts: [[5, 6], [[7]]], {}, "rows of one shape in 'input_ids'"),
        (lambda texts: np.zeros((2, 3), complex), {}, "batches that are tensors"),
        (lambda texts: torch.ones(2, 5, dtype=torch.bool), {}, "a torch.bool tensor"),
    ],
)
def test_tables_that_cannot_be_read_say_why(bert, texts, made, options, message):
    with pytest.raises(UnsmoothError, match=message):
        unsmooth.scan(bert, made(texts), progress=False, **options)


def test_explanations_and_definitions_read_the_same_data(bert, texts):
    frame = pandas.DataFrame({"a": texts, "b": "no"})
    for read in (unsmooth.explain, unsmooth.compare_presets):
        options = {"jacobian": False} if read is unsmooth.explain else {"presets": ["vita"]}
        by_column = read(bert, frame, column="a", progress=False, **options)
        plain = read(bert, texts, progress=False, **options)
        assert shown(by_column) == shown(plain)


def shown(found):
    return [one.measured for one in found.layers] if hasattr(found, "layers") else found.to_frame().values.tolist()
