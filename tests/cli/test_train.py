"""``unsmooth train`` as a user types it."""

from __future__ import annotations

import json

import pytest

from unsmooth.cli.app import run

SMALL = [
    *("--size", "tiny", "--quiet"),
    *(word for text in (
        "data.name=synthetic", "train_limit=16", "test_limit=8", "image=8", "patch=4", "classes=4", "depth=1", "dim=8",
        "heads=2", "hidden=16", "epochs=none", "steps=2", "batch=8", "warmup=1", "measuring.every=0", "measuring.at=",
        "sequences=2", "device=cpu",
    ) for word in ("--set", {"classes=4": "network.classes=4"}.get(text, text))),
    *("--set", "augment.classes=4"),
]  # fmt: skip


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    out = tmp_path_factory.mktemp("cli") / "run"
    assert run(["train", "vit_cifar100", *SMALL, "--with", "sharpen", "--out", str(out)]) == 0
    return out


def test_a_run_writes_its_folder(trained):
    names = {path.name for path in trained.iterdir()}
    wanted = {"config.json", "manifest.json", "log.jsonl", "spectra.jsonl", "scans", "checkpoints", "final"}
    assert wanted <= names
    assert (trained / "final" / "remedies.json").exists()
    manifest = json.loads((trained / "manifest.json").read_text())
    assert manifest["state"] == "finished"
    assert manifest["data"]["synthetic"] is True
    assert manifest["remedies"] == ["sharpen"]


def test_the_page_is_there_where_charts_can_be_drawn(trained):
    pytest.importorskip("altair", reason="the report extra is not installed")
    assert "mean_cosine" in (trained / "report.html").read_text(encoding="utf-8")


def test_the_final_folder_is_a_model_for_scan(trained, tmp_path, capsys):
    image = pytest.importorskip("PIL.Image", reason="pillow is not installed")
    (tmp_path / "images").mkdir()
    for number in range(2):
        image.new("RGB", (8, 8), (number * 90, 10, 200)).save(tmp_path / "images" / f"{number}.png")
    assert run(["scan", str(trained / "final"), str(tmp_path / "images"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["rows"]


def test_a_finished_run_is_left_alone(trained, capsys):
    before = (trained / "manifest.json").read_bytes()
    assert run(["train", "--resume", str(trained)]) == 0
    assert "is finished" in " ".join(capsys.readouterr().err.split())
    assert (trained / "manifest.json").read_bytes() == before


def test_show_prints_every_setting(capsys):
    assert run(["train", "xl_wt103", "--depth", "4", "--norm", "pre", "--show"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["network"]["depth"], shown["network"]["norm"], shown["batch"]) == (4, "pre", 60)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["train"], "Expected a recipe or --resume DIR but got neither."),
        (["train", "cram_brt"], "Did you mean 'cram_bert'?"),
        (["train", "vit_cifar100", "--size", "huge"], "Expected a known size but got 'huge'."),
        (["train", "vit_cifar100", "--set", "lr"], "Expected --set KEY=VALUE but got 'lr'."),
        (["train", "vit_cifar100", "--set", "learningrate=1"], "Expected a known setting but got 'learningrate'."),
        (["train", "vit_cifar100", "--set", "epochs=many"], "Expected epochs as"),
        (["train", "vit_cifar100", "--set", "heads=5"], "Expected dim divisible by heads but got dim=192, heads=5."),
        (["train", "vit_cifar100", "--depth", "0"], "Expected depth of 1 or more but got 0."),
        (["train", "vit_cifar100", "--set", "patch=5"], "Expected image divisible by patch"),
        (["train", "vit_cifar100", "--with", "sharpn"], "Did you mean 'sharpen'?"),
        (["train", "vit_cifar100", "--variant", "sharpen", "--variant", "sharpen"], "'sharpen' twice"),
        (["train", "vit_cifar100", "--seeds", "0"], "Expected at least one seed but got 0."),
        (["train", "vit_cifar100", "--data", "nowhere", "--out", "OUT"], "Expected data in nowhere"),
        (["train", "vit_cifar100", "--set", "losses=cosin(weight=0.1)"], "Did you mean 'cosine'?"),
        (
            ["train", "vit_cifar100", "--loss", "dispersion(form=foo)"],
            "Expected form as one of l2, cosine, hinge, covariance but got 'foo'",
        ),
        (["train", "vit_cifar100", "--set", "losses=cosine", "--loss", "cosine"], "losses by --loss or by --set"),
        (["train", "vit_cifar100", "--set", "remedies=sharpen", "--with", "smooth"], "one of the two but got both."),
        (["train", "vit_cifar100", "--set", "data.hold_out=-0.1"], "Expected data.hold_out from 0 to below 1"),
        (["train", "vit_cifar100", "--set", "data.hold_out=1.0"], "Expected data.hold_out from 0 to below 1"),
        (["train", "vit_cifar100", *SMALL, "--set", "hold_out=0.1", "--out", "OUT"], "4 of class 0, none of them to"),
        (["train", "--resume", "OUT"], "Expected the folder of a run but got"),
        (["train", "--resume", "OUT", "--set", "lr=1"], "Expected --resume alone"),
    ],
)
def test_bad_input_is_told_in_one_line(words, said, tmp_path, capsys):
    words = [str(tmp_path / "out") if word == "OUT" else word for word in words]
    assert run(words) == 2
    told = capsys.readouterr().err.strip()
    assert said in told
    assert "\n" not in told
    assert not (tmp_path / "out").exists()


def test_losses_and_a_hold_out_may_be_settings(tmp_path, capsys):
    words = ["train", "vit_cifar100", *SMALL, "--set", "losses=cosine(weight=0.1, layer=-1)", "--set", "hold_out=0.25"]
    assert run([*words, "--show"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["losses"], shown["data"]["hold_out"]) == (["cosine(weight=0.1, layer=-1)"], 0.25)
    assert run([*words, "--out", str(tmp_path)]) == 0
    data = json.loads((tmp_path / "manifest.json").read_text())["data"]
    assert (data["train"], data["test"], data["hold_out"]) == (12, 4, 0.25)


def test_resuming_with_other_settings_is_refused(trained, capsys):
    words = ["train", "vit_cifar100", *SMALL, "--with", "sharpen", "--set", "lr=0.5", "--resume", str(trained)]
    assert run(words) == 2
    assert "optimiser.lr 0.001 there, 0.5 here" in capsys.readouterr().err
