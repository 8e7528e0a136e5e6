from __future__ import annotations

import copy
import pickle

import pytest
import torch
from transformers import DynamicCache, EncoderDecoderCache, StaticCache

from tests.remedies.hosts import BY_NAME
from unsmooth import remedies
from unsmooth.errors import UnsmoothError
from unsmooth.remedies.memory import Memory

HOST = BY_NAME["llama"]


def filled(layers: int = 1) -> tuple[DynamicCache, Memory]:
    cache = DynamicCache()
    for layer in range(layers):
        Memory(cache, layer).write("sum", torch.arange(3.0)[:, None, None])
        keys = torch.zeros(3, 1, 2, 4)
        cache.update(keys, keys, layer)
    return cache, Memory(cache, 0)


def test_nothing_is_remembered_at_first() -> None:
    memory = Memory(DynamicCache(), 0)
    assert memory.past == 0
    assert memory.read("sum") is None


@pytest.mark.parametrize(
    ("change", "wanted"),
    [
        (lambda cache: cache.reorder_cache(torch.tensor([2, 0, 0])), [2.0, 0.0, 0.0]),
        (lambda cache: cache.batch_repeat_interleave(2), [0.0, 0.0, 1.0, 1.0, 2.0, 2.0]),
        (lambda cache: cache.batch_select_indices(torch.tensor([1])), [1.0]),
    ],
)
def test_goes_with_keys_and_values(change, wanted: list[float]) -> None:
    cache, memory = filled()
    change(cache)
    assert memory.read("sum").flatten().tolist() == wanted
    assert cache.layers[0].keys.shape[0] == len(wanted)


def test_is_forgotten_with_them() -> None:
    cache, _ = filled()
    cache.reset()
    assert cache.layers[0].remembered == {}


def test_copies_are_apart() -> None:
    cache, memory = filled()
    twin = copy.deepcopy(cache)
    twin.reorder_cache(torch.tensor([1, 1, 1]))
    assert memory.read("sum").flatten().tolist() == [0.0, 1.0, 2.0]
    assert Memory(twin, 0).read("sum").flatten().tolist() == [1.0, 1.0, 1.0]


def test_a_prompt_s_cache_can_be_saved() -> None:
    model, inputs = remedies.apply(HOST.model(), "centred"), HOST.inputs()
    cache = DynamicCache(config=model.config)
    with torch.no_grad():
        model(input_ids=inputs[:, :4], past_key_values=cache, use_cache=True)
        again = pickle.loads(pickle.dumps(cache))
        found, wanted = (
            model(input_ids=inputs[:, 4:], past_key_values=one, use_cache=True).logits for one in (again, cache)
        )
    assert torch.equal(found, wanted)


def test_layer_by_layer_and_in_a_cache_of_two() -> None:
    cache, _ = filled(layers=2)
    both = EncoderDecoderCache(cache, DynamicCache())
    assert Memory(both, 1).past == 2
    assert Memory(both, 1).read("sum") is not None


def test_a_cache_from_before_the_remedy_is_refused() -> None:
    model, ids = HOST.model(), HOST.inputs()
    cache = DynamicCache(config=model.config)
    with torch.no_grad():
        model(input_ids=ids[:, :4], past_key_values=cache)
        remedies.apply(model, "deescalate")
        with pytest.raises(UnsmoothError, match="filled with its remedies applied"):
            model(input_ids=ids[:, 4:], past_key_values=cache)


def test_a_cache_that_is_cropped_or_of_fixed_size_is_refused() -> None:
    model, ids = remedies.apply(HOST.model(), "deescalate"), HOST.inputs()
    cache = DynamicCache(config=model.config)
    with torch.no_grad():
        model(input_ids=ids, past_key_values=cache)
        with pytest.raises(UnsmoothError, match="cropped"):
            cache.crop(4)
        with pytest.raises(UnsmoothError, match="fixed size"):
            model(input_ids=ids, past_key_values=StaticCache(config=model.config, max_cache_len=16))


def test_a_remedy_that_remembers_nothing_takes_any_cache() -> None:
    model, ids = remedies.apply(HOST.model(), "residual_scaling"), HOST.inputs()
    with torch.no_grad():
        full = model(input_ids=ids).logits
        static = model(input_ids=ids, past_key_values=StaticCache(config=model.config, max_cache_len=16)).logits
    torch.testing.assert_close(static, full, atol=1e-5, rtol=1e-5)


def test_other_models_find_the_caches_of_transformers_as_they_were() -> None:
    filled()
    assert type(DynamicCache(config=HOST.model().config).layers[0]).__module__ == "transformers.cache_utils"


def test_sliding_windows_decode_as_they_prefill() -> None:
    import transformers

    config = copy.deepcopy(HOST.model().config).to_dict()
    config = transformers.MistralConfig(**{**config, "sliding_window": 3, "architectures": None})
    torch.manual_seed(0)
    model = remedies.apply(transformers.MistralForCausalLM(config).eval(), "deescalate")
    ids, cache, made = HOST.inputs(), DynamicCache(config=config), []
    with torch.no_grad():
        full = model(input_ids=ids, use_cache=False).logits
        for token in range(ids.shape[1]):
            made.append(model(input_ids=ids[:, token : token + 1], past_key_values=cache).logits)  # noqa: PERF401
    torch.testing.assert_close(torch.cat(made, 1), full, atol=1e-5, rtol=1e-4)
