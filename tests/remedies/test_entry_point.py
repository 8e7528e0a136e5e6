from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests import distributions
from tests.remedies.hosts import BY_NAME
from unsmooth import remedies
from unsmooth.remedies.base import REMEDIES

HALVE = """
from unsmooth.remedies import Edit


class Halve(Edit):
    name = "halve"
    summary = "the MLP branch is halved"
    paper = "none"
    equation = "x + mlp(x)/2"
    causal = "unchanged"
    cost = "one multiplication"

    def on_mlp(self, branch_BND, call):
        return branch_BND / 2
"""


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder on the path in which a distribution with an entry point can be put; forgotten afterwards."""
    monkeypatch.syspath_prepend(str(tmp_path))
    with distributions.unread(REMEDIES):
        yield tmp_path


def install(folder: Path, target: str, source: str) -> None:
    distributions.install(folder, "their_remedies", source, {"unsmooth.remedies": {"halve": target}})


def test_a_third_party_brings_a_remedy(installed: Path) -> None:
    install(installed, "Halve", HALVE)
    assert "halve" in remedies.names()
    assert remedies.describe("halve").summary == "the MLP branch is halved"
    host = BY_NAME["vit"]
    model, half = host.model(), host.model()
    remedies.apply(model, "halve")
    with torch.no_grad():
        for layer in half.layers:
            layer.mlp.fc2.weight.mul_(0.5)
            layer.mlp.fc2.bias.mul_(0.5)
        call = host.call(host.inputs())
        torch.testing.assert_close(host.output(model, call), host.output(half, call))


def test_its_decorator_may_be_used_too(installed: Path) -> None:
    decorated = HALVE.replace("import Edit", "import Edit, remedy").replace("class Halve", "@remedy\nclass Halve")
    install(installed, "Halve", decorated)
    assert remedies.names().count("halve") == 1


def test_a_broken_package_leaves_ours_alone(installed: Path) -> None:
    install(installed, "Halve", "raise RuntimeError('not today')")
    with pytest.warns(UserWarning, match="failed to load: not today"):
        assert "deescalate" in remedies.names()


def test_what_is_not_an_edit_is_refused(installed: Path) -> None:
    install(installed, "Halve", "Halve = 3")
    with pytest.warns(UserWarning, match=r"subclass of unsmooth\.remedies\.Edit"):
        assert "deescalate" in remedies.names()


def test_what_does_not_say_where_it_comes_from_is_refused(installed: Path) -> None:
    install(installed, "Halve", HALVE.replace('    paper = "none"\n', ""))
    with pytest.warns(UserWarning, match="says its paper"):
        assert "halve" not in remedies.names()


def test_the_name_of_one_of_ours_is_not_taken(installed: Path) -> None:
    install(installed, "Halve", HALVE.replace('name = "halve"', 'name = "deescalate"'))
    with pytest.warns(UserWarning, match="'deescalate', which is taken"):
        assert "deescalate" in remedies.names()
    assert remedies.describe("deescalate").paper.startswith("Yu & Zhang")
