"""Our own networks: one readable block, three norm styles, an image classifier, a text encoder and a language model."""

from unsmooth.networks import mimetic as _mimetic  # noqa: F401 - registers itself
from unsmooth.networks.block import Attention, Block, Mlp
from unsmooth.networks.config import Config, DecoderConfig, EncoderConfig, Stack, ViTConfig, from_dict
from unsmooth.networks.decoder import Decoder
from unsmooth.networks.encoder import Classifier, Encoder
from unsmooth.networks.hugging_face import from_hugging_face, to_hugging_face
from unsmooth.networks.inits import INITS, initialise
from unsmooth.networks.pixels import Pixels
from unsmooth.networks.relative import Memory
from unsmooth.networks.saving import build, load_network, save_network
from unsmooth.networks.vit import ViT

__all__ = [
    "INITS",
    "Attention",
    "Block",
    "Classifier",
    "Config",
    "Decoder",
    "DecoderConfig",
    "Encoder",
    "EncoderConfig",
    "Memory",
    "Mlp",
    "Pixels",
    "Stack",
    "ViT",
    "ViTConfig",
    "build",
    "from_dict",
    "from_hugging_face",
    "initialise",
    "load_network",
    "save_network",
    "to_hugging_face",
]
