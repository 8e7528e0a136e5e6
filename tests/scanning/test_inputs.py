"""What a model cannot be called with is told in one line before it is, and masks of sound become those of tokens."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
import transformers
from torch import nn

import unsmooth
from tests.scanning.test_stacks import mean_cosine
from unsmooth import UnsmoothError
from unsmooth.models import find_anatomy
from unsmooth.models.load import model_of
from unsmooth.monitor.probe import shortened
from unsmooth.networks import Encoder, EncoderConfig, ViT, ViTConfig
from unsmooth.networks.saving import save_network
from unsmooth.scanning.inputs import Reading, Tables, tables_of

SMALL = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "vocab_size": 50,
    "pad_token_id": 1,
    "bos_token_id": 0,
    "eos_token_id": 2,
}
BART = {
    **{"d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "vocab_size": 50, "max_position_embeddings": 16},
    **{"encoder_attention_heads": 2, "decoder_attention_heads": 2, "encoder_ffn_dim": 16, "decoder_ffn_dim": 16},
}
IMAGES = {
    **{"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32},
    **{"image_size": 16, "patch_size": 8},
}


def tiny(name: str, **options):
    config = getattr(transformers, f"{name}Config")(**options)
    torch.manual_seed(0)
    return getattr(transformers, f"{name}Model")(config).eval()


def bert(**options):
    return tiny("Bert", **{**SMALL, "max_position_embeddings": 16, **options})


def clip():
    text = {**SMALL, "max_position_embeddings": 16, "eos_token_id": 2}
    return tiny("CLIP", text_config=text, vision_config=IMAGES, projection_dim=8)


# Rows of the tables: RoBERTa and MPNet keep two for padding, OPT and BART add two of their own to what is asked for.
TABLES = [
    (bert, Tables(50, 16)),
    (lambda: tiny("Roberta", **SMALL, max_position_embeddings=18), Tables(50, 16)),
    (lambda: tiny("MPNet", **SMALL, max_position_embeddings=18), Tables(50, 16)),
    (lambda: tiny("GPT2", n_embd=16, n_layer=1, n_head=2, vocab_size=50, n_positions=16), Tables(50, 16)),
    (lambda: tiny("OPT", **SMALL, ffn_dim=32, word_embed_proj_dim=16, max_position_embeddings=16), Tables(50, 16)),
    (lambda: tiny("Bart", **BART), Tables(50, 16)),
    (lambda: tiny("Llama", **SMALL, max_position_embeddings=16), Tables(50, None)),
    (lambda: tiny("T5", d_model=16, d_kv=8, d_ff=16, num_layers=1, num_heads=2, vocab_size=50), Tables(50, None)),
    (lambda: tiny("DebertaV2", **SMALL, max_position_embeddings=16, position_biased_input=False), Tables(50, None)),
    (lambda: clip().text_model, Tables(50, 16)),
    (lambda: clip().vision_model, Tables(None, None)),
    (lambda: tiny("FSMT", **FSMT), Tables(50, None)),
]
FSMT = {
    **{"src_vocab_size": 50, "tgt_vocab_size": 50, "langs": ["a", "b"], "d_model": 16, "max_position_embeddings": 16},
    **{"encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2, "decoder_attention_heads": 2},
    **{"encoder_ffn_dim": 16, "decoder_ffn_dim": 16},
}


@pytest.mark.parametrize(("made", "wanted"), TABLES)
def test_tables_end_where_the_model_does(made, wanted):
    model = made()
    assert tables_of(model) == wanted
    if wanted.words is None:
        return
    extra = {"decoder_input_ids": torch.full((1, 2), 5)} if model.config.is_encoder_decoder else {}
    longest = wanted.places or 40  # twice and a half of what the configurations say
    with torch.no_grad():
        model(input_ids=torch.full((1, longest), wanted.words - 1), **extra)
        for ids in (torch.full((1, 4), wanted.words), *([torch.full((1, longest + 1), 5)] if wanted.places else [])):
            with pytest.raises((IndexError, RuntimeError, ValueError)):
                model(input_ids=ids, **extra)


def test_ids_and_lengths_are_told_before_the_model_is_called():
    model = bert()
    find_anatomy(model)  # which runs it once, on tokens of its own
    model.register_forward_pre_hook(lambda *_: pytest.fail("the model was called"))
    ids = torch.randint(5, 50, (2, 9))
    for data, message in (
        (ids + 50, r"token ids from 0 to 49, the words that BertModel knows, but got input_ids with \d\d\."),
        (ids - 49, "the words that BertModel knows, but got input_ids with -"),
        (torch.full((2, 17), 5), "at most 16 tokens, the positions that BertModel has, but got input_ids of 17"),
        (torch.zeros(3, 0, dtype=torch.long), r"at least one token in each batch but got input_ids of shape \(3, 0\)"),
        (
            [torch.zeros(0, 4, dtype=torch.long)],
            r"at least one token in each batch but got input_ids of shape \(0, 4\)",
        ),
        (
            {"input_ids": ids, "attention_mask": torch.ones(2, 8)},
            r"for input_ids of shape \(2, 9\) but got .*\(2, 8\)",
        ),
        ({"input_ids": ids, "attention_mask": torch.ones(1, 9)}, r"attention_mask for input_ids .*\(1, 9\)"),
        ({"input_ids": ids, "token_type_ids": torch.ones(2, 8)}, "token_type_ids for input_ids"),
        ({"input_ids": ids, "token_mask": torch.ones(2, 8)}, "token_mask for input_ids"),
        ({"input_ids": ids, "token_type_ids": ids * 0 + 2}, "token_type_ids from 0 to 1, .* but got 2"),
        ({"input_ids": ids, "position_ids": ids * 0 + 16}, "position_ids from 0 to 15, .* but got 16"),
        (
            {"inputs_embeds": torch.randn(2, 9, 16), "attention_mask": torch.ones(2, 8)},
            "attention_mask for inputs_embeds",
        ),
        # What is added to scores has 0 where a token is real.
        ({"input_ids": ids, "attention_mask": torch.full((2, 9), -1e9)}, "attention_mask of ones and zeros but .*-1e+"),
        ({"input_ids": ids, "attention_mask": ids * 0 - 1}, "attention_mask of ones and zeros but got -1"),
        ({"input_ids": ids, "token_mask": torch.full((2, 9), math.nan)}, "token_mask of ones and zeros but got nan"),
        (torch.randn(2, 17, 16), "at most 16 tokens, .* but got inputs_embeds of 17"),
        ({"input_ids": ids, "attention_mask": "1"}, r"attention_mask for input_ids of shape \(2, 9\) but got str"),
        (torch.randn(2, 3, 8, 8), "'input_ids', as BertModel reads texts but got 'pixel_values'"),
        ({"input_values": torch.randn(2, 400)}, "'input_ids', as BertModel reads texts but got 'input_values'"),
    ):
        with pytest.raises(UnsmoothError, match=message) as told:
            unsmooth.scan(model, data, progress=False)
        assert "\n" not in str(told.value)


@pytest.mark.parametrize("mark", [True, 1, 1.0, 2])
def test_marks_of_any_kind_that_are_not_zero_are_real_tokens(mark):
    ids, real = torch.randint(5, 50, (2, 9)), torch.arange(9) < torch.tensor([[9], [4]])
    batch = {"input_ids": ids, "token_mask": real.to(torch.tensor(mark).dtype) * mark}
    assert unsmooth.scan(bert(), batch, progress=False).rows[0].tokens == 13


def test_what_reads_images_is_told_of_text():
    model = tiny("ViT", **IMAGES)
    for data in (torch.randint(5, 50, (2, 9)), ["a text of words"]):
        with pytest.raises(
            UnsmoothError,
            match=r"(as ViTModel reads images but got 'input_ids'|images, which this model reads but got texts)",
        ):
            unsmooth.scan(model, data, progress=False)


def test_what_a_model_says_of_a_batch_is_one_line_with_its_cause():
    with pytest.raises(UnsmoothError, match=r"that ViTModel can be called with but got its ValueError: .*9\*9") as told:
        unsmooth.scan(tiny("ViT", **IMAGES), torch.randn(2, 3, 9, 9), progress=False)
    assert isinstance(told.value.__cause__, ValueError)
    assert "\n" not in str(told.value)


def test_networks_that_are_handed_one_tensor_are_told_alike():
    network = ViT(ViTConfig(image=8, patch=4, depth=2, dim=16, heads=2, classes=3))
    convolved = nn.Sequential(nn.Conv2d(3, 8, 4), nn.Flatten(2), nn.Linear(25, 25), nn.Linear(25, 25))
    text = Encoder(EncoderConfig(vocabulary=50, length=16, depth=2, dim=16, heads=2))
    ids, pixels = torch.randint(5, 50, (2, 9)), torch.randn(2, 3, 8, 8)
    for model, options in ((network, {}), (convolved, {"blocks": "[23]"})):
        assert unsmooth.scan(model, pixels, **options, progress=False).rows
        with pytest.raises(
            UnsmoothError, match=r"'pixel_values', as (ViT|Sequential) reads images but got 'input_ids'"
        ):
            unsmooth.scan(model, ids, **options, progress=False)
    assert unsmooth.scan(text, ids, progress=False).rows
    for data, message in (
        (pixels, "'input_ids', as Encoder reads texts but got 'pixel_values'"),
        (ids + 50, "from 0 to 49"),
    ):
        with pytest.raises(UnsmoothError, match=message):
            unsmooth.scan(text, data, progress=False)


def test_placeholders_of_images_lie_beyond_the_words():
    class Text(nn.Module):
        """A part of a model of texts and images that has words and places of its own comes first."""

        def __init__(self) -> None:
            super().__init__()
            self.between = nn.ModuleDict({"words": nn.Embedding(20, 4), "position_embeddings": nn.Embedding(8, 4)})
            self.words = nn.Embedding(50, 4)

        def get_input_embeddings(self) -> nn.Module:
            return self.words

    assert tables_of(Text()) == Tables(50, None)
    reading = Reading("a model", None, frozenset(), Tables(50, None), {}, (50,), closed=False, pictures=False)
    reading.check(torch.tensor([[50, 50, 7]]))
    reading.check(torch.tensor([[50, 50]]))
    with pytest.raises(UnsmoothError, match="from 0 to 49"):
        reading.check(torch.tensor([[50, 51, 7]]))


def test_each_stack_has_a_table_of_its_own():
    batch = {"input_ids": torch.full((2, 16), 5), "pixel_values": torch.randn(2, 3, 16, 16)}
    assert len(unsmooth.scan(clip(), batch, progress=False).stacks) == 2
    with pytest.raises(UnsmoothError, match="at most 16 tokens"):
        unsmooth.scan(clip(), {**batch, "input_ids": torch.full((2, 17), 5)}, progress=False)


def test_texts_are_cut_where_the_positions_of_the_model_end(bert_folder, texts):
    tokenizer = unsmooth.load(bert_folder).unsmooth_origin.tokenizer
    roberta = tiny("Roberta", **SMALL, max_position_embeddings=12)
    found = unsmooth.scan(roberta, texts, tokenizer=tokenizer, progress=False)
    assert found.manifest["data"]["max_length"] == 10


def test_a_monitor_s_batch_is_read_and_checked_alike():
    model = bert()
    ids = np.random.default_rng(0).integers(5, 50, (2, 9)).astype("i2")
    settings = {"metrics": ["mean_cosine"], "sinks": (), "strict": True}
    with unsmooth.Monitor(model, probe=ids, **settings) as monitor:
        found = [row.mean for row in monitor.last.curve("mean_cosine")]
    scanned = unsmooth.scan(model, torch.from_numpy(ids).long(), metrics=["mean_cosine"], progress=False)
    assert found == pytest.approx([row.mean for row in scanned.rows], abs=1e-7)
    with pytest.raises(UnsmoothError, match="the words that BertModel knows"):
        unsmooth.Monitor(model, probe=ids + 50, **settings).begin()


# Weights and types


def test_models_without_weights_are_told_in_one_line():
    with torch.device("meta"):
        encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2)
    for model, data in ((bert().to("meta"), torch.full((2, 4), 5)), (encoder, torch.randn(2, 4, 8))):
        for read in (unsmooth.scan, unsmooth.explain, unsmooth.compare_presets):
            with pytest.raises(UnsmoothError, match="a model with weights but got one on the meta device"):
                read(model, data, progress=False)
    with pytest.raises(UnsmoothError, match="on the meta device"):
        unsmooth.explain(encoder, progress=False)


def test_pixels_are_brought_to_the_precision_of_the_network(tmp_path):
    network = ViT(ViTConfig(image=8, patch=4, depth=2, dim=16, heads=2, classes=3))
    save_network(network.half(), tmp_path)
    pixels = torch.randn(3, 3, 8, 8)
    half = unsmooth.load(tmp_path)
    assert next(half.parameters()).dtype == torch.float16
    found = unsmooth.scan(half, pixels, progress=False)
    assert found.rows == unsmooth.scan(half, pixels.half(), progress=False).rows
    whole = unsmooth.scan(unsmooth.load(tmp_path, dtype="float32"), pixels.double().numpy(), progress=False)
    np.testing.assert_allclose([row.mean for row in found.rows], [row.mean for row in whole.rows], rtol=5e-3)


# Pipelines


def test_a_pipeline_is_read_with_its_own_tokenizer(bert_folder, texts):
    loaded = unsmooth.load(bert_folder)
    nameless = transformers.BertModel(loaded.config).eval()
    nameless.load_state_dict(loaded.state_dict())
    nameless.config._name_or_path = ""
    pipeline = transformers.FeatureExtractionPipeline(model=nameless, tokenizer=loaded.unsmooth_origin.tokenizer)
    assert model_of(pipeline) is nameless
    assert unsmooth.scan(pipeline, texts, progress=False).rows == unsmooth.scan(loaded, texts, progress=False).rows
    assert unsmooth.explain(pipeline, texts[:2], jacobian=False, progress=False).layers
    with pytest.raises(UnsmoothError, match=r"got FeatureExtractionPipeline\. Try the \.model inside it"):
        unsmooth.apply(pipeline, "deescalate")


# Fields that differ in their first dimension


def qwen2_vl():
    text = {
        **{**SMALL, "num_key_value_heads": 1},
        "rope_parameters": {"rope_type": "default", "mrope_section": [1, 1, 2], "rope_theta": 1e4},
    }
    vision = {
        **{"depth": 1, "embed_dim": 16, "hidden_size": 16, "num_heads": 2, "patch_size": 4},
        **{"spatial_merge_size": 2, "temporal_patch_size": 2, "in_channels": 3},
    }
    ids = {"image_token_id": 45, "video_token_id": 46, "vision_start_token_id": 43, "vision_end_token_id": 44}
    return tiny("Qwen2VL", text_config=text, vision_config=vision, **ids)


def test_a_batch_whose_pixels_are_patches_of_all_images_stays_whole():
    model = qwen2_vl()
    first = [43] + [45] * 4 + [44, 43] + [45] * 6 + [44, 5, 6, 7]  # two images, of 4 × 4 and 4 × 6 patches, merged by 4
    second = [43] + [45] * 4 + [44] + [8] * 5
    padding = len(first) - len(second)
    grid = torch.tensor([[1, 4, 4], [1, 4, 6], [1, 4, 4]])
    batch = {
        "input_ids": torch.tensor([first, second + [1] * padding]),
        "attention_mask": torch.tensor([[1] * len(first), [1] * len(second) + [0] * padding]),
        "pixel_values": torch.randn(int(grid.prod(1).sum()), 3 * 2 * 4 * 4),
        "image_grid_thw": grid,
    }
    batch["mm_token_type_ids"] = (batch["input_ids"] == 45).int()
    assert shortened(batch, 1) is batch
    seen = []
    blocks = model.language_model.layers
    handles = [blocks[0].register_forward_pre_hook(lambda _, args: seen.append(args[0]))]
    handles += [block.register_forward_hook(lambda _, args, out: seen.append(out)) for block in blocks]
    with torch.no_grad():
        model(**batch)
    for handle in handles:
        handle.remove()
    found = unsmooth.scan(
        model,
        batch,
        blocks="language_model.layers.*",
        metrics=["mean_cosine"],
        tokens="all",
        batch_size=1,
        progress=False,
    )
    streams = [(one if isinstance(one, torch.Tensor) else one[0]).double().numpy() for one in seen]
    real = batch["attention_mask"].bool().numpy()
    assert [row.mean for row in found.rows] == pytest.approx([mean_cosine(x_BND, real) for x_BND in streams], abs=2e-5)
    assert (found.rows[0].sequences, found.rows[0].tokens) == (2, len(first) + len(second))
    data = found.manifest["data"]
    assert (data["batches"], data["sequences"], data["whole"]) == (1, 2, True)


# Sound

SOUND = {
    **{"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32},
    **{"conv_dim": [8, 8, 8], "conv_kernel": [10, 3, 3], "conv_stride": [5, 2, 2], "num_feat_extract_layers": 3},
    **{"num_conv_pos_embeddings": 4, "num_conv_pos_embedding_groups": 2, "feat_extract_norm": "layer"},
}


@pytest.mark.parametrize("name", ["Wav2Vec2", "Hubert", "WavLM", "Data2VecAudio"])
def test_a_frame_counts_where_no_sample_of_it_is_padding(name):
    model = tiny(name, **SOUND)
    sound, lengths = torch.randn(3, 400), torch.tensor([400, 233, 90])
    mask = torch.arange(400) < lengths[:, None]
    # Where NaN comes out of the convolutions, padding went in.
    with torch.no_grad():
        frames = model.feature_extractor(sound.masked_fill(~mask, torch.nan)).transpose(1, 2)
    real = ~frames.isnan().any(dim=-1)
    assert 0 < int(real.sum()) < real.numel()
    batch = {"input_values": sound * mask, "attention_mask": mask.long()}
    seen = []
    handles = [model.encoder.layers[0].register_forward_pre_hook(lambda _, args: seen.append(args[0]))]
    handles += [
        block.register_forward_hook(lambda _, args, out: seen.append(out if isinstance(out, torch.Tensor) else out[0]))
        for block in model.encoder.layers
    ]
    with torch.no_grad():
        model(**batch)
    for handle in handles:
        handle.remove()
    options = {"blocks": "encoder.layers.*", "metrics": ["mean_cosine"], "progress": False}
    found = unsmooth.scan(model, batch, **options)
    wanted = [mean_cosine(x_BND.double().numpy(), real.numpy()) for x_BND in seen]
    assert [row.mean for row in found.rows] == pytest.approx(wanted, abs=2e-5)
    assert found.rows[0].tokens == int(real.sum())
    assert unsmooth.scan(model, sound, **options).rows[0].tokens == real.numel()
