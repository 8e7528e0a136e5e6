"""A tiny grid from its registration to its verdicts, on a handful of random images and a few lines of text."""

from __future__ import annotations

import gzip
import hashlib
import json
import math
import re
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch

from unsmooth.errors import UnsmoothError
from unsmooth.evidence.grid import Piece, Registration, registered, run_piece
from unsmooth.evidence.grid.__main__ import main
from unsmooth.evidence.grid.data import Pictures
from unsmooth.evidence.grid.data import pictures as pictures_of
from unsmooth.evidence.grid.judging import table
from unsmooth.evidence.grid.observing import attention_of
from unsmooth.evidence.grid.piece import PROBE, file_of, missing
from unsmooth.evidence.grid.registration import HOME, Contrast, Data, Family, Knobs, Training
from unsmooth.evidence.grid.verdicts import causes, compared, escalation, verdicts
from unsmooth.training.ensemble import Ensemble

NAMES = sorted(path.stem for path in HOME.glob("*.json"))


@pytest.fixture
def images(tmp_path: Path) -> tuple[Path, Data]:
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(96) % 4
    pixels = (60 * labels[:, None, None, None] + torch.randint(60, (96, 3, 8, 8), generator=generator)).byte()
    made = Pictures(pixels, labels, pixels[:PROBE], labels[:PROBE], 4)
    return made.write(tmp_path / "images.npz"), Data("cifar4", 96, PROBE, made.digest)


def tiny(data: Data, **changes: Any) -> Registration:
    settings: dict[str, Any] = {
        "name": "tiny",
        "question": "",
        "data": data,
        "patch": 4,
        "training": Training(steps=6, warmup=1, batch=8),
        "families": {
            "pre": Family("pre", {}),
            "post": Family("post", {}),
            "pixels": Family("none", {}),
            "post+token_mean=0": Family("post", {}, Knobs(token_mean=0.0)),
            "post+layer_rates=0.1": Family("post", {}, Knobs(layer_rates=(1.0, 0.1), head_gradient=0.5, branch=0.5)),
            "sharpen": Family("pre", {"sharpen": {"basis": "gram"}}, alone=True),
        },
        "pieces": ({"families": ["pre", "post"], "depths": [2], "widths": [16]},),
        "gains": ("xavier",),
        "rates": (1e-3, 3e-3, 1e-2),
        "ladder": (1e-3, 3e-3, 1e-2),
        "seeds": (0,),
        "more_seeds": (0, 1, 2),
        "longer": 1,
        "rules": {},
        "limits": {"trains": 0.6, "fails": 0.2, "flat": 0.05, "floor": -60.0, "levels": 0.5, "tells": 0.8},
        "budget": "",
    }
    return Registration(**{**settings, **changes})


def run(registration: Registration, folder: Path, source: Path) -> None:
    for piece in registration.all_pieces():
        assert run_piece(folder, piece, registration, source, tell=lambda _: None)


@pytest.mark.parametrize("name", NAMES)
def test_every_registration_makes_its_networks(name: str) -> None:
    registration = registered(name)
    pieces = {piece.name for piece in registration.all_pieces()}
    for contrast in registration.contrasts or ():
        assert {*contrast.first, *contrast.second} <= pieces
        assert contrast.gain in registration.gains
    for family in {piece.family: piece for piece in registration.all_pieces()}.values():
        shallow = Piece(family.family, min(family.depth, 2), 32)
        registration.network(shallow, registration.gains[0], 0, registration.data.classes or 100)


def test_what_is_new_changes_no_old_digest() -> None:
    assert registered("grid").digest == "eb5697b2b746e6dd"


