"""Tiny checkpoints on disk, sound and broken."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import load_file, save_file

WORDS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "tokens", "grow", "alike", "with", "depth")


def bert_config(**options: Any) -> Any:
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 20}
    return transformers.BertConfig(**(sizes | {"vocab_size": len(WORDS)} | options))


def save_bert(folder: Path, model_class: str = "BertModel", **options: Any) -> Any:
    """Write a BERT with a tokenizer of ten words, and return the model."""
    torch.manual_seed(5)
    model = getattr(transformers, model_class)(bert_config(**options)).eval()
    model.save_pretrained(folder)
    (folder / "vocab.txt").write_text("\n".join(WORDS))
    transformers.BertTokenizer.from_pretrained(folder).save_pretrained(folder)
    return model


def save_vit(folder: Path) -> Any:
    """Write a ViT with its image processor, and return the model."""
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 20}
    model = transformers.ViTModel(transformers.ViTConfig(image_size=8, patch_size=4, **sizes)).eval()
    model.save_pretrained(folder)
    processor = {"image_processor_type": "ViTImageProcessor", "size": {"height": 8, "width": 8}}
    (folder / "preprocessor_config.json").write_text(json.dumps(processor))
    return model


def edit_config(folder: Path, **changes: Any) -> None:
    """Change entries of config.json; None removes one."""
    path = folder / "config.json"
    config = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({key: value for key, value in config.items() if value is not None}))


def edit_weights(folder: Path, change: Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]]) -> None:
    """Rewrite model.safetensors."""
    path = folder / "model.safetensors"
    save_file(change(load_file(path)), path, metadata={"format": "pt"})


def to_pickle(folder: Path, content: Any = None) -> None:
    """Replace the safetensors file by a pickle, of the same weights or of `content`."""
    path = folder / "model.safetensors"
    torch.save(load_file(path) if content is None else content, folder / "pytorch_model.bin")
    path.unlink()


def save_gguf(path: Path, layers: int = 2, vocabulary: int = 20, width: int = 16) -> dict[str, Any]:
    """Write a Llama of plain float32 tensors, and return them by their GGUF names."""
    import gguf
    import numpy as np

    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_block_count(layers)
    writer.add_context_length(64)
    writer.add_embedding_length(width)
    writer.add_feed_forward_length(24)
    writer.add_head_count(2)
    writer.add_head_count_kv(1)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(width // 2)
    writer.add_vocab_size(vocabulary)
    writer.add_tokenizer_model("gpt2")
    letters = [chr(ord("a") + i) for i in range(vocabulary - 5)]
    writer.add_token_list(["<unk>", "<s>", "</s>", *letters, "Ġ", "ab"])
    writer.add_token_types([3, 3, 3, *[1] * (vocabulary - 3)])
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    block = {
        "attn_norm": (width,),
        "attn_q": (width, width),
        "attn_k": (width // 2, width),
        "attn_v": (width // 2, width),
        "attn_output": (width, width),
        "ffn_norm": (width,),
        "ffn_gate": (24, width),
        "ffn_up": (24, width),
        "ffn_down": (width, 24),
    }
    shapes = {"token_embd.weight": (vocabulary, width), "output_norm.weight": (width,)}
    shapes |= {f"blk.{i}.{name}.weight": shape for i in range(layers) for name, shape in block.items()}
    random = np.random.default_rng(0)
    tensors = {name: random.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    for name, tensor in tensors.items():
        writer.add_tensor(name, tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return tensors
