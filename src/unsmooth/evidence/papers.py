"""The abstracts of the two papers by version: what a quotation has to be found in to be called verbatim.

The papers' bodies were not at hand; what is known of them comes from public reviews and summaries, and a sentence made
from those is called reconstructed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True)
class Version:
    """One version of a paper.

    Attributes:
        paper: "P1" or "P2", as the ledger calls them.
        version: On arXiv, such as "v2".
        abstract: Its text, on one line.
        at: Addresses at which it was read.
    """

    paper: str
    version: str
    abstract: str
    at: tuple[str, ...]


PAPERS: Mapping[str, str] = MappingProxyType(
    {
        "P1": "Dovonon, Bronstein & Kusner, Setting the Record Straight on Transformer Oversmoothing, arXiv 2401.04301",
        "P2": 'Yu & Zhang, Why "classic" Transformers are shallow and how to make them go deep, arXiv 2312.06182',
    }
)

VERSIONS: tuple[Version, ...] = (
    Version(
        "P1",
        "v1",
        "Transformer-based models have recently become wildly successful across a diverse set of domains. At the same "
        "time, recent work has shown that Transformers are inherently low-pass filters that gradually oversmooth the "
        "inputs, reducing the expressivity of their representations. A natural question is: How can Transformers "
        "achieve these successes given this shortcoming? In this work we show that in fact Transformers are not "
        "inherently low-pass filters. Instead, whether Transformers oversmooth or not depends on the eigenspectrum of "
        "their update equations. Our analysis extends prior work in oversmoothing and in the closely-related "
        "phenomenon of rank collapse. We show that many successful Transformer models have attention and weights which "
        "satisfy conditions that avoid oversmoothing. Based on this analysis, we derive a simple way to parameterize "
        "the weights of the Transformer update equations that allows for control over its spectrum, ensuring that "
        "oversmoothing does not occur. Compared to a recent solution for oversmoothing, our approach improves "
        "generalization, even when training with more layers, fewer datapoints, and data that is corrupted.",
        (
            "http://aminer.cn/pub/659e208a939a5f408288e8a7/setting-the-record-straight-on-transformer-oversmoothing",
            "https://zhuanzhi.ai/paper/f58df0f5709ba2727015073127af5716",
        ),
    ),
    Version(
        "P1",
        "v2",
        "Transformer-based models have recently become wildly successful across a diverse set of domains. At the same "
        "time, recent work has argued that Transformers are inherently low-pass filters that gradually oversmooth the "
        "inputs. This is worrisome as it limits generalization, especially as model depth increases. A natural "
        "question is: How can Transformers achieve these successes given this shortcoming? In this work we show that "
        "in fact Transformers are not inherently low-pass filters. Instead, whether Transformers oversmooth or not "
        "depends on the eigenspectrum of their update equations. Further, depending on the task, smoothing does not "
        "harm generalization as model depth increases. Our analysis extends prior work in oversmoothing and in the "
        "closely-related phenomenon of rank collapse. Based on this analysis, we derive a simple way to parameterize "
        "the weights of the Transformer update equations that allows for control over its filtering behavior. For "
        "image classification tasks we show that smoothing, instead of sharpening, can improve generalization. Whereas "
        "for text generation tasks Transformers that are forced to either smooth or sharpen have worse generalization. "
        "We hope that this work gives ML researchers and practitioners additional insight and leverage when developing "
        "future Transformer models.",
        (
            "https://arxivlens.com/PaperView/Details/"
            "setting-the-record-straight-on-transformer-oversmoothing-9222-1375338",
            "https://paperswithcode.com/paper/setting-the-record-straight-on-transformer",
        ),
    ),
    Version(
        "P1",
        "v3",
        "Transformer-based models have recently become wildly successful across a diverse set of domains. At the same "
        "time, recent work has shown empirically and theoretically that Transformers are inherently limited. "
        "Specifically, they argue that as model depth increases, Transformers oversmooth, i.e., inputs become more and "
        "more similar. A natural question is: How can Transformers achieve these successes given this shortcoming? In "
        "this work we test these observations empirically and theoretically and uncover a number of surprising "
        "findings. We find that there are cases where feature similarity increases but, contrary to prior results, "
        "this is not inevitable, even for existing pre-trained models. Theoretically, we show that smoothing behavior "
        "depends on the eigenspectrum of the value and projection weights. We verify this empirically and observe that "
        "the sign of layer normalization weights can influence this effect. Our analysis reveals a simple way to "
        "parameterize the weights of the Transformer update equations to influence smoothing behavior. We hope that "
        "our findings give ML researchers and practitioners additional insight into how to develop future "
        "Transformer-based models.",
        (
            "https://www.scholarfeed.org/paper/2401.04301v3",
            "https://pith.science/ref/arxiv/2401.04301",
            "https://openreview.net/forum?id=HHI6qWLFF1",
        ),
    ),
    Version(
        "P2",
        "v2",
        "Since its introduction in 2017, Transformer has emerged as the leading neural network architecture, "
        "catalyzing revolutionary advancements in many AI disciplines. The key innovation in Transformer is a "
        "Self-Attention (SA) mechanism designed to capture contextual information. However, extending the original "
        "Transformer design to models of greater depth has proven exceedingly challenging, if not impossible. Even "
        "though various modifications have been proposed in order to stack more layers of SA mechanism into deeper "
        "models, a full understanding of this depth problem remains lacking. In this paper, we conduct a comprehensive "
        "investigation, both theoretically and empirically, to substantiate the claim that the depth problem is caused "
        "by token similarity escalation; that is, tokens grow increasingly alike after repeated applications of the SA "
        "mechanism. Our analysis reveals that, driven by the invariant leading eigenspace and large spectral gaps of "
        "attention matrices, token similarity provably escalates at a linear rate. Based on the gained insight, we "
        "propose a new strategy of surgically removing excessive similarity in contrast to the existing approach of "
        "diminishing the SA mechanism explicitly or implicitly (such as in pre-norm transformers). Preliminary "
        "experimental results confirm the effectiveness of the proposed strategy in small-scale post-norm Transformer "
        "models.",
        ("https://arxiv.org/html/2312.06182v2", "https://www.scholarfeed.org/paper/2312.06182v2"),
    ),
)


def abstract(paper: str, version: str) -> str | None:
    """The abstract of a version; None where it is not at hand.

    >>> "linear rate" in abstract("P2", "v2"), abstract("P2", "v1")
    (True, None)
    """
    return next((one.abstract for one in VERSIONS if (one.paper, one.version) == (paper, version)), None)