@pytest.mark.parametrize("family", ["pre", "pixels", "post+token_mean=0", "post+layer_rates=0.1", "sharpen"])
def test_a_piece_goes_on_where_it_ended(family: str, images: tuple[Path, Data], tmp_path: Path) -> None:
    source, data = images
    piece = Piece(family, 0 if family == "pixels" else 2, 16)
    registration = tiny(data, look=("spectra",) if family == "sharpen" else None)
    assert run_piece(tmp_path, piece, registration, source, tell=lambda _: None)
    path = file_of(tmp_path, piece)
    found = json.loads(gzip.decompress(path.read_bytes()))
    assert not missing(registration, found["members"], {})
    assert all(0 <= row["test"] <= 1 and row["last"] > 0 for row in found["members"])
    if family == "sharpen":
        assert all(layer["highest"] <= 1e-4 for row in found["members"] for layer in row["spectra"])
    whole = path.read_bytes()
    cut = {**found, "members": found["members"][:2]}
    path.write_bytes(gzip.compress(json.dumps(cut).encode()))
    assert run_piece(tmp_path, piece, registration, source, tell=lambda _: None)
    again = json.loads(gzip.decompress(path.read_bytes()))
    key = lambda row: (row["rate"], row["seed"])  # noqa: E731
    for one, other in zip(sorted(again["members"], key=key), sorted(found["members"], key=key), strict=True):
        assert one["losses"] == pytest.approx(other["losses"], abs=2e-4)
    with pytest.raises(UnsmoothError, match="Expected a piece of tiny"):
        run_piece(tmp_path, piece, replace(registration, budget="another"), source)
    assert json.loads(gzip.decompress(whole))["registration"] == registration.digest


def test_images_are_mirrored_and_moved(images: tuple[Path, Data]) -> None:
    source, data = images
    pictures = pictures_of(source, data)
    seeds, shift = (0, 1, 0), 2
    plain = pictures.batches(seeds, 3, Training(3, 1, batch=32), "cpu")
    moved = pictures.batches(seeds, 3, Training(3, 1, batch=32, shift=shift), "cpu")
    seen = set()
    for step in range(3):
        before, labels = plain(torch.tensor([step]))
        after, same = moved(torch.tensor([step]))
        assert torch.equal(labels, same)
        assert torch.equal(after[0], after[2])
        for one, other in zip(before.flatten(0, 1), after.flatten(0, 1), strict=True):
            padded = {False: torch.nn.functional.pad(one, [shift] * 4)}
            padded[True] = padded[False].flip(-1)
            # Moved by so much and perhaps mirrored: one of fifty ways, and no other image.
            ways = [
                (mirrored, down, right)
                for mirrored, whole in padded.items()
                for down in range(5)
                for right in range(5)
                if torch.equal(whole[:, down : down + 8, right : right + 8], other)
            ]
            assert ways
            seen.add(ways[0])
    assert len(seen) > 40
    again = pictures.batches((1,), 3, Training(3, 1, batch=32, shift=shift), "cpu")(torch.tensor([2]))[0]
    assert torch.equal(again[0], after[1])


def test_a_gradient_is_multiplied_on_its_way_through_each_block(images: tuple[Path, Data]) -> None:
    _, data = images
    stream = {}
    for by in (None, 0.5):
        registration = tiny(data, families={"post": Family("post", {}, Knobs(block_gradient=by) if by else None)})
        network = registration.network(Piece("post", 3, 16), "xavier", 0, 4, 8)
        given = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))
        streams: list[torch.Tensor] = []
        for block in network.stack.blocks:  # type: ignore[union-attr]
            block.register_forward_pre_hook(lambda _, args, to=streams: to.append(args[0]))
        out = network(given)
        logits = out[0] if isinstance(out, tuple) else out
        stream[by] = (logits.detach(), torch.autograd.grad(logits.square().sum(), streams))
    assert torch.equal(stream[None][0], stream[0.5][0])
    for blocks, (before, after) in zip((3, 2, 1), zip(stream[None][1], stream[0.5][1], strict=True), strict=True):
        torch.testing.assert_close(after, before * 0.5**blocks)


def test_files_of_others_are_read_within_bounds(images: tuple[Path, Data], tmp_path: Path) -> None:
    source, data = images
    registration, piece = tiny(data), Piece("pre", 2, 16)
    path = file_of(tmp_path, piece)
    about = {"registration": registration.digest, "starts": []}
    for content in ("[" * 100_000, json.dumps(about), json.dumps({**about, "members": [1]}), " " * (33 << 20)):
        path.write_bytes(gzip.compress(content.encode()))
        with pytest.raises(UnsmoothError, match=re.escape(str(path))):
            run_piece(tmp_path, piece, registration, source, tell=lambda _: None)
    path.unlink()
    for broken in (source.read_bytes()[:400], b"no archive", None):
        made = tmp_path / f"{len(broken or b'')}.npz"
        made.write_bytes(broken) if broken is not None else numpy.savez_compressed(
            made, train_images=numpy.zeros((1 << 20, 3))
        )
        with pytest.raises(UnsmoothError, match=re.escape(str(made))):
            run_piece(tmp_path, piece, registration, made, tell=lambda _: None)


