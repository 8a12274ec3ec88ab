"""Make a tiny Llama with random weights and a tokenizer trained on the spot: `tiny_model.py FOLDER`.

It runs in the environment of the vLLM image, which has torch, transformers and tokenizers. It answers nonsense,
fast; the same seed gives the same weights, so the same question gives the same answer. Each token that it says has a
text: an answer without any would be no answer to a load generator.
"""

from __future__ import annotations

import sys
from pathlib import Path

_CHAT = (
    "{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
_BEGIN, _END = "<|begin|>", "<|end|>"
_SPECIAL = (_BEGIN, _END, "<|user|>", "<|assistant|>", "<|system|>")
_TOKENS = 2048
# The tokenizer's first entries: the special ones, and each byte alone, which may be half a character.
_UNSPOKEN = len(_SPECIAL) + 256


def make(folder: Path) -> None:
    """Write config, tokenizer and two safetensors shards with their index into `folder`.

    Raises:
        ValueError: there is too little text for a tokenizer with as many entries as the model has tokens.
    """
    # Python's own help: enough English for as many merges as are wanted, and at hand wherever this runs.
    from pydoc_data.topics import topics

    import torch
    from tokenizers import ByteLevelBPETokenizer
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    texts = [text.encode("ascii", "ignore").decode() for text in topics.values()]
    bpe = ByteLevelBPETokenizer()
    bpe.train_from_iterator(texts, vocab_size=_TOKENS, min_frequency=2, special_tokens=list(_SPECIAL))
    if bpe.get_vocab_size() != _TOKENS:
        raise ValueError(f"the tokenizer has {bpe.get_vocab_size()} entries; the model's {_TOKENS} tokens need as many")
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=bpe._tokenizer, bos_token=_BEGIN, eos_token=_END, pad_token=_END
    )
    tokenizer.chat_template = _CHAT
    tokenizer.save_pretrained(folder)

    torch.manual_seed(7)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=_TOKENS,
            hidden_size=256,
            intermediate_size=704,
            num_hidden_layers=3,
            num_attention_heads=8,
            num_key_value_heads=4,
            max_position_embeddings=4096,
            bos_token_id=tokenizer.bos_token_id,
            eos_token_id=tokenizer.eos_token_id,
        )
    )
    with torch.no_grad():
        # Of two thousand random scores the highest is far above zero: what has zero is never said.
        model.lm_head.weight[:_UNSPOKEN] = 0
    # Two shards, so that "a shard is missing" is a thing that can happen to it.
    model.to(torch.bfloat16).save_pretrained(folder, max_shard_size="4MB")


if __name__ == "__main__":
    make(Path(sys.argv[1]))
