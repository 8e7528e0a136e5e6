"""The census: its shrinker, its finder, which must see planted errors, and its page."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import torch
from benchmarks.census import __main__ as census
from benchmarks.census import ask, build, finder, hosts, matching, page, record, remedies, shrink, sites, truth
from benchmarks.census.others import GPT
from torch import Tensor, nn
from transformers import BertConfig, BertModel
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from unsmooth.cli.app import run

# Of all model types every tenth; those that hold a stack are asked here what the whole census asks of all.
TENTH = slice(4, None, 10)


def bert() -> BertModel:
    config = BertConfig(hidden_size=16, num_hidden_layers=3, num_attention_heads=2, intermediate_size=32, vocab_size=50)
    return build.stir(BertModel(config).eval())


def padded_batch() -> dict[str, Tensor]:
    ids = torch.randint(5, 50, (3, 8), generator=torch.Generator().manual_seed(0))
    return {"input_ids": ids, "attention_mask": torch.tensor([[1] * 8, [1] * 6 + [0] * 2, [1] * 5 + [0] * 3])}


# The shrinker ---------------------------------------------------------------------------------------------------------


def test_widths_depths_and_vocabularies_become_tiny_and_fit() -> None:
    config = shrink.small(CONFIG_MAPPING["llama"])
    assert (config.num_hidden_layers, config.hidden_size, config.num_attention_heads, config.head_dim) == (2, 32, 4, 8)
    assert config.vocab_size == 128
    assert config.intermediate_size < 100


def test_every_kind_of_layer_is_kept() -> None:
    kinds = shrink.small(CONFIG_MAPPING["qwen3_next"]).layer_types
    assert set(kinds) == set(CONFIG_MAPPING["qwen3_next"]().layer_types)
    assert len(kinds) <= 4


def test_special_tokens_are_the_same_in_every_part_and_inside_the_vocabulary() -> None:
    config = shrink.small(CONFIG_MAPPING["qwen2_vl"])
    assert config.image_token_id != config.video_token_id
    assert max(config.image_token_id, config.video_token_id) < shrink.FIRST_FREE_ID < config.text_config.vocab_size
    tokens = shrink.Tokens()
    assert tokens.of(151_655) == tokens.of(151_655) != tokens.of(151_656)
    assert tokens.of(2) == 2


def test_rotary_sections_fill_half_a_head() -> None:
    config = shrink.small(CONFIG_MAPPING["qwen2_vl"]).text_config
    assert sum(config.rope_parameters["mrope_section"]) == shrink.HEAD_DIM // 2


@pytest.mark.parametrize(
    ("field", "old", "new"), [("num_labels", 17, 17), ("depth", 0, 0), ("num_hidden_layers", 80, 2)]
)
def test_numbers_that_no_rule_knows_stay(field: str, old: int, new: int) -> None:
    assert shrink.shrunk_number(field, old) == new


def test_no_norm_or_gate_is_neutral_after_stirring() -> None:
    model = nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 8))
    model.gate = nn.Parameter(torch.zeros(8))  # type: ignore[assignment]
    build.stir(model)
    assert float((model[0].weight - 1).detach().abs().min()) > 0
    assert float(model.gate.detach().abs().min()) > 0


# The finder -----------------------------------------------------------------------------------------------------------


class Block(nn.Module):
    """Pre-norm, torch's attention."""

    def __init__(self, width: int = 8, tuples: bool = False) -> None:
        super().__init__()
        self.norm, self.attention = nn.LayerNorm(width), nn.MultiheadAttention(width, 2, batch_first=True)
        self.tuples = tuples

    def forward(self, x: Tensor) -> Any:
        normed = self.norm(x)
        y = x + self.attention(normed, normed, normed, need_weights=False)[0]
        return (torch.zeros(1), y) if self.tuples else y