def test_members_do_not_depend_on_who_is_beside_them(images: tuple[Path, Data], tmp_path: Path) -> None:
    source, data = images
    registration, piece = tiny(data), Piece("post", 2, 16)
    for folder, at_a_time in ((tmp_path / "one", 1), (tmp_path / "all", None)):
        run_piece(folder, piece, registration, source, at_a_time=at_a_time, tell=lambda _: None)
    rows = [
        {(row["rate"], row["seed"]): row["last"] for row in json.loads(gzip.decompress(path.read_bytes()))["members"]}
        for path in (file_of(tmp_path / "one", piece), file_of(tmp_path / "all", piece))
    ]
    assert rows[0] == pytest.approx(rows[1], abs=1e-4)


def test_text_is_trained_on_too(tmp_path: Path) -> None:
    text = "to be or not to be that is the question " * 40
    (tmp_path / "words.txt").write_text(text)
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    data = Data("words", 1200, 300, digest, length=12, classes=len(set(text)))
    families = {"plain": Family("pre", {}), "smooth": Family("pre", {"smooth": {"basis": "general"}}, alone=True)}
    pieces = ({"families": list(families), "depths": [2], "widths": [16]},)
    registration = tiny(data, patch=None, families=families, pieces=pieces)
    run(registration, tmp_path / "runs", tmp_path)
    rows = table(registration, tmp_path / "runs")
    losses = [row[rows["columns"].index("test_loss")] for row in rows["rows"]]
    assert all(0 < loss < 4 for loss in losses)
    (tmp_path / "other.txt").write_text(text[1:])
    with pytest.raises(UnsmoothError, match="Expected the registered text"):
        run(registration, tmp_path / "other", tmp_path / "other.txt")


CONTRASTS = (
    Contrast(("post-2-16",), ("pre-2-16",), "xavier", claim="post is better"),
    Contrast(("post-2-16", "post-4-16"), ("pre-2-16", "pre-4-16"), "xavier", claim="post is worse", side="below"),
)


def planted(folder: Path, registration: Registration, tests: dict[str, float], best: float = 3e-3) -> None:
    """Pieces as if they had been run, with accuracies that rise by .01 with the seed."""
    for piece in registration.all_pieces():
        if piece.name not in tests:
            continue
        rows = []
        for rate in registration.rates:
            for seed in {*registration.seeds, *(registration.more_seeds if rate == best else ())}:
                right = tests[piece.name] + 0.01 * seed
                row = {"gain": "xavier", "rate": rate, "seed": seed, "steps": 6, "test": right, "test_loss": 1 - right}
                rows.append({**row, "last": 0.5 if rate == best else 0.9})
        found = {"registration": registration.digest, "starts": [], "members": rows}
        folder.mkdir(exist_ok=True)
        file_of(folder, piece).write_bytes(gzip.compress(json.dumps(found).encode()))


def comparing() -> Registration:
    pieces = ({"families": ["pre", "post"], "depths": [2, 4], "widths": [16]},)
    return tiny(Data("cifar4", 1, 1, ""), pieces=pieces, contrasts=CONTRASTS)


def test_contrasts_are_told_and_decide(tmp_path: Path) -> None:
    registration = comparing()
    planted(tmp_path, registration, {"pre-2-16": 0.5, "post-2-16": 0.4, "pre-4-16": 0.5, "post-4-16": 0.2})
    found = compared(registration, tmp_path)
    assert found["claims"] == {"post is better": "not supported", "post is worse": "supported"}
    difference, slope = found["contrasts"]
    assert (difference["value"], difference["lies"], difference["count"]) == (pytest.approx(-0.1), "below", 3)
    assert slope["value"] == pytest.approx(-0.2)


def test_no_verdict_where_data_are_missing(tmp_path: Path) -> None:
    registration = comparing()
    planted(tmp_path, registration, {"pre-2-16": 0.5, "post-2-16": 0.4, "pre-4-16": 0.5})
    found = verdicts(registration, tmp_path)
    assert found["missing"] == {"post-4-16": "not run"}
    assert found["claims"] == {"post is better": "not supported", "post is worse": "no verdict"}


def test_no_verdict_where_the_best_rate_is_at_an_end(tmp_path: Path) -> None:
    registration = comparing()
    planted(tmp_path, registration, {"pre-2-16": 0.5, "post-2-16": 0.4}, best=1e-2)
    row = compared(registration, tmp_path)["contrasts"][0]
    assert row["lies"] is None
    assert "an end of the ladder" in row["why"]


