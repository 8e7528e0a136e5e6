"""Metrics, hosts and whatever else has a registry, brought by other people's packages; and packages that are broken."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

import unsmooth
from tests.distributions import install, unread
from unsmooth.cli.app import run
from unsmooth.doctor import checks as all_groups
from unsmooth.errors import UnsmoothError, expected
from unsmooth.functional import METRICS
from unsmooth.losses import LOSSES
from unsmooth.models import HOSTS
from unsmooth.plugins import PluginWarning
from unsmooth.presets import PRESETS
from unsmooth.registry import Registry
from unsmooth.remedies import REMEDIES

SPREAD = """
from unsmooth.functional import Tokens, metric


@metric(
    definition="largest minus smallest norm",
    paper="none",
    cost="O(nd)",
    chance_note="none",
    degenerate="0",
)
def spread(x, mask=None, *, squared=False):
    norms = Tokens.of(x, mask).values_BND.norm(dim=-1)
    return (norms.amax(dim=1) - norms.amin(dim=1)) ** (2 if squared else 1)


@metric(definition="one", paper="none", cost="O(1)", chance_note="1", degenerate="1", default=True)
def greedy(x, mask=None):
    return Tokens.of(x, mask).count_B * 0 + 1
"""

SLAB = """
from unsmooth.models import Host, Tap

slab = Host(
    name="slab",
    blocks=("Slab",),
    taps=lambda block: {"mlp": Tap("mix", "output")},
    example="a stack of slabs",
)
number = 3
"""


class Slab(nn.Module):
    """A block that only the plugin knows."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.mix(x)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.syspath_prepend(str(tmp_path))
    with unread(METRICS, HOSTS, REMEDIES, PRESETS, LOSSES):
        yield tmp_path


def test_a_metric_is_scanned_with_its_options(folder: Path) -> None:
    install(folder, "their_metrics", SPREAD, {"unsmooth.metrics": {"spread": "spread"}})
    x = torch.tensor([[[3.0, 4.0], [0.0, 1.0]]])
    found = unsmooth.scan(
        nn.Sequential(nn.Identity()), x, blocks="*", metrics=["spread", "spread(squared=True)"], progress=False
    )
    assert [row.mean for row in found.rows if row.layer == 1] == [4.0, 16.0]
    assert found.metrics["spread"].definition == "largest minus smallest norm"


def test_a_host_is_recognised_and_gives_its_sites(folder: Path) -> None:
    install(folder, "their_hosts", SLAB, {"unsmooth.hosts": {"slab": "slab"}})
    torch.manual_seed(0)
    model, x = nn.Sequential(Slab(), Slab()), torch.randn(2, 5, 4)
    found = unsmooth.scan(model, x, sites=("residual", "mlp"), metrics=["mean_distance"], progress=False)
    with torch.no_grad():
        branch = model[1].mix(model[0](x)).double().numpy()
    pairs = [
        [abs_ for a in range(5) for b in range(a) if (abs_ := ((one[a] - one[b]) ** 2).sum() ** 0.5)] for one in branch
    ]
    wanted = sum(sum(pair) / len(pair) for pair in pairs) / 2
    assert found.curve("mean_distance", "mlp")[-1].mean == pytest.approx(wanted, rel=1e-5)


def test_what_a_package_registers_besides_is_not_taken(folder: Path) -> None:
    install(folder, "their_metrics", SPREAD, {"unsmooth.metrics": {"spread": "spread"}})
    assert "spread" in METRICS
    assert "greedy" not in METRICS


def test_no_package_changes_what_a_scan_measures_unasked(folder: Path) -> None:
    before = [name for name, one in METRICS._items.items() if one.default]
    install(folder, "their_metrics", SPREAD, {"unsmooth.metrics": {"greedy": "greedy", "spread": "spread"}})
    with pytest.warns(PluginWarning, match="only where it is asked for, as greedy"):
        assert [metric.name for metric in METRICS.values() if metric.default] == before
    assert "spread" in METRICS  # the same package's other entry is sound


