from __future__ import annotations

import dataclasses
import re
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tests.remedies.hosts import BY_NAME
from tests.remedies.snapshot import Snapshot
from unsmooth import remedies
from unsmooth.errors import UnsmoothError
from unsmooth.models.host import HOSTS
from unsmooth.remedies.base import REMEDIES, Edit


def refused(model: nn.Module, name: Any, message: str, **options: Any) -> None:
    """One clear error, and the model untouched."""
    before = Snapshot.of(model)
    with pytest.raises(UnsmoothError, match=message) as caught:
        remedies.apply(model, name, **options)
    assert "\n" not in str(caught.value)
    before.check(model)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("deescalat", "Did you mean 'deescalate'?"),
        ("Sharpen", "Did you mean 'sharpen'?"),
        ("entirely other", "Expected a known remedy"),
        ("", "Expected a known remedy"),
        (None, "the name of a remedy but got None"),
        (3, "the name of a remedy but got 3"),
    ],
)
def test_unknown_remedy(name: Any, message: str) -> None:
    refused(BY_NAME["vit"].model(), name, re.escape(message))


@pytest.fixture(scope="module")
def bert() -> nn.Module:
    return BY_NAME["bert"].model()


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("attnscale", {"omega": -2}, "Expected omega between"),
        ("attnscale", {"learn": "channel"}, "Expected learn as one of"),
        ("b2t", {"weight": -1.0}, "Expected weight between 0.0 and 10.0"),
        ("b2t", {"scale": 0.5}, 'norm="drop"'),
        ("b2t", {"norm": "keepp"}, "Try norm='keep'."),
        ("b2t", {"variant": "both"}, "Expected variant as one of"),
        ("centred", {"tau": 3}, "Expected tau between"),
        ("centred", {"learn": "channel"}, "Expected learn as one of"),
        ("contranorm", {"scale": -1}, "Expected scale between"),
        (
            "contranorm",
            {"temperature": 0},
            "Expected temperature between 0.001 and 1000.0 but got 0. Try temperature=1.0",
        ),
        ("contranorm", {"place": "pos7"}, "Expected place as one of"),
        ("contranorm", {"dual": 1}, "Expected dual as True or False"),
        ("contranorm", {"identity": "yes"}, "Expected identity as True or False"),
        ("contranorm", {"identity": ""}, "Expected identity as True or False, or None but got ''"),
        ("contranorm", {"identity": 0}, "Expected identity as True or False, or None but got 0"),
        ("contranorm", {"learn": "positive", "scale": 0.0}, "Expected scale above 0"),
        ("deepnorm", {"alpha": 0.0}, "Expected alpha above 0.0, or None but got 0.0"),
        ("deepnorm", {"beta": -1}, "Expected beta above 0.0, or None but got -1"),
        ("deepnorm", {"alpha": float("nan")}, "Expected alpha above 0.0, or None but got nan"),
        ("deepnorm", {"variant": "oficial"}, "Try variant='official'."),
        ("deepnorm", {"init": "draw"}, "Expected init as one of"),
        ("deescalate", {"tua": 1.0}, "Did you mean 'tau'?"),
        ("deescalate", {"tau": 2.5}, "tau between 0.0 and 2.0 but got 2.5"),
        ("deescalate", {"tau": -0.1}, "tau between 0.0 and 2.0 but got -0.1"),
        ("deescalate", {"tau": float("nan")}, "tau between 0.0 and 2.0 but got nan"),
        ("deescalate", {"tau": True}, "tau between 0.0 and 2.0 but got True"),
        ("deescalate", {"tau": "1"}, "tau between 0.0 and 2.0 but got '1'"),
        ("deescalate", {"tau": None}, "tau between 0.0 and 2.0 but got None"),
        ("deescalate", {"tau": torch.tensor(1.0)}, "tau between 0.0 and 2.0 but got tensor"),
        ("deescalate", {"place": "resid"}, "Try place='residual'."),
        ("deescalate", {"place": None}, "place as one of attention, residual, norm, values but got None"),
        ("deescalate", {"prior": -1}, "prior between"),
        ("featscale", {"dc": -2}, "Expected dc between"),
        ("featscale", {"hc": "all"}, "Expected hc between"),
        ("featscale", {"variant": "swin"}, "Expected variant as one of"),
        ("gfsa", {"order": 1}, "Expected order as a whole number"),
        ("gfsa", {"order": 2.5}, "Expected order as a whole number"),
        ("gfsa", {"start": 3}, "Expected start between"),
        ("gfsa", {"variant": "code"}, "Expected variant as one of"),
        ("laplacian", {"heads": 4}, "Expected heads from 0 to 3 (or -4 to -1) but got 4"),
        ("laplacian", {"heads": 0.0}, "a fraction of all heads between -1 and 1, not 0"),
        (
            "laplacian",
            {"heads": "all"},
            "Expected heads as a whole number, a number, a slice, a list of whole numbers, or None but got 'all'",
        ),
        ("laplacian", {"heads": [0, "1"]}, "or None but got [0, '1']"),
        (
            "laplacian",
            {"heads": np.array([0, 1])},
            "or None but got array",
        ),
        ("layerscale", {"start": "depth"}, "Expected start between"),
        ("neutreno", {"lam": 3}, "Expected lam between"),
        ("neutreno", {"learn": "channel"}, "Expected learn as one of"),
        ("pairnorm", {"scale": 0}, "Expected scale between 1e-06 and 1000000.0, or None but got 0"),
        ("pairnorm", {"scale_by": "SI"}, "Expected scale_by as one of"),
        ("pairnorm", {"place": "mlp"}, "Expected place as one of"),
        ("residual_scaling", {"scale": float("inf")}, "scale between"),
        ("residual_scaling", {"scale": -0.1}, "Expected scale between 0"),
        ("residual_scaling", {"scale": "half"}, "Expected scale between 0"),
        ("rezero", {"start": 11}, "Expected start between -10.0 and 10.0"),
        ("rezero", {"norm": "dropped"}, "Try norm='drop'."),
        ("rezero", {"share": "yes"}, "Expected share as True or False"),
        ("shaped", {"alpha": 11}, "Expected alpha between"),
        ("shaped", {"learn": "channel"}, "Expected learn as one of"),
        ("shaped", {"skip": "no"}, "Expected skip as one of"),
        ("sharpen", {"basis": "orthonormal"}, "Try basis='orthogonal'."),
        ("sharpen", {"basis": "gramm"}, "Try basis='gram'."),
        ("sharpen", {"basis": "gram", "eigenvalues": "square"}, "basis='gram', which has no ψ"),
        ("sharpen", {"basis": "general", "eigenvalues": "square", "limit": 0.5}, "which has no bound"),
        ("sharpen", {"eigenvalues": "rescale"}, "basis='gram' with eigenvalues='rescale' but got basis='schur'"),
        ("sharpen", {"eigenvalues": "clipped"}, "Try eigenvalues='clip'."),
        ("sharpen", {"eigenvalues": "sigmoid", "limit": None}, "a limit with eigenvalues='sigmoid'"),
        ("sharpen", {"limit": 0.0}, "limit of at least 0.001, or None but got 0.0. Try limit=1.0."),
        ("sharpen", {"limit": float("inf")}, "limit of at least 0.001, or None but got inf"),
        ("sharpen", {"upper": -1.0}, "upper of at least 0.001, or None but got -1.0"),
        ("sharpen", {"basis": "general", "upper": 1.0}, "basis='schur' with upper"),
        ("sharpen", {"start": "zero"}, "Expected start as one of project, fresh"),
        ("sharpen", {"size": -1.0}, "size between"),
        ("skipinit", {"norm": "dropped"}, "Try norm='drop'."),
        ("skipinit", {"share": True}, "'share'"),
        ("softdecay", {"alpha": -1.0}, "Expected alpha between"),
        ("softdecay", {"alpha": 0.0}, 'learn="no"'),
        ("softdecay", {"learn": "head"}, "Expected learn as one of"),
        ("softdecay", {"variant": "v2"}, "Expected variant as one of"),
        ("value_residual", {"first": 3}, "Expected first between"),
        ("value_residual", {"learn": "channel"}, "Expected learn as one of"),
        ("value_skipinit", {"beta": "all"}, "Expected beta between"),
        ("value_skipinit", {"skip": True}, "Expected skip as one of"),
    ],
)
def test_bad_options(bert: nn.Module, name: str, options: dict[str, Any], message: str) -> None:
    refused(bert, name, re.escape(message), **options)


