"""RoBERTa (Liu et al. 2019, arXiv 1907.11692) and its multilingual and French kin: BERT's blocks."""

from unsmooth.models.hooks import whole_sequences
from unsmooth.models.host import Host, register
from unsmooth.models.hosts.bert import bert_taps, bert_wiring

register(
    Host(
        name="roberta",
        blocks=("RobertaLayer", "XLMRobertaLayer", "CamembertLayer"),
        taps=bert_taps,
        example="roberta-base, xlm-roberta-base, camembert-base",
        prepare=whole_sequences,
        wiring=bert_wiring,
        attention_module=lambda block: "attention.self",
    ),
)