@pytest.mark.parametrize(
    ("group", "target", "source", "problem"),
    [
        ("unsmooth.metrics", "thing", "def thing(x): return x", "with @unsmooth.functional.metric"),
        ("unsmooth.metrics", "thing", "thing = 3", "with @unsmooth.functional.metric"),
        ("unsmooth.metrics", "thing", "import their_missing", "No module named 'their_missing'"),
        ("unsmooth.metrics", "absent", "", "no attribute 'absent'"),
        ("unsmooth.metrics", "thing", "import sys; sys.exit('bye')", "it would end the process (bye)"),
        ("unsmooth.metrics", "thing", "raise SystemExit(3)", "it would end the process (3)"),
        ("unsmooth.metrics", "spread", SPREAD.replace("spread", "hfc_lfc"), "'hfc_lfc', which is taken"),
        ("unsmooth.metrics", "odd", SPREAD.replace("spread", "odd").replace("paper=", "reads='tea', paper="), "'tea'"),
        ("unsmooth.hosts", "number", SLAB, "an unsmooth.models.Host"),
        ("unsmooth.hosts", "slab", SLAB.replace('"slab"', '"bert"'), "'bert', which is taken"),
        ("unsmooth.presets", "number", SLAB, "an unsmooth.presets.Preset"),
        ("unsmooth.losses", "number", SLAB, "with @unsmooth.losses.loss"),
        ("unsmooth.nothing", "number", SLAB, "has no nothing"),
    ],
)
def test_a_broken_one_is_one_line_and_the_rest_works(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, group, target, source, problem
) -> None:
    monkeypatch.setitem(all_groups.GROUPS, "unsmooth.nothing", ("unsmooth.no_such_room", "NOTHING"))
    install(folder, "their_broken", source, {group: {"broken": target if target != "spread" else "hfc_lfc"}})
    install(folder, "their_metrics", SPREAD, {"unsmooth.metrics": {"spread": "spread"}})
    assert run(["ls", "plugins", "--json"]) == 0
    printed = capsys.readouterr()
    assert printed.err == ""
    found = {entry["name"]: entry for entry in json.loads(printed.out)}
    assert problem in found["broken"]["problem"]
    assert found["broken"]["package"] == "their_broken 1.0"
    assert (found["spread"]["item"], found["spread"]["problem"]) == ("spread", "")
    assert METRICS["hfc_lfc"].paper != "none"


def test_the_command_says_so_in_one_line_and_goes_on(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    install(folder, "their_broken", "raise RuntimeError('not\\ntoday')", {"unsmooth.hosts": {"broken": "thing"}})
    assert run(["ls", "models"]) == 0
    printed = capsys.readouterr()
    assert "bert" in printed.out
    [line] = printed.err.splitlines()
    assert line == (
        "unsmooth: The plugin 'broken' for hosts ('their_broken:thing' of their_broken 1.0) failed to load: not today"
    )


def test_the_list_in_words(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["ls", "plugins"]) == 0
    assert "No plugins" in capsys.readouterr().out
    for registry in (METRICS, HOSTS):
        registry._filled = False
    install(folder, "their_metrics", SPREAD, {"unsmooth.metrics": {"spread": "spread"}})
    install(folder, "their_hosts", SLAB, {"unsmooth.hosts": {"odd": "number"}})
    assert run(["ls", "plugins"]) == 0
    works, fails = capsys.readouterr().out.splitlines()
    assert works == "unsmooth.metrics: spread (their_metrics:spread of their_metrics 1.0) works"
    assert fails.startswith("unsmooth.hosts: odd (their_hosts:number of their_hosts 1.0) failed to load: Expected an")


def test_any_registry_takes_plugins(folder: Path) -> None:
    def accept(found: object) -> tuple[str, int]:
        if not isinstance(found, int):
            raise expected("a number", repr(found), "3")
        return f"number-{found}", found

    numbers = Registry[int]("number", group="their.numbers", accept=accept)
    numbers.add("one", 1)
    install(folder, "their_numbers", "three = 3\nword = 'four'", {"their.numbers": {"a": "three", "b": "word"}})
    assert numbers["one"] == 1
    assert "their_numbers" not in sys.modules  # nobody has asked for it yet
    with pytest.warns(PluginWarning, match="Expected a number but got 'four'"):
        assert dict(numbers) == {"one": 1, "number-3": 3}
    with pytest.raises(UnsmoothError, match="Did you mean 'number-3'"):
        numbers["number-4"]


def test_an_import_of_ours_loads_nobody_elses(tmp_path: Path) -> None:
    install(tmp_path, "their_slow", "raise SystemExit('loaded')", {"unsmooth.metrics": {"slow": "thing"}})
    program = (
        "import sys; sys.path.insert(0, sys.argv[1]); import unsmooth.functional; print('their_slow' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