@pytest.mark.parametrize("blocks", [3, ["encoder.layer.*"], b"encoder.layer.*"])
def test_bad_blocks(bert: nn.Module, blocks: Any) -> None:
    refused(bert, "deescalate", "Expected blocks as a pattern over module paths but got", blocks=blocks)
    for verb in (remedies.undo, remedies.fold, remedies.applied):
        with pytest.raises(UnsmoothError, match="blocks as a pattern"):
            verb(bert, blocks=blocks)


@pytest.mark.parametrize("layers", [7, -4, [0, 3], [], slice(3, None), True, 0.0, 1.01, "0", [0.5]])
def test_bad_layers(layers: Any) -> None:
    refused(BY_NAME["bert"].model(), "deescalate", "layers|fraction", layers=layers)


@pytest.mark.parametrize("host", ["bert", "gpt2", "torch_post"])
def test_twice(host: str) -> None:
    model = BY_NAME[host].model()
    remedies.apply(model, "deescalate", layers=[0, 1])
    refused(model, "deescalate", "deescalate in block .* already", layers=[1, 2])
    remedies.apply(model, "deescalate", layers=[2])
    assert [one.layers for one in remedies.applied(model)] == [(0, 1), (2,)]


class Everybody(Edit):
    """A third party's: adds the mean over all tokens, and has no causal form."""

    name = "everybody"
    summary = paper = equation = cost = "-"
    causal = "none"

    def on_mlp(self, branch_BND: Tensor, call: Any) -> Tensor:
        return branch_BND + branch_BND.mean(1, keepdim=True)


