"""A valid specimen of everything that is read from disk, how it is read, and how what was read is used."""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import os
import pickle
import shutil
import tarfile
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

import numpy
import torch
from torch import nn

import unsmooth
from tests.fuzz.mutation import mutate
from unsmooth import networks, posthoc
from unsmooth.cli.app import run as command
from unsmooth.evidence.records import Record, Store, Trained
from unsmooth.networks.pixels import Pixels
from unsmooth.report.html import page_data
from unsmooth.report.series import series_of

Use = Callable[[Path, Random], Any]


@dataclass(frozen=True)
class Specimen:
    """Files of one kind.

    Args:
        name: What they are.
        write: Puts them into a folder.
        read: Reads them the way a user does, and uses what was read.
        change: Makes one of them wrong, and says which.
        often: Tries of it among those of others: what takes long is tried less often.
    """

    name: str
    write: Callable[[Path], Any]
    read: Use
    change: Callable[[Random, Path], Path]
    often: int = 4


def change_one(random: Random, folder: Path) -> Path:
    """One file of a folder, of those that say what the others are more often."""
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != ".lock")
    telling = [path for path in files if path.suffix in (".json", ".jsonl", ".safetensors")]
    return mutate(random, random.choice(telling if telling and random.random() < 0.8 else files))