class Chain(nn.Module):
    """Blocks one after the other, in an order that may be asked for."""

    def __init__(self, order: tuple[int, ...] = (0, 1, 2), tuples: bool = False) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(tuples=tuples) for _ in range(3))
        self.order = order

    def forward(self, x: Tensor) -> Tensor:
        for number in self.order:
            x = self.blocks[number](x)
            x = x[1] if isinstance(x, tuple) else x
        return x


class Heads(nn.Module):
    """A list of which each child reads the same."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([block(x) for block in self.blocks]).sum(0)


class Rows(nn.Module):
    """No module for a block, as in vit-pytorch."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.ModuleList([Block(), nn.Linear(8, 8)]) for _ in range(2))
        self.norm = nn.LayerNorm(8)

    def forward(self, x: Tensor) -> Tensor:
        for attention, linear in self.layers:
            x = attention(x) + x
            x = linear(x) + x
        return self.norm(x)


def noise(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1)])
@pytest.mark.parametrize("tuples", [False, True])
def test_the_order_is_that_of_the_calls(order: tuple[int, ...], tuples: bool) -> None:
    x = noise(3, 5, 8)
    model = Chain(order, tuples).eval()
    [stack] = finder.find(model, {"x": x})
    assert stack.paths == tuple(f"blocks.{number}" for number in order)
    assert stack.output == ("[1]" if tuples else "")
    with torch.no_grad():
        assert torch.equal(stack.values[0], x)
        assert torch.equal(stack.values[-1], model(x))


def test_a_block_called_again_is_a_layer_again() -> None:
    [stack] = finder.find(Chain((0, 0, 0, 0)).eval(), {"x": noise(3, 5, 8)})
    assert stack.paths == ("blocks.0",) * 4


def test_what_reads_the_same_is_no_stack() -> None:
    assert finder.find(Heads().eval(), {"x": noise(3, 5, 8)}) == []


def test_layers_without_attention_are_no_stack() -> None:
    assert finder.find(nn.Sequential(*(nn.Linear(8, 8) for _ in range(3))), {"input": noise(3, 5, 8)}) == []


def test_rows_of_a_list_are_blocks() -> None:
    [stack] = finder.find(Rows().eval(), {"x": noise(3, 5, 8)})
    assert (stack.path, stack.slot, len(stack.values)) == ("layers", "rows", 3)


class Stages(nn.Module):
    """Of one block, then of two of another width."""

    def __init__(self) -> None:
        super().__init__()
        self.stages = nn.ModuleList([nn.ModuleList([Block()]), nn.ModuleList([Block(16), Block(16)])])

    def forward(self, x: Tensor) -> Tensor:
        for stage in self.stages:
            for block in stage:
                x = block(x)
            x = x.reshape(len(x), -1, 16)
        return x


@pytest.mark.parametrize("kind", ["none", "dropped block", "wrong block"])
def test_stages_may_be_read_as_one_stack(kind: str) -> None:
    model, batch = Stages().eval(), {"x": noise(3, 6, 8)}
    calls = finder.Recorder(model).run(batch)
    [stack] = finder.stacks_in(calls)
    right = truth.truth(stack, model, batch, {}, 3)
    truth.add_stages([right], calls)
    blocks = [call for call in calls if call.kind is Block]
    values = [batch["x"], *(call.outputs[""] for call in blocks)]
    if kind == "dropped block":
        del values[1]
    if kind == "wrong block":
        values[1] = batch["x"] + 1
    curves = [finder.curve([one.numpy()], np.ones(one.shape[:2], dtype=bool)) for one in values]
    joined = {name: [one[name][0] for one in curves] for name in curves[0]}
    found, odd = matching.match({"": joined}, [right])
    assert (found, odd) == (({"": [0]}, []) if kind == "none" else ({}, [""]))


class Sampling(nn.Module):
    """Deformable attention: what a softmax weighs is read off a grid."""

    def __init__(self, weighs: bool) -> None:
        super().__init__()
        self.weights, self.weighs = nn.Linear(8, 4), weighs

    def forward(self, x: Tensor) -> Tensor:
        weights_BNK = self.weights(x).softmax(-1) if self.weighs else self.weights(x)
        grid = weights_BNK[..., :2].unsqueeze(2) - 0.5
        read = nn.functional.grid_sample(x.mT.unflatten(2, (2, 3)), grid, align_corners=False)
        return x + read.flatten(2).mT * weights_BNK.sum(-1, keepdim=True)