@pytest.fixture
def everybody() -> Any:
    REMEDIES.add("everybody", Everybody)
    yield "everybody"
    del REMEDIES._items["everybody"]


@pytest.mark.parametrize("host", ["gpt2", "llama", "neox_parallel", "bert_decoder"])
def test_no_causal_form(host: str, everybody: str) -> None:
    for name, options in ((everybody, {}), ("deescalate", {"mean": "all"})):
        model = BY_NAME[host].model()
        refused(model, name, "causal form for a decoder .*allow_leak=True", **options)
        with pytest.warns(UserWarning, match=f"{name} lets tokens of a causal model see later ones"):
            remedies.apply(model, name, allow_leak=True, **options)
        ids = BY_NAME[host].inputs()
        other = ids.clone()
        other[:, -1] = (other[:, -1] - 4) % 45 + 5
        with torch.no_grad():
            moved = model(input_ids=ids).logits - model(input_ids=other).logits
        assert moved[:, :-1].abs().max() > 1e-4  # it does leak, as was said
        before = Snapshot.of(BY_NAME[host].model())
        before.check(remedies.undo(model), copied=True)


def test_no_warning_where_nothing_leaks(everybody: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        remedies.apply(BY_NAME["bert"].model(), everybody, allow_leak=True)
        remedies.apply(BY_NAME["gpt2"].model(), "deescalate", allow_leak=True)


@pytest.mark.parametrize("is_causal", [None, True, False])
@pytest.mark.parametrize("boolean", [True, False])
def test_no_causal_form_where_the_call_is_causal(is_causal: bool | None, boolean: bool, everybody: str) -> None:
    host = BY_NAME["torch_pre"]
    x, mask = host.inputs(), nn.Transformer.generate_square_subsequent_mask(8)
    call = {"src": x, "mask": mask == -torch.inf if boolean else mask, "is_causal": is_causal}
    for name, options in ((everybody, {}), ("deescalate", {"mean": "all"})):
        model = remedies.apply(host.model(), name, **options)
        host.output(model, {"src": x})
        how = " with options that let" if options else ", which lets"  # where defaults leak, they are no way out
        with pytest.raises(UnsmoothError, match=f"{name}{how} a token see later ones") as caught:
            host.output(model, call)
        assert ("its default options" in str(caught.value)) == bool(options)
        allowed = remedies.apply(host.model(), name, allow_leak=True, **options)
        assert host.output(allowed, call).isfinite().all()
    model = remedies.apply(remedies.apply(host.model(), "featscale"), everybody)
    with pytest.raises(UnsmoothError, match="everybody, which lets"):  # and not who has a causal form
        host.output(model, call)


def test_folding_what_does_not_fold_and_nothing() -> None:
    host = BY_NAME["bert"]
    model = host.model()
    before = Snapshot.of(model)
    with pytest.raises(UnsmoothError, match="a model with remedies applied but got a plain one"):
        remedies.fold(model)
    before.check(model)
    remedies.apply(model, "residual_scaling")
    remedies.apply(model, "deescalate", layers=[2])
    before = Snapshot.of(model)
    with pytest.raises(UnsmoothError, match=r"deescalate in block 'encoder\.layer\.2', which does not"):
        remedies.fold(model)
    before.check(model)


class Int8Linear(nn.Linear):
    """Stands for a quantised layer: the right class, but whole numbers."""

    def __init__(self, like: nn.Linear) -> None:
        super().__init__(like.in_features, like.out_features)
        self.weight = nn.Parameter(torch.zeros_like(self.weight, dtype=torch.int8), requires_grad=False)


class Linear4bit(nn.Linear):
    """Stands for bitsandbytes': a subclass with a forward pass of its own."""

    def __init__(self, like: nn.Linear) -> None:
        super().__init__(like.in_features, like.out_features)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).round()


class LoraLinear(nn.Module):
    """Stands for an adapter: shows the weight that it wraps, and applies another."""

    def __init__(self, like: nn.Linear) -> None:
        super().__init__()
        self.base_layer, self.a, self.b = like, nn.Linear(like.in_features, 2), nn.Linear(2, like.out_features)

    @property
    def weight(self) -> Tensor:
        return self.base_layer.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.base_layer(x) + self.b(self.a(x))