def test_a_seed_without_numbers_counts_as_chance(tmp_path: Path) -> None:
    registration = comparing()
    planted(tmp_path, registration, {"pre-2-16": 0.5, "post-2-16": 0.5})
    path = file_of(tmp_path, Piece("post", 2, 16))
    found = json.loads(gzip.decompress(path.read_bytes()))
    next(row for row in found["members"] if row["seed"] == 2)["last"] = None
    path.write_bytes(gzip.compress(json.dumps(found).encode()))
    row = compared(registration, tmp_path)["contrasts"][0]
    assert row["value"] == pytest.approx((0.25 - 0.52) / 3)


def test_stacks_are_looked_at_before_training(images: tuple[Path, Data], tmp_path: Path) -> None:
    source, data = images
    pieces = ({"families": ["post", "pre"], "depths": [8], "widths": [16]},)
    registration = tiny(
        data,
        training=Training(0, 0),
        pieces=pieces,
        rates=(),
        ladder=(),
        seeds=(0, 1, 2),
        more_seeds=(),
        look=("attention",),
    )
    run(registration, tmp_path / "runs", source)
    post, pre = escalation(registration, tmp_path / "runs")["escalation"]
    assert post["slope"]["high"] < pre["slope"]["low"] < 0
    assert post["bound"]["count"] == 3
    assert verdicts(registration, tmp_path / "runs")["missing"] == {}


def test_what_is_seen_of_attention_is_what_its_formulas_say(images: tuple[Path, Data]) -> None:
    """One sample at a time, in NumPy, from the weights and the streams alone."""
    source, data = images
    registration, piece = tiny(data), Piece("post", 2, 32)
    networks = [registration.network(piece, "xavier", seed, 4, 8) for seed in (0, 1)]
    inputs, _ = pictures_of(source, data).probe(3, "cpu")
    seen = attention_of(Ensemble(networks, device="cpu", dtype=torch.float64), inputs)
    for member, network in enumerate(networks):
        network = network.double()
        for place, block in enumerate(network.stack.blocks):  # type: ignore[union-attr, arg-type]
            streams: list[torch.Tensor] = []
            hook = block.register_forward_pre_hook(lambda _, args, to=streams: to.append(args[0].detach()))
            network(inputs)
            hook.remove()
            weight = {name: one.detach().numpy() for name, one in block.attention.named_parameters()}
            made = {"before": [], "attended": [], "second": []}
            for x in streams[0].numpy():
                query, key, value = numpy.split(x @ weight["qkv.weight"].T + weight.get("qkv.bias", 0), 3, axis=1)
                branch = weight.get("out.bias", 0) + numpy.zeros_like(x)
                for head in range(2):
                    at = slice(16 * head, 16 * head + 16)
                    logits = query[:, at] @ key[:, at].T / 4
                    attention = numpy.exp(logits) / numpy.exp(logits).sum(axis=1, keepdims=True)
                    made["second"].append(sorted(abs(numpy.linalg.eigvals(attention)))[-2] ** 2)
                    branch = branch + attention @ value[:, at] @ weight["out.weight"][:, at].T
                for name, stream in (("before", x), ("attended", x + branch)):
                    away = ((stream - stream.mean(axis=0)) ** 2).sum() / (stream**2).sum()
                    made[name].append(numpy.log(away))
            h = weight["qkv.weight"][64:].T @ weight["out.weight"].T
            found = {name: float(values[member, place]) for name, values in seen.items()}
            assert found["variance"] == pytest.approx((h**2).sum() / 32, rel=1e-9)
            for name, values in made.items():
                assert found[name] == pytest.approx(numpy.mean(values), rel=1e-9), name


