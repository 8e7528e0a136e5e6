"""DeiT (Touvron et al. 2021, arXiv 2012.12877): ViT's blocks, a distillation token after the class token."""

from unsmooth.models.host import IMAGE, Host, register
from unsmooth.models.hosts.vit import vit_taps, vit_wiring

register(
    Host(
        name="deit",
        blocks=("DeiTLayer",),
        taps=vit_taps,
        example="facebook/deit-base-distilled-patch16-224",
        prefix_tokens=lambda model: 2,
        wiring=vit_wiring,
        reads=lambda block: IMAGE,
        attention_module=lambda block: "attention",
    ),
)