@pytest.mark.parametrize("weighs", [True, False])
def test_reading_off_a_grid_with_weights_is_attention(weighs: bool) -> None:
    model = nn.Sequential(*(Sampling(weighs) for _ in range(3)))
    assert len(finder.find(model, {"input": noise(3, 6, 8)})) == weighs


def test_what_a_model_draws_is_the_same_in_every_pass() -> None:
    model, x = Chain().eval(), noise(3, 5, 8)
    model.register_forward_pre_hook(
        lambda module, args, kwargs: ((), {"x": kwargs["x"] * torch.rand(1)}), with_kwargs=True
    )
    [first], [again] = (finder.find(model, {"x": x}) for _ in range(2))
    assert torch.equal(first.values[0], again.values[0])


def test_one_token_has_no_similarity_and_zeros_are_alike() -> None:
    values = [np.ones((2, 1, 4)), np.zeros((2, 3, 4))]
    one, zeros = (finder.curve([value], np.ones(value.shape[:2], dtype=bool)) for value in values)
    assert np.isnan([*one.values()]).all()
    assert (zeros["token_similarity"], zeros["mean_cosine"]) == ([1.0], [0.0])


@pytest.mark.parametrize(
    ("shape", "kind"),
    [((3, 5, 8), "batch first"), ((5, 3, 8), "sequence first"), ((1, 9, 8), "packed"), ((7, 5, 8), None)],
)
def test_layouts(shape: tuple[int, ...], kind: str | None) -> None:
    [stack] = finder.find(Chain().eval(), {"x": noise(*shape)})
    layout = finder.layout_of(stack, nn.Identity(), 3)
    assert (layout and layout.kind) == kind


def test_padding_is_what_moves_when_it_is_changed() -> None:
    model, batch = bert(), padded_batch()
    answer = ask.examine(model, batch, parts=())
    assert answer["verdict"] == "right"
    assert answer["stacks"][0]["mask"] == "by changing padding"
    assert answer["stacks"][0]["real"] == int(batch["attention_mask"].sum())


def planted(kind: str, stack: finder.Stack, real: np.ndarray) -> dict[str, list[float]]:
    """A curve as a library with an error would give it."""
    values = [one.double().numpy() for one in stack.values]
    if kind == "swapped order":
        values[1], values[2] = values[2], values[1]
    if kind == "dropped block":
        del values[2]
    if kind == "wrong mask":
        real = np.ones_like(real)
    if kind == "final norm":
        values[-1] = torch.nn.functional.layer_norm(stack.values[-1], (16,)).double().numpy() * np.arange(1, 17)
    return finder.curve(values, real)


@pytest.mark.parametrize("kind", ["none", "swapped order", "dropped block", "wrong mask", "final norm"])
def test_planted_errors_are_seen(kind: str) -> None:
    model, batch = bert(), padded_batch()
    [stack] = finder.find(model, batch)
    moved = {"attention_mask": {stack.key: finder.find(model, truth.changed_padding(batch) or {})[0]}}
    right = truth.truth(stack, model, batch, moved, 3)
    found, odd = matching.match({"": planted(kind, stack, right["real"])}, [right])
    assert (list(found), odd) == ([""], []) if kind == "none" else (list(found), odd) == ([], [""])


def test_our_curves_are_those_of_the_formulas() -> None:
    x_ND = np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
    assert finder.token_similarity(x_ND) == pytest.approx(3 * (2 * (2 / 3) ** 2) / 4)
    assert finder.mean_cosine(x_ND) == pytest.approx((0 + 2 * 0.5**0.5) / 3)


# What is asked --------------------------------------------------------------------------------------------------------


