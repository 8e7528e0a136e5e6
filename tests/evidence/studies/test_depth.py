"""Studies of depth: every model can be built and trained at its real depth, and each gets the rate that suits it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy
import pytest
import torch
from torch import Tensor

import unsmooth
from unsmooth.evidence import STUDIES, Bench, Trained, carry_out_study
from unsmooth.evidence.by_depth import kept_by_depth
from unsmooth.evidence.rates import best
from unsmooth.evidence.records import SCALES, SEEDS, Scale
from unsmooth.evidence.studies.depth import ALL, KINDS, depth_of, rates, settings, variants
from unsmooth.evidence.studies.depth_rates import SEED
from unsmooth.networks import ViT
from unsmooth.networks.config import ViTConfig
from unsmooth.remedies import applied
from unsmooth.training import TASKS, Config, override
from unsmooth.training.place import Place
from unsmooth.training.plain import to_plain

NARROW = {"patch": 16, "dim": 16, "heads": 2, "hidden": 16}


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_takes_a_step_at_its_real_depth(kind: str) -> None:
    config = override(settings(f"{kind}-24", 1e-3, Bench(scale="full")), NARROW)
    assert isinstance(config.network, ViTConfig)
    model = ViT(config.network)
    for remedy in config.remedies:
        unsmooth.apply(model, remedy)
    assert len(model.stack.blocks) == 24
    assert [one.name for one in applied(model)] == list(config.remedies)
    assert (model.config.norm, model.config.init, model.config.pooling) == (KINDS[kind][0], "xavier", "class")
    images, labels = torch.randn(4, 3, 32, 32, generator=torch.Generator().manual_seed(0)), torch.arange(4)
    optimiser = torch.optim.SGD(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(2):
        loss = torch.nn.functional.cross_entropy(model(images), labels)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert losses[1] < losses[0]


@pytest.mark.parametrize("scale", SCALES)
def test_names_stay_while_depths_shrink(scale: Scale) -> None:
    bench = Bench(scale=scale)
    assert set(variants(bench)) <= set(ALL)
    assert depth_of("post-12", bench) < depth_of("post-24", bench) < depth_of("post-40", bench)
    for variant in variants(bench):
        config = settings(variant, rates(bench)[0], bench)
        assert config.network.depth == depth_of(variant, bench)
        assert config.optimiser.clip == 1.0
        assert config.epochs is not None
        assert config.schedule.warmup == pytest.approx(config.epochs * (0.2 if scale == "tiny" else 0.1))
    assert all(f"{kind}-24" in variants(bench) for kind in ("post", "pre", "deescalate"))


@pytest.mark.parametrize("scale", SCALES)
def test_what_rates_are_chosen_with_is_never_scored(scale: Scale) -> None:
    bench = Bench(scale=scale)
    assert STUDIES["depth_rates"].seeds(bench) == (SEED,)
    assert STUDIES["depth_seeds"].seeds(bench) == SEEDS[scale]
    assert SEED not in SEEDS[scale]


def test_nothing_but_place_of_norms_remedy_depth_and_rate_differs() -> None:
    bench = Bench(scale="full")
    same = {"depth": 1, "norm": "post", "lr": 1.0, "remedies": ()}
    found = {override(config, same) for config in STUDIES["depth_rates"].configs(bench).values()}
    assert len(found) == 1
    assert len(STUDIES["depth_rates"].configs(bench)) == 12 * 3


def test_each_gets_its_own_best_rate(tmp_path: Path) -> None:
    bench = Bench(scale="tiny", out=tmp_path, device="cpu")
    low, high = rates(bench)
    liked = {name: low if name.startswith("post") else high for name in variants(bench)}
    pretend(bench, "depth_rates", (SEED,), lambda variant, rate, _: 0.6 if rate == liked[variant] else 0.5)
    chosen = STUDIES["depth_seeds"].configs(bench)
    assert {name: config.optimiser.lr for name, config in chosen.items()} == liked
    assert [config.network.depth for config in chosen.values()] == [depth_of(name, bench) for name in variants(bench)]


def test_the_lower_rate_where_both_are_as_good() -> None:
    assert best({1e-3: 0.1, 1e-4: 0.1, 3e-4: 0.1}) == 1e-4


def test_what_is_kept_of_runs(tmp_path: Path) -> None:
    bench = Bench(scale="tiny", out=tmp_path, device="cpu")
    low, high = rates(bench)
    pretend(bench, "depth_rates", (SEED,), lambda _, rate, __: 0.6 if rate == low else 0.3)
    pretend(bench, "depth_seeds", (0, 1), lambda variant, _, seed: 0.7 + seed / 10, stopped=("post-24", 1))
    kept = kept_by_depth(bench, lambda variant: variant != "rezero-24")
    assert kept["chance"] == 0.1
    assert "rezero-24" not in {*kept["variants"], *kept["probes"]}
    assert kept["probes"]["pre-24"] == {f"{low:g}": 0.6, f"{high:g}": 0.3}
    assert kept["variants"]["pre-24"] == {
        "depth": 3,
        "rate": low,
        "precision": "float32",
        "stopped": 0,
        "accuracy": {"0": 0.7, "1": pytest.approx(0.8)},
        "before training": {"0": [0.1, 0.2], "1": [0.1, 0.2]},
        "after training": {"0": [0.3, 0.4], "1": [0.3, 0.4]},
    }
    # The log of a run that was stopped may hold an evaluation of before; what it came to is guessing.
    assert kept["variants"]["post-24"]["accuracy"] == {"0": 0.7, "1": 0.1}
    assert kept["variants"]["post-24"]["stopped"] == 1


def test_a_run_without_evaluation_guesses() -> None:
    run = pretended("post-12", settings("post-12", 1e-3, Bench()), 0.9, stopped=False)
    assert run.accuracy == 0.9
    assert replace(run, evaluations=()).accuracy == pytest.approx(1 / 10)


def test_likeness_before_training_is_that_of_the_drawn_weights(tmp_path: Path) -> None:
    bench = Bench(scale="tiny", out=tmp_path / "evidence", runs=tmp_path / "runs", device="cpu")
    (run,) = carry_out_study(STUDIES["depth_rates"], bench, variants=["post-24@0.001"])
    config = replace(settings("post-24", 1e-3, bench), seed=SEED)
    task = TASKS["images"](config, Place(torch.device("cpu")), config.batch)
    model = task.network()
    assert isinstance(model, ViT)
    tokens: list[Tensor] = []
    for block in model.stack.blocks:
        block.register_forward_hook(lambda *passed: tokens.append(passed[-1]))
    with torch.no_grad():
        model.eval()(torch.cat(task.probe(config.measuring.sequences)))
    assert run.layers("mean_cosine", 0)[1:] == pytest.approx([mean_cosine(layer[:, 1:]) for layer in tokens], abs=1e-5)
    assert run.layers("mean_cosine", 0) != run.layers("mean_cosine", -1)


def mean_cosine(tokens_BND: Tensor) -> float:
    """Over all pairs of different tokens, by the definition."""
    x = tokens_BND.double().numpy()
    unit = x / numpy.linalg.norm(x, axis=-1, keepdims=True)
    gram = unit @ unit.transpose(0, 2, 1)
    off = ~numpy.eye(gram.shape[-1], dtype=bool)
    return float(numpy.mean(gram[:, off]))


def test_branches_are_looked_at() -> None:
    config = override(settings("rezero-24", 1e-3, Bench(scale="tiny")), {"depth": 3})
    assert isinstance(config.network, ViTConfig)
    looked = STUDIES["depth_seeds"].look(unsmooth.apply(ViT(config.network), "rezero"), config, torch.device("cpu"))
    # ReZero's branches start with the factor zero.
    assert looked == {"branches": [{"attention": 0.0, "mlp": 0.0}] * 3}
    plain = STUDIES["depth_seeds"].look(ViT(config.network), config, torch.device("cpu"))
    assert all(0.05 < share < 20 for layer in plain["branches"] for share in layer.values())


def pretend(bench: Bench, name: str, seeds: tuple[int, ...], accuracy, stopped: tuple[str, int] | None = None) -> None:  # type: ignore[no-untyped-def]
    """Results of a study that nobody trained."""
    runs = []
    for variant, config in STUDIES[name].configs(bench).items():
        for seed in seeds:
            one = replace(config, seed=seed, engine=replace(config.engine, device=bench.device))
            value = accuracy(variant.partition("@")[0], config.optimiser.lr, seed)
            runs.append(pretended(variant, one, value, stopped=(variant, seed) == stopped))
    bench.store.write_study(name, bench.scale, runs)


def pretended(variant: str, config: Config, accuracy: float, *, stopped: bool) -> Trained:
    layers = ({"epoch": 0.0, "layers": [0.1, 0.2]}, {"epoch": 1.0, "layers": [0.3, 0.4]})
    return Trained(
        variant=variant,
        seed=config.seed,
        config=to_plain(config),
        made={"state": "stopped" if stopped else "finished"},
        evaluations=({"epoch": 1.0, "accuracy": accuracy},),
        similarity={"mean_cosine": layers},
    )