def cli(*words: str) -> None:
    """Run the command: it ends with a known code, one line of error, and nothing that steers a terminal."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = command(list(words))
    told = err.getvalue()
    assert code in (0, 1, 2, 3), code
    assert "Expected the command to run" not in told, told
    assert code == 0 or len(told.strip().splitlines()) == 1, told
    steering = {letter for letter in out.getvalue() + told if not (letter.isprintable() or letter in "\n\t")}
    assert not steering, f"{sorted(map(ascii, steering))} on the terminal"


def _stack() -> nn.Module:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)


def _write_scan(folder: Path) -> None:
    data = torch.randn(3, 5, 8, generator=torch.Generator().manual_seed(1))
    metrics = ["mean_cosine", "token_similarity", "linear_cka"]
    unsmooth.scan(_stack(), data, baseline=True, metrics=metrics, progress=False).save(folder)
    for name in ("scan.csv", "manifest.json"):
        (folder / name).unlink()  # written for others, and never read


def _use_scan(folder: Path, random: Random) -> None:
    scan = unsmooth.load_scan(folder)
    scan.to_frame()
    page_data(series_of([scan]))
    for name in scan.metrics:
        scan.curve(name)
    if random.random() < 0.5:
        cli("compare", str(folder), str(folder))
    if random.random() < 0.1:
        from unsmooth.report import write_report

        write_report([scan], folder / "page.html")


def _write_why(folder: Path) -> None:
    data = torch.randn(3, 5, 8, generator=torch.Generator().manual_seed(1))
    unsmooth.explain(_stack(), data).save(folder)
    for name in ("layers.csv", "heads.csv", "manifest.json"):
        (folder / name).unlink()


def _use_why(folder: Path, random: Random) -> None:
    from unsmooth.cli.explain_tables import print_explanation
    from unsmooth.explaining import load_explanation
    from unsmooth.report import write_report

    found = load_explanation(folder)
    found.to_frame()
    found.to_frame("heads")
    with contextlib.redirect_stdout(io.StringIO()):
        print_explanation(found, None)
    if random.random() < 0.3:
        write_report([], folder / "page.html", [found])


def _write_network(folder: Path) -> None:
    config = networks.ViTConfig(depth=2, dim=8, heads=2, hidden=16, image=8, patch=4, classes=5)
    networks.save_network(networks.build(config), folder)
    Pixels(8, (0.5,) * 3, (0.5,) * 3).save_pretrained(folder)


def _write_remedied(folder: Path) -> None:
    config = networks.EncoderConfig(vocabulary=9, depth=2, dim=8, heads=2, hidden=16, length=6)
    model = networks.build(config)
    unsmooth.apply(model, "neutreno", lam=0.4)
    unsmooth.apply(model, "layerscale", start=0.1, layers=[1])
    unsmooth.remedies.save(model, folder)


def _use_model(folder: Path, random: Random) -> None:
    model = unsmooth.load(folder)
    config = getattr(model, "config", None)
    if isinstance(config, networks.ViTConfig):
        batch: Any = torch.zeros(1, config.channels, config.image, config.image)
    else:
        batch = {"input_ids": torch.tensor([[1, 2, 3]])}
    with torch.no_grad():
        model(batch) if isinstance(batch, torch.Tensor) else model(**batch)


def _use_checkpoint(folder: Path, random: Random) -> None:
    files = sorted(folder.glob("*.gguf"))
    unsmooth.load(files[0] if files else folder)


def _write_bert(folder: Path) -> None:
    from tests.models.checkpoints import save_bert

    save_bert(folder)
    (folder / "generation_config.json").write_text('{"max_length": 20, "eos_token_id": [3]}')
    (folder / "preprocessor_config.json").write_text(
        '{"image_processor_type": "ViTImageProcessor", "size": {"height": 8}}'
    )


def _write_sharded(folder: Path) -> None:
    from tests.models.checkpoints import save_bert

    save_bert(folder).save_pretrained(folder, max_shard_size="4KB")
    (folder / "model.safetensors").unlink(missing_ok=True)


def _write_gguf(folder: Path) -> None:
    from tests.models.checkpoints import save_gguf

    folder.mkdir(parents=True, exist_ok=True)
    save_gguf(folder / "model.gguf")


def _write_run(folder: Path) -> None:
    from tests.training.tiny_runs import tiny
    from unsmooth.training import train

    train(tiny(remedies=("sharpen",)), folder)
    for path in folder.rglob("*"):
        unread = path.name in (".lock", "scan.csv") or not {"events", "final", "final-average"}.isdisjoint(path.parts)
        if path.is_file() and (unread or (path.name == "manifest.json" and path.parent != folder)):
            path.unlink()


def _use_run(folder: Path, random: Random) -> None:
    from unsmooth.training import RunFolder, find_runs, read_run
    from unsmooth.training.checkpoint import Checkpoints
    from unsmooth.training.folder import Lines

    place = RunFolder(folder)
    with contextlib.suppress(unsmooth.UnsmoothError):
        found = Checkpoints(place.checkpoints).latest()
        if found is not None:
            found.read()
    with contextlib.suppress(unsmooth.UnsmoothError):
        Lines(folder / "log.jsonl").cut(2)
    chosen = random.random()
    if chosen < 0.15:
        cli("report", str(folder))
    elif chosen < 0.4:
        cli("watch", str(folder), "--once")
    with contextlib.suppress(unsmooth.UnsmoothError):
        place.config()
    for path in find_runs(folder):
        run = read_run(path)
        assert isinstance(run.state, str)
        assert isinstance(run.metrics, tuple)
        assert run.data is not None
        assert isinstance(run.remedies, tuple)
        assert run.seed is not run
        if run.measurements:
            page_data(series_of([one.scan for one in run.measurements]))
    place.sweep()


_KEPT = {"model/weight": (3, 2), "model/bias": (3,), "clocks/step": ()}


def _write_shards(folder: Path) -> None:
    from torch.distributed.checkpoint.filesystem import FileSystemWriter
    from torch.distributed.checkpoint.state_dict_saver import save

    state = {name: torch.ones(shape) for name, shape in _KEPT.items()}
    save(state, storage_writer=FileSystemWriter(folder, sync_files=False), no_dist=True)
    (folder / "about.json").write_text('{"seconds": 1.5, "said": []}')


def _change_shards(random: Random, folder: Path) -> Path:
    """Bytes of a file; more often numbers and names of the description, which is a pickle that is whole."""
    path = folder / ".metadata"
    if random.random() < 0.4:
        return mutate(random, random.choice(sorted(folder.iterdir())))
    metadata = pickle.loads(path.read_bytes())
    place = random.choice(list(metadata.storage_data.values()))
    kept = random.choice(list(metadata.state_dict_metadata.values()))
    number = random.choice((0, -1, 7, 300, 10**6, 10**9, 2**62, 2**70, "a", None))
    size = torch.Size(random.choice(((0,), (3,), (3, 2), (10**6, 10**6), (2**40,), (1,) * 20)))
    changes: tuple[Callable[[], Any], ...] = (
        lambda: setattr(place, random.choice(("offset", "length")), number),
        lambda: setattr(place, "relative_path", random.choice(("../outside/a/about.json", "/etc/passwd", ".", 7))),
        lambda: setattr(place, "transform_descriptors", random.choice((["zstd"], ["a"], 7))),
        lambda: setattr(kept, "size", random.choice((size, number))),
        lambda: setattr(random.choice(kept.chunks), random.choice(("offsets", "sizes")), size),
        lambda: setattr(metadata, random.choice(("storage_data", "state_dict_metadata", "planner_data")), number),
        lambda: metadata.state_dict_metadata.pop(next(iter(metadata.state_dict_metadata))),
        lambda: setattr(metadata, "storage_meta", print),
    )
    random.choice(changes)()
    path.write_bytes(pickle.dumps(metadata))
    return path


def _use_shards(folder: Path, random: Random) -> None:
    from unsmooth.training.checkpoint import read_shards

    read_shards({name: torch.zeros(shape) for name, shape in _KEPT.items()}, folder, alone=True)


def _write_monitor(folder: Path) -> None:
    from tests.monitor.training import make, train

    model = make()
    train(model, unsmooth.Monitor(model, every=2, out=folder))


def _use_monitor(folder: Path, random: Random) -> None:
    if random.random() < 0.3:
        cli("watch", str(folder), "--once", "--page")
    else:
        cli("watch", str(folder), "--json")


def _write_posthoc(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    x = torch.randn(30, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    for name in posthoc.ESTIMATORS:
        made = posthoc.ESTIMATORS[name]()
        with contextlib.suppress(unsmooth.UnsmoothError):
            made.fit(x).save(folder / f"{name}.safetensors")


def _use_posthoc(folder: Path, random: Random) -> None:
    for path in sorted(folder.glob("*.safetensors")):
        made = posthoc.load(path)
        made.transform(torch.ones(2, made.n_features_in_, dtype=torch.float64))


def _write_evidence(folder: Path) -> None:
    store = Store(folder)
    config = {"network": {"classes": 4}, "seed": 0}
    moments = ({"epoch": 0.0, "layers": [0.1, 0.2]}, {"epoch": 1.0, "layers": [0.3, 0.4]})
    one = Trained("plain", 0, config, {"seconds": 1.0}, ({"epoch": 1, "accuracy": 0.5},), {"mean_cosine": moments})
    store.write_study("depth", "tiny", [one, replace(one, seed=1)])
    rule = {"for_if": "a", "against_if": "b"}
    store.write_claim(Record("some-claim", "tiny", (0, 1), rule, {"commit": "a"}, {"numbers": [1.0, 2.0]}))


def _use_evidence(folder: Path, random: Random) -> None:
    store = Store(folder)
    store.best_claim("some-claim")
    for one in store.study("depth", "tiny"):
        assert isinstance(one.variant, str)
        assert isinstance(one.seed, int)
        for metric in one.similarity:
            assert isinstance(metric, str)


_RECORD = {
    "idx": 0,
    "passage": {
        "text": "Ann met Bob.\n@highlight\nBob ran",
        "entities": [{"start": 0, "end": 2}, {"start": 8, "end": 10}],
    },
    "qas": [{"idx": 0, "query": "@placeholder ran", "answers": [{"text": "Bob"}]}],
}


def _lines(rows: int) -> str:
    return "".join(json.dumps(_RECORD | {"idx": place}) + "\n" for place in range(rows))


def _write_lines(folder: Path) -> None:
    (folder / "ReCoRD").mkdir(parents=True)
    (folder / "ReCoRD" / "train.jsonl").write_text(_lines(3))
    (folder / "MultiRC").mkdir()
    question = {"idx": 0, "question": "Who?", "answers": [{"text": "Ann", "label": 1}, {"text": "Bob", "label": 0}]}
    row = {"idx": 0, "passage": {"text": "Ann ran.", "questions": [question]}}
    (folder / "MultiRC" / "train.jsonl").write_text(json.dumps(row) + "\n")


def _use_lines(folder: Path, random: Random) -> None:
    from unsmooth.training.data.superglue import read_task

    for task in ("record", "multirc"):
        for one in read_task(folder, task):
            assert one.texts


def _write_archive(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    inside = folder / "inside"
    (inside / "ReCoRD").mkdir(parents=True)
    (inside / "ReCoRD" / "train.jsonl").write_text(_lines(40))
    with zipfile.ZipFile(folder / "a.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.write(inside / "ReCoRD" / "train.jsonl", "ReCoRD/train.jsonl")
    for name, form in (("a.tar.gz", "w:gz"), ("a.tar", "w")):
        with tarfile.open(folder / name, form) as tar:
            tar.add(inside / "ReCoRD", "ReCoRD")
    (folder / "a.gz").write_bytes(gzip.compress(_lines(40).encode()))
    (inside / "ReCoRD" / "train.jsonl").unlink()
    (inside / "ReCoRD").rmdir()
    inside.rmdir()


def _change_archive(random: Random, folder: Path) -> Path:
    path = random.choice(sorted(folder.glob("a.*")))
    for other in folder.glob("a.*"):
        if other != path:
            other.unlink()
    if random.random() < 0.3 or path.name == "a.gz":
        if random.random() < 0.2 and path.name == "a.gz":
            path.write_bytes(_bomb())
            return path
        return mutate(random, path)
    # Some names that lead out, and sizes that are too much alone or together.
    odd = (
        "../outside/new",
        "/tmp/unsmooth-fuzz",
        "ReCoRD/../../outside/b",
        "..\\b",
        "a\x00b",
        "n",
        "x" * 300,
        "ReCoRD",
    )
    sizes = random.choice(((0,), (2,), (2, 2), (1 << 24,), (5 << 20,) * 3))
    files = {f"more-{place}": bytes(size) for place, size in enumerate(sizes)}
    if random.random() < 0.4:
        files[random.choice(odd)] = b"x"
    if path.name == "a.zip":
        with zipfile.ZipFile(path, "a", zipfile.ZIP_DEFLATED) as archive:
            for name, content in files.items():
                archive.writestr(name, content)
        return path
    made = io.BytesIO(gzip.decompress(path.read_bytes()) if path.name.endswith("gz") else path.read_bytes())
    with tarfile.open(fileobj=made, mode="a") as tar:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            if random.random() < 0.2:
                info.type = random.choice((tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE))
            info.linkname = "../outside" if info.type in (tarfile.SYMTYPE, tarfile.LNKTYPE) else ""
            info.size = len(content) if info.type == tarfile.REGTYPE else 0
            info.mode = random.choice((0o644, 0o4777, 0))
            if random.random() < 0.3:
                info.pax_headers = {"comment": "a" * random.choice((10, 1 << 23))}
            tar.addfile(info, io.BytesIO(content) if info.size else None)
    path.write_bytes(gzip.compress(made.getvalue(), 1) if path.name.endswith("gz") else made.getvalue())
    return path


_MADE: list[bytes] = []


def _bomb() -> bytes:
    """600 MiB of nothing, packed."""
    if not _MADE:
        _MADE.append(gzip.compress(bytes(150 << 20), 1) * 4)
    return _MADE[0]


def _use_archive(folder: Path, random: Random) -> None:
    from unsmooth.training.data.download import unpack
    from unsmooth.training.data.get import get

    path = next(iter(sorted(folder.glob("a.*"))), folder / "a.zip")
    place = folder / "unpacked"
    try:
        if path.exists():
            unpack(path, place, 1 << 23, 1_000)
    finally:
        size = sum(one.stat().st_size for one in place.rglob("*") if one.is_file())
        assert size <= (1 << 23), f"{size} bytes unpacked"
        assert not [one for one in place.rglob("*") if one.is_symlink()], "a link unpacked"
    if path.name != "a.gz":
        get("superglue", str(path), folder / "data")
        cli("data", "ls", "--out", str(folder / "data"))
    assert not [one for one in folder.rglob("*") if one.name.endswith(".tmp")], "a draft left behind"


def _write_data(folder: Path) -> None:
    from unsmooth.training.data.get import get

    _write_lines(folder / "source")
    (folder / "source" / "MultiRC" / "train.jsonl").unlink()
    get("superglue", str(folder / "source"), folder / "data")
    shutil.rmtree(folder / "source")
    (folder / "data" / ".gitignore").unlink()


def _use_data(folder: Path, random: Random) -> None:
    from unsmooth.training.data.superglue import read_task

    with contextlib.suppress(unsmooth.UnsmoothError):
        read_task(folder / "data" / "superglue", "record")
    cli("data", "ls", "--out", str(folder / "data"), *(["--json"] if random.random() < 0.3 else []))


def _write_text(folder: Path) -> None:
    from unsmooth.training.data.text import open_text

    folder.mkdir(parents=True, exist_ok=True)
    rows = "".join(json.dumps({"text": f"a bird sings {place}"}) + "\n" for place in range(40))
    (folder / "train.jsonl").write_text(rows)
    (folder / "valid.jsonl.gz").write_bytes(gzip.compress(rows.encode()))
    open_text(folder, special=True, cache=folder / ".cache")


def _use_text(folder: Path, random: Random) -> None:
    from unsmooth.training.data.text import open_text

    found = open_text(folder, special=True, cache=folder / ".cache")
    assert len(found.train[:10]) <= 10
    found.tokenizer.decode(found.train[:10].tolist())


def _write_pickle(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    content = {b"data": numpy.zeros((2, 3072), dtype=numpy.uint8), b"fine_labels": [1, 2], b"filenames": [b"a", b"b"]}
    (folder / "train").write_bytes(pickle.dumps(content, protocol=2))


def _change_pickle(random: Random, folder: Path) -> Path:
    """Its bytes; or, more often, what it holds: other arrays, labels and names, of a pickle that is whole."""
    path = folder / "train"
    if random.random() < 0.3:
        return mutate(random, path)
    content = pickle.loads(path.read_bytes())
    key = random.choice(list(content))
    shape = random.choice(((2, 3072), (3, 3072), (2, 3071), (0, 3072), (2, 3, 32, 32), (3072,), (1, 1 << 20)))
    arrays = [numpy.zeros(shape, dtype=kind) for kind in ("u1", "u1", "i1", "f8", "?", "S1", "M8[s]")]
    labels: list[Any] = [
        [2],
        [1, 2, 3],
        (1, 2),
        [1, -1],
        [1, 300],
        [1, 2**70],
        [1, None],
        ["a", "b"],
        [[1], [2]],
        "ab",
        7,
    ]
    content[key] = random.choice([*arrays, *labels, None, {}])
    if random.random() < 0.2:
        del content[random.choice(list(content))]
    path.write_bytes(pickle.dumps(content, protocol=random.randrange(6)))
    return path


def _use_pickle(folder: Path, random: Random) -> None:
    from unsmooth.training.data.pickles import read_pickled_images

    images, labels = read_pickled_images(folder / "train")
    assert images.nbytes <= os.stat(folder / "train").st_size
    assert len(labels) <= 10_000_000


def _write_nested(folder: Path) -> None:
    import transformers

    sizes = {"hidden_size": 16, "intermediate_size": 20, "num_hidden_layers": 1, "num_attention_heads": 2}
    text = transformers.Gemma3TextConfig(**sizes, vocab_size=20, head_dim=8, num_key_value_heads=1)
    image = transformers.SiglipVisionConfig(**sizes, image_size=8, patch_size=4)
    config = transformers.Gemma3Config(text_config=text, vision_config=image, mm_tokens_per_image=4)
    transformers.Gemma3Model(config).save_pretrained(folder)


def _write_images(folder: Path) -> None:
    from PIL import Image

    for number, name in enumerate(("train/a/0.png", "train/a/1.jpg", "train/b/0.gif", "val/a/0.png", "val/b/0.webp")):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (9, 8), (20 * number, 0, 0)).save(folder / name)


def _change_image(random: Random, folder: Path) -> Path:
    """Bytes of an image; more often another whole one in its place, of a mode and a shape that few have."""
    from PIL import Image

    path = random.choice(sorted(path for path in folder.rglob("*") if path.is_file()))
    if random.random() < 0.4:
        return mutate(random, path)
    mode = random.choice(("1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "YCbCr", "I", "I;16", "F"))
    size = random.choice(((1, 1), (1, 9_000), (9_000, 1), (2, 3), (4_000, 3_000)))
    form = random.choice(("PNG", "JPEG", "GIF", "TIFF", "BMP", "WEBP"))
    with contextlib.suppress(OSError, ValueError):  # not every format has every mode
        Image.new(mode, size).save(path, form)
    return path


def _use_images(folder: Path, random: Random) -> None:
    from unsmooth.training.data.image_folder import read_image_folders, read_whole

    train, test = read_image_folders(folder)
    for number in range(len(train)):
        train.load(number, 1, 8)
        train.load_eval(number, 8)
    read_whole(train, test, "tried", 8)


def _write_texts(folder: Path) -> None:
    from tests.models.checkpoints import save_bert

    save_bert(folder / ".model")
    (folder / "a.txt").write_text("tokens grow\n\nalike with depth\n")
    (folder / "a.jsonl").write_text('{"text": "tokens grow"}\n' * 3)
    (folder / "a.csv").write_text("text,label\ntokens grow,1\nalike,2\n")
    (folder / "a.tsv").write_text("text\tlabel\ntokens grow\t1\n")


def _change_text(random: Random, folder: Path) -> Path:
    return mutate(random, random.choice(sorted(folder.glob("a.*"))))


def _use_texts(folder: Path, random: Random) -> None:
    from unsmooth.models.preprocess import find_tokenizer
    from unsmooth.scanning.data import Preprocessing
    from unsmooth.scanning.opening import open_data

    how = Preprocessing(find_tokenizer(str(folder / ".model")), None, 2, 8, 8)
    for path in sorted(folder.glob("a.*")):
        with contextlib.suppress(unsmooth.UnsmoothError):
            for batch in open_data(path, how).read():
                assert set(batch) >= {"input_ids"}


SPECIMENS: Mapping[str, Specimen] = {
    one.name: one
    for one in (
        Specimen("scan", _write_scan, _use_scan, change_one, 6),
        Specimen("explanation", _write_why, _use_why, change_one, 6),
        Specimen("network", _write_network, _use_model, change_one, 6),
        Specimen("remedied", _write_remedied, _use_model, change_one),
        Specimen("transformers", _write_bert, _use_checkpoint, change_one, 2),
        Specimen("sharded", _write_sharded, _use_checkpoint, change_one, 1),
        Specimen("nested", _write_nested, _use_checkpoint, change_one, 2),
        Specimen("gguf", _write_gguf, _use_checkpoint, change_one, 2),
        Specimen("run", _write_run, _use_run, change_one, 4),
        Specimen("shards", _write_shards, _use_shards, _change_shards),
        Specimen("monitor", _write_monitor, _use_monitor, change_one),
        Specimen("posthoc", _write_posthoc, _use_posthoc, change_one),
        Specimen("evidence", _write_evidence, _use_evidence, change_one),
        Specimen("superglue", _write_lines, _use_lines, change_one),
        Specimen("archive", _write_archive, _use_archive, _change_archive),
        Specimen("data", _write_data, _use_data, change_one),
        Specimen("text", _write_text, _use_text, change_one),
        Specimen("images", _write_images, _use_images, _change_image),
        Specimen("texts", _write_texts, _use_texts, _change_text, 2),
        Specimen("pickle", _write_pickle, _use_pickle, _change_pickle),
    )
}