def test_the_escalation_is_held_against_its_bound_on_the_same_samples(tmp_path: Path) -> None:
    registration = tiny(Data("cifar4", 1, 1, ""), gains=(0.8,), seeds=(0, 1), look=("attention",))
    for piece in registration.all_pieces():
        # Attention halves diversity where the bound says a third at least: 1·½·1 / (1 + ½).
        seen = {
            "log_tdiv": [-3.0, -4.0, -5.0, -6.0, -7.0],
            "before": [math.log(0.5)] * 4,
            "attended": [math.log(0.25)] * 4,
        }
        seen |= {"variance": [1.0] * 4, "second": [0.0] * 4, "gap": [1.0] * 4}
        rows = [{"gain": 0.8, "seed": seed, "float64": seen} for seed in (0, 1)]
        found = {"registration": registration.digest, "starts": rows, "members": []}
        file_of(tmp_path, piece).write_bytes(gzip.compress(json.dumps(found).encode()))
    row = escalation(registration, tmp_path)["escalation"][0]
    assert row["bound"]["value"] == pytest.approx(1 / 2 - 1 / 3)
    assert row["bound_one_step"]["value"] == pytest.approx(1 / 2)
    assert row["slope"]["value"] == pytest.approx(-1.0)


def test_a_planted_cause_is_found(tmp_path: Path) -> None:
    values = {"0": (-1.0, 2.0), "1": (-3.0, 9.0), "2": (-9.0, 2.1), "3": (-12.0, 8.0)}
    families = {f"post+{knob}={at}": Family("post", {}) for knob in ("a", "b", "c", "d") for at in values}
    pieces = (
        {"families": ["pre"], "depths": [6], "widths": [16]},
        {"families": list(families), "depths": [2], "widths": [16]},
    )
    registration = tiny(
        Data("cifar4", 1, 1, ""),
        families={"pre": Family("pre", {}), **families},
        pieces=pieces,
        more_seeds=(),
        longer=4,
    )
    for piece in registration.all_pieces():
        log_tdiv, norm = values.get(piece.family[-1], (-1.0, 2.0))
        trains = piece.family == "pre" or log_tdiv > -5
        seen = {"log_tdiv": [log_tdiv], "cosine": [0.5], "inputs": [1.0], "norm": [1.0], "gradient": [1.0, norm]}
        start = {"gain": "xavier", "seed": 0, "float64": {**seen, "gradient_norm": norm}}
        row = {"gain": "xavier", "seed": 0, "steps": 6, "after1": {"change": norm}}
        rows = [{**row, "rate": rate, "last": 0.3 if trains and rate == 3e-3 else 1.3} for rate in registration.rates]
        kept = {"registration": registration.digest, "starts": [start], "members": rows}
        file_of(tmp_path, piece).write_bytes(gzip.compress(json.dumps(kept).encode()))
    found = causes(registration, tmp_path)
    assert found["claims"] == {"what decides": "log_tdiv"}
    assert found["balanced_accuracy"]["log_tdiv"] == 1.0
    # One that neither trains nor fails has to be trained longer before anything is said.
    rows = [{**row, "last": 0.95 if row["rate"] == 3e-3 else 1.3} for row in rows]
    file_of(tmp_path, piece).write_bytes(gzip.compress(json.dumps({**kept, "members": rows}).encode()))
    assert causes(registration, tmp_path)["claims"] == {"what decides": "no verdict"}


def test_studies_that_wait_for_another_are_refused(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    waiting = [name for name in NAMES if registered(name).after]
    for name in waiting:
        assert main(["run", name, "--runs", str(tmp_path), "--data", str(tmp_path)]) == 2
        assert "says to go on with" in capsys.readouterr().err


@pytest.mark.parametrize("more", [[], ["--processes", "2", "--longer"]], ids=["here", "two processes"])
def test_the_command_tells_what_is_ahead_and_goes_on(
    more: list[str], images: tuple[Path, Data], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    source, data = images
    registration = tiny(data)
    said = tmp_path / "tiny.json"
    said.write_text(json.dumps(asdict(registration)))
    words = ["run", str(said), "--runs", str(tmp_path), "--data", str(source), "--device", "cpu", *more]
    assert main([*words, "--total-budget", "0s"]) == 3
    first, last = capfd.readouterr().out.splitlines()
    assert re.match(rf"tiny {registration.digest}: \d pieces, \d+ runs, about .* on this machine", first)
    assert json.loads(last) == {"pieces": len(registration.all_pieces()), "done": 0}
    assert main(words) == 0
    told = capfd.readouterr().out.splitlines()
    assert json.loads(told[-1])["done"] == len(registration.all_pieces())
    assert any(" members of " in line for line in told)
    for piece in registration.all_pieces():
        found = json.loads(gzip.decompress(file_of(tmp_path / "tiny", piece).read_bytes()))
        assert not missing(registration, found["members"], {})
    assert main([*words, "--engine", "nosuch"]) == 2
    assert "Expected a known engine but got 'nosuch'" in capfd.readouterr().err
