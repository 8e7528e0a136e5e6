"""Finding blocks and watching them: numbering, wrappers, clean-up and messages."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
import transformers
from torch import Tensor, nn

from tests.models.entries import ENTRIES
from tests.models.entry import texts
from unsmooth.errors import UnsmoothError
from unsmooth.models import SITES, find_anatomy
from unsmooth.models.hooks import whole_sequences

BY_NAME = {entry.name: entry for entry in ENTRIES}
Calls = list[tuple[int, str]]


def watched(model: nn.Module, passes: int = 1, **options: object) -> Calls:
    calls: Calls = []
    anatomy = find_anatomy(model, **options)  # type: ignore[arg-type]
    with torch.no_grad(), anatomy.watch(lambda layer, site, tensor: calls.append((layer, site))):
        for _ in range(passes):
            model(**texts("right"))
    return calls


def hooks_left(model: nn.Module) -> int:
    kinds = ("_forward_hooks", "_forward_pre_hooks", "_forward_hooks_with_kwargs", "_forward_pre_hooks_with_kwargs")
    return sum(len(getattr(module, kind)) for module in model.modules() for kind in kinds)


class Plain(nn.Module):
    """A model no host knows; `fails_at` makes one block raise."""

    def __init__(self, width: int = 4, fails_at: int | None = None) -> None:
        super().__init__()
        self.stack = nn.ModuleList(nn.Linear(width, width) for _ in range(3))
        self.fails_at = fails_at

    def forward(self, x: Tensor) -> Tensor:
        for i, block in enumerate(self.stack):
            if i == self.fails_at:
                raise RuntimeError("broken block")
            x = block(x)
        return x


def test_one_shared_block_is_as_many_layers_as_calls() -> None:
    model = BY_NAME["albert-shared"].model()
    assert len(find_anatomy(model).blocks) == 1
    assert watched(model) == [(layer, "residual") for layer in range(7)]


def test_layers_start_over_in_every_pass() -> None:
    model = BY_NAME["bert-tiny"].model()
    assert watched(model, passes=2) == [(layer, "residual") for layer in range(4)] * 2


def test_sites_come_in_call_order() -> None:
    model = BY_NAME["llama-llama"].model()
    anatomy, calls = find_anatomy(model), []
    with torch.no_grad(), anatomy.watch(lambda layer, site, tensor: calls.append((layer, site)), anatomy.sites):
        model(**texts("right"))
    assert calls[:6] == [(0, "residual"), *((1, s) for s in ("normed", "attention", "mid", "mlp", "residual"))]


@pytest.mark.parametrize("name", ["bert-tiny", "torch_encoder-post-batch-first", "gemma-gemma3"])
def test_no_hooks_are_left(name: str) -> None:
    entry = BY_NAME[name]
    model = entry.model()
    before = hooks_left(model)
    anatomy = find_anatomy(model)
    with torch.no_grad(), anatomy.watch(lambda layer, site, tensor: None, anatomy.sites):
        assert hooks_left(model) > before
        model(**entry.batch("right"))
    assert hooks_left(model) == before


def test_no_hooks_are_left_after_an_error_in_the_model() -> None:
    model = Plain(fails_at=1)
    with (
        pytest.raises(RuntimeError, match="broken block"),
        find_anatomy(model, "stack.*").watch(lambda layer, site, tensor: None),
    ):
        model(torch.zeros(1, 2, 4))
    assert hooks_left(model) == 0


def test_no_hooks_are_left_after_an_error_in_the_observer() -> None:
    model = BY_NAME["bert-tiny"].model()

    def refuse(layer: int, site: str, tensor: Tensor) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), find_anatomy(model).watch(refuse):
        model(**texts("right"))
    assert hooks_left(model) == 0


def test_preparation_is_undone() -> None:
    layer = BY_NAME["bert-chunked"].model().encoder.layer[0]
    model = nn.ModuleDict({"a": layer, "b": nn.Identity()})
    with whole_sequences(model):
        with whole_sequences(layer):
            assert layer.chunk_size_feed_forward == 0
        assert layer.chunk_size_feed_forward == 0, "the last to leave puts it back"
    assert layer.chunk_size_feed_forward == 3


def test_a_failing_pass_of_torchs_encoder_leaves_no_mode_behind() -> None:
    encoder = BY_NAME["torch_encoder-post-batch-first"].model()
    with find_anatomy(encoder).watch(lambda *seen: None), pytest.raises(AssertionError, match="src_key_padding_mask"):
        encoder(torch.zeros(2, 6, 16), src_key_padding_mask=torch.zeros(2, 6, dtype=torch.long))
    assert torch.overrides._get_current_function_mode_stack() == []


def test_pattern_finds_blocks_of_any_model() -> None:
    model, seen = Plain(), {}
    anatomy = find_anatomy(model, "stack.*")
    assert (anatomy.host.name, anatomy.sites) == ("Linear", ("residual",))
    with torch.no_grad(), anatomy.watch(lambda layer, site, tensor: seen.update({layer: tensor})):
        out = model(x := torch.randn(2, 3, 4))
    assert torch.equal(seen[0], x)
    assert torch.equal(seen[3], out)


def test_pattern_over_known_blocks_has_all_sites() -> None:
    model = BY_NAME["bert-tiny"].model()
    anatomy = find_anatomy(model, "encoder.layer.[01]")
    assert (anatomy.host.name, anatomy.sites) == ("bert", tuple(site for site in SITES if site != "cross"))
    assert watched(model, blocks="encoder.layer.[01]") == [(layer, "residual") for layer in range(3)]


def test_subclassed_block_is_known() -> None:
    model = BY_NAME["bert-tiny"].model()
    for block in model.encoder.layer:
        block.__class__ = type("FSDPBertLayer", (type(block),), {})
    assert find_anatomy(model).host.name == "bert"


def test_namesake_of_a_torch_layer_is_not_taken_for_it() -> None:
    namesake = type("TransformerEncoderLayer", (nn.Linear,), {})
    with pytest.raises(UnsmoothError, match="it has no attention"):
        find_anatomy(nn.Sequential(namesake(4, 4), namesake(4, 4)))


@pytest.fixture
def one_process(tmp_path: object) -> Iterator[None]:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/meet", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("one_process")
def test_blocks_inside_ddp() -> None:
    model = nn.parallel.DistributedDataParallel(BY_NAME["bert-tiny"].model())
    assert all(name.startswith("module.") for name in find_anatomy(model).blocks)
    assert watched(model) == [(layer, "residual") for layer in range(4)]


def test_compiled_model_is_watched_uncompiled() -> None:
    # The eager backend needs no compiler but ignores late hooks just the same.
    model: Any = torch.compile(BY_NAME["bert-tiny"].model(), backend="eager")
    with torch.no_grad():
        model(**texts("right"))
    assert watched(model) == [(layer, "residual") for layer in range(4)]


def test_unknown_site() -> None:
    with pytest.raises(UnsmoothError, match=r"Expected a known site but got 'residaul'. Did you mean 'residual'"):
        find_anatomy(BY_NAME["bert-tiny"].model()).check_sites(["residaul"])


def test_site_that_a_parallel_block_lacks() -> None:
    message = r"Expected a site that phi blocks have \(residual, normed, attention, mlp\) but got 'mid'"
    with pytest.raises(UnsmoothError, match=message):
        find_anatomy(BY_NAME["phi-tiny"].model()).watch(lambda *seen: None, ["mid"])


def test_no_blocks_says_what_was_looked_for_and_how_to_point_at_them() -> None:
    with pytest.raises(UnsmoothError) as caught:
        find_anatomy(Plain())
    assert str(caught.value) == (
        "Expected Transformer blocks in Plain but got none: it has no attention. "
        "Try blocks='auto:any' for its longest list, attention or not, or blocks='stack.*'."
    )
    assert list(find_anatomy(Plain(), "auto:any").blocks) == ["stack.0", "stack.1", "stack.2"]


def test_model_without_layers() -> None:
    config = transformers.BertConfig(hidden_size=8, num_attention_heads=1, num_hidden_layers=0, vocab_size=9)
    with pytest.raises(UnsmoothError, match=r"\(its 'encoder.layer' is an empty list\)"):
        find_anatomy(transformers.BertModel(config))


def test_pattern_that_matches_nothing() -> None:
    with pytest.raises(
        UnsmoothError, match=r"modules that match blocks='blocks.\*' in Plain but got none. Try .*'stack"
    ):
        find_anatomy(Plain(), "blocks.*")


def test_two_stacks_are_not_mixed() -> None:
    bert = BY_NAME["bert-tiny"]
    decoder = transformers.BertConfig(
        hidden_size=16,
        num_attention_heads=2,
        num_hidden_layers=2,
        vocab_size=9,
        is_decoder=True,
        add_cross_attention=True,
    )
    model = transformers.EncoderDecoderModel(encoder=bert.model(), decoder=transformers.BertLMHeadModel(decoder))
    with pytest.raises(UnsmoothError, match="one stack of Transformer blocks") as caught:
        find_anatomy(model)
    assert "2 (encoder.encoder.layer.*, decoder.bert.encoder.layer.*)" in str(caught.value)
    assert "blocks='encoder.encoder.layer.*'" in str(caught.value)
    assert len(find_anatomy(model, "encoder.encoder.layer.*").blocks) == 3
    assert len(find_anatomy(model.encoder).blocks) == 3


def test_two_hosts_are_not_mixed() -> None:
    both = nn.ModuleDict({"text": BY_NAME["bert-tiny"].model(), "image": BY_NAME["vit-tiny"].model()})
    with pytest.raises(UnsmoothError, match=r"2 \(text.encoder.layer.\*, image.layers.\*\)"):
        find_anatomy(both)


def test_tensors_that_are_no_token_vectors() -> None:
    model = nn.Sequential(nn.Conv2d(3, 3, 1), nn.Conv2d(3, 3, 1))
    message = r"\(batch, tokens, dim\) at residual of block '0' but got shape \(1, 3, 4, 4\)"
    with pytest.raises(UnsmoothError, match=message), find_anatomy(model, "*").watch(lambda *seen: None):
        model(torch.zeros(1, 3, 4, 4))


def test_other_layout_of_a_known_block() -> None:
    model = BY_NAME["bert-tiny"].model()
    for block in model.encoder.layer:
        block.output.dense = nn.Identity()
        del block.output.dense
    message = r"a site that bert blocks have \(residual\) but got 'mlp'"
    with pytest.raises(UnsmoothError, match=message), find_anatomy(model).watch(lambda *seen: None, ["mlp"]):
        pass
    assert hooks_left(model) == 0


def test_what_is_no_model() -> None:
    with pytest.raises(UnsmoothError, match=r"Expected an nn.Module but got str"):
        find_anatomy("bert")  # type: ignore[arg-type]