@pytest.mark.parametrize("kind", [Int8Linear, Linear4bit, LoraLinear])
@pytest.mark.parametrize("path", ["attention.self.value", "attention.output.dense", "output.dense"])
@pytest.mark.parametrize("name", ["sharpen", "deescalate", "residual_scaling"])
def test_weights_that_are_not_plain(kind: Callable[[nn.Linear], nn.Module], path: str, name: str) -> None:
    model = BY_NAME["bert"].model()
    block = model.encoder.layer[1]
    block.set_submodule(path, kind(block.get_submodule(path)))
    rounds, of_mlp = kind is Int8Linear, path == "output.dense"
    if name == "sharpen" or rounds or of_mlp:
        refused(model, name, r"Expected .* but got .*(float weights and adapters merged|attention's branch)")
        return
    # What acts on attention's branch as a whole needs none of its weights.
    ids, before = torch.randint(0, 50, (2, 7), generator=torch.Generator().manual_seed(0)), Snapshot.of(model)
    with torch.no_grad():
        plain = model(ids).last_hidden_state
        remedies.apply(model, name)
        assert not torch.allclose(model(ids).last_hidden_state, plain, atol=1e-3)
        remedies.undo(model)
        assert torch.equal(model(ids).last_hidden_state, plain)
    before.check(model)


def test_compiled() -> None:
    for compiled in (torch.compile, lambda model: (model.compile(), model)[1]):
        refused(compiled(BY_NAME["bert"].model()), "deescalate", "not compiled yet .*before torch.compile")
    model = BY_NAME["bert"].model()
    model.encoder.layer[1].compile()
    refused(model, "deescalate", "not compiled yet")


def test_models_that_have_no_place_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    refused(nn.Sequential(nn.Linear(2, 2)), "deescalate", "Transformer blocks in Sequential")
    with pytest.raises(UnsmoothError, match=r"an nn\.Module but got str"):
        remedies.apply("bert-base-uncased", "deescalate")  # type: ignore[type-var]
    import transformers

    # A host of somebody else's need not say how its blocks are put together.
    monkeypatch.setitem(HOSTS._items, "phi", dataclasses.replace(HOSTS["phi"], wiring=None))
    sizes = {"vocab_size": 50, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    phi = transformers.PhiModel(transformers.PhiConfig(intermediate_size=48, **sizes))
    refused(phi, "deescalate", "blocks that remedies know .* but got phi blocks")
    both = nn.ModuleDict({"one": BY_NAME["bert"].model(), "two": phi})
    refused(both, "deescalate", "but got phi blocks in its stack 'two': nothing is known of", stack="two")
    with pytest.warns(UserWarning, match="deescalate is not applied to the stack 'two': nothing is known of phi"):
        remedies.apply(both, "deescalate")
    assert [one.stack for one in remedies.applied(both)] == ["one"]
    remedies.undo(both)
    refused(both, "deescalate", "modules that match blocks='three", blocks="three.*")
    refused(both, "deescalate", "a known stack but got 'three'. Known: one, two", stack="three")
    refused(both, "deescalate", "either blocks or stack", stack="one", blocks="one.*")
    refused(BY_NAME["bert"].model(), "deescalate", "no stack, as BertModel has one only", stack="encoder")


def test_wider_heads_than_the_stream() -> None:
    import transformers

    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
    config = transformers.Qwen3Config(vocab_size=50, **sizes, num_key_value_heads=4, head_dim=16)
    refused(transformers.Qwen3ForCausalLM(config), "sharpen", "sharpen cannot be applied to qwen block")


class Breaks(Edit):
    """Fails in its third block, after it has changed two."""

    name = "breaks"
    summary = paper = equation = cost = "-"
    causal = "unchanged"

    def __init__(self, site: Any) -> None:
        super().__init__(site)
        self.last = site.index == 2

    def install(self, site: Any) -> None:
        with torch.no_grad():
            site.output_matrix().neg_()
        if self.last:
            raise RuntimeError("half way")

    def remove(self, site: Any) -> None:
        with torch.no_grad():
            site.output_matrix().neg_()


@pytest.mark.parametrize("host", ["bert", "torch_post", "gpt2"])
def test_failing_half_way_leaves_nothing_behind(host: str) -> None:
    REMEDIES.add("breaks", Breaks)
    try:
        model = BY_NAME[host].model()
        before = Snapshot.of(model)
        with pytest.raises(RuntimeError, match="half way"):
            remedies.apply(model, "breaks")
        before.check(model)
    finally:
        del REMEDIES._items["breaks"]