def test_all_that_is_asked_of_a_known_model_holds() -> None:
    found = record.row({"name": "bert", **ask.examine(bert(), padded_batch())})
    assert {key: found[key] for key in ("scan", *record.ASPECTS)} == {
        "scan": "right", "sites": "proved", "weights": "proved", "explain": "runs", "sharpen": "holds",
        "deescalate": "holds", "layerscale": "holds",
    }  # fmt: skip
    assert found["padding"] == "unchanged"


def test_a_leak_of_the_future_is_seen() -> None:
    model = build.stir(GPT().eval())
    batch = {"input_ids": torch.randint(5, 96, (3, 9), generator=torch.Generator().manual_seed(0))}

    class Ids(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model, self.leaks = model, False

        def forward(self, input_ids: Tensor) -> Tensor:
            return self.model(input_ids)

    named = Ids().eval()
    causal = remedies.causal_stacks(named, batch, finder.find(named, batch))
    assert len(causal) == 1
    assert remedies._leaks(named, batch, causal) == "no leak"
    handle = model.transformer["h"][1].register_forward_hook(lambda module, args, out: out - out.mean(1, keepdim=True))
    assert remedies._leaks(named, batch, causal) == "leaks"
    handle.remove()


def test_sites_that_are_no_branch_are_not_proved() -> None:
    model, batch = bert(), padded_batch()
    calls = finder.Recorder(model).run(batch)
    [stack] = finder.stacks_in(calls)
    right = truth.truth(stack, model, batch, {}, 3)
    block = sites.Block(right, calls[stack.calls[0]], calls)
    attention = next(call for call in calls if call.path == "encoder.layer.0.attention.output.dense").outputs[""]
    value = next(call for call in calls if call.path == "encoder.layer.0.attention.self.value").outputs[""]
    assert sites._site_verdict("attention", block, block.measured(attention)) == "proved"
    assert sites._site_verdict("attention", block, block.measured(value)) == "unproved"
    assert sites._site_verdict("attention", block, {"token_similarity": 0.123, "mean_cosine": 0.321}) == "wrong"


class Scaled(Block):
    """Both branches times a weight for each feature (LayerScale), the MLP with all tokens in one row."""

    def __init__(self, width: int = 8, tuples: bool = False) -> None:
        super().__init__(width, tuples)
        self.norm2, self.mlp = nn.LayerNorm(width), nn.Linear(width, width)
        self.gamma1, self.gamma2 = nn.Parameter(noise(width)), nn.Parameter(noise(width) + 1)

    def forward(self, x: Tensor) -> Tensor:
        normed = self.norm(x)
        x = x + self.gamma1 * self.attention(normed, normed, normed, need_weights=False)[0]
        return x + self.gamma2 * self.mlp(self.norm2(x).reshape(-1, x.shape[-1])).reshape(x.shape)


def test_a_branch_is_what_is_added_and_the_middle_what_it_is_added_to() -> None:
    model, batch = nn.Module(), {"x": noise(3, 5, 8)}
    model.blocks = nn.ModuleList([Scaled(), Scaled()])
    model.forward = lambda x: model.blocks[1](model.blocks[0](x))  # type: ignore[method-assign]
    calls = finder.Recorder(model.eval()).run(batch)
    [stack] = finder.stacks_in(calls)
    block = sites.Block(truth.truth(stack, model, batch, {}, 3), calls[stack.calls[1]], calls)
    outputs = {call.path: call.outputs for call in calls if call.path.startswith("blocks.1.")}
    own, attention = model.blocks[1], outputs["blocks.1.attention"]["[0]"]
    assert isinstance(own, Scaled)
    mlp = outputs["blocks.1.mlp"][""].reshape(3, 5, 8)
    middle = block.x + own.gamma1 * attention
    right = {"attention": own.gamma1 * attention, "mid": middle, "mlp": own.gamma2 * mlp}
    wrong = {"attention": [attention, middle], "mid": [block.x, block.y, own.gamma2 * mlp], "mlp": [mlp, middle]}
    for site, one in right.items():
        assert sites._site_verdict(site, block, block.measured(one)) == "proved"
        assert all(sites._site_verdict(site, block, block.measured(one)) == "unproved" for one in wrong[site])


@pytest.mark.parametrize("each", [True, False])
def test_rows_that_attend_by_turns_are_layers_or_halves(each: bool) -> None:
    model, batch = ByTurns().eval(), {"x": noise(3, 5, 8)}
    [stack] = finder.find(model, batch)
    right = truth.truth(stack, model, batch, {}, 3)
    values = stack.halves if each else stack.values
    assert len(values) == (5 if each else 3)
    curve = finder.curve([one.numpy() for one in values], np.ones((3, 5), dtype=bool))
    assert matching.match({"": curve}, [right]) == ({"": [0]}, [])
    curve["mean_cosine"][1] += 0.01
    assert matching.match({"": curve}, [right]) == ({}, [""])


class ByTurns(nn.Module):
    """Rows with attention and rows with an MLP, residuals outside, as in x-transformers."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.ModuleList([nn.Linear(8, 8) if n % 2 else Block()]) for n in range(4))
        self.norm = nn.LayerNorm(8)

    def forward(self, x: Tensor) -> Tensor:
        for [part] in self.layers:
            x = part(x) + x
        return self.norm(x)


# The record and the page ----------------------------------------------------------------------------------------------


def test_the_most_used_types_are_a_fixed_list_of_this_transformers() -> None:
    assert len(set(record.MOST_USED)) == 73
    assert set(record.MOST_USED) <= set(hosts.names())


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"said": "done", "neutral": 0.0, "changes": 1.0, "leak": "no leak", "undone": True}, "holds"),
        ({"said": "done", "neutral": 1e-3, "changes": 1.0, "leak": "no leak", "undone": True}, "fails: not neutral"),
        ({"said": "done", "changes": 1.0, "leak": "leaks", "undone": True}, "fails: leaks the future"),
        ({"said": "done", "changes": 1.0, "leak": "no leak", "undone": False}, "fails: not undone"),
        ({"said": "refused: why"}, "refused: why"),
        (
            {"said": "done", "changes": 1.0, "leak": "no leak", "undone": True, "left": ["vision.0"]},
            "partly: holds, but not in vision.0",
        ),
    ],
)
def test_a_remedy_holds_where_everything_does(asked: dict[str, Any], said: str) -> None:
    assert record._remedy(asked) == said


def test_the_page_and_what_comes_with_the_package_are_those_of_the_results() -> None:
    results = json.loads(census.RESULTS.read_text())
    assert census.PAGE.read_text() == page.page(results)
    assert json.loads(census.EXTRACT.read_text()) == record.extract(results)
    ours = [one for one in results["rows"] if one["library"] == "transformers"]
    assert results["counts"]["transformers"] == record.counts(ours)
    assert [one["name"] for one in ours] == hosts.names()


def test_the_command_prints_what_holds(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["ls", "models", "bert", "torch_encoder", "--json"]) == 0
    bert_entry, family = json.loads(capsys.readouterr().out)
    assert (bert_entry["name"], bert_entry["scan"], bert_entry["weights"]) == ("bert", "right", "proved")
    assert (family["name"], family["scan"]) == ("torch_encoder", "declared")
    assert run(["ls", "models", "bert"]) == 0
    assert "proved" in capsys.readouterr().out


def test_a_fixed_tenth_is_what_the_results_say() -> None:
    rows = {one["name"]: one for one in json.loads(census.RESULTS.read_text())["rows"]}
    asked = 0
    for name in hosts.names()[TENTH]:
        if not record.has_stack(rows[name]) or rows[name]["parameters"] > 400_000:
            continue
        try:
            made = hosts.made(name)
        except ImportError:
            # timm is kept apart.
            continue
        answer = ask.examine(made.model, made.batch, data=made.data, parts=())
        assert answer["verdict"] == rows[name]["scan"], (name, answer.get("reason"))
        asked += 1
    assert asked > 30
