"""Make a tiny Llama with random weights and a tokenizer trained on the spot: `tiny_model.py FOLDER`.

It runs in the environment of the vLLM image, which has torch, transformers and tokenizers. It answers nonsense,
fast; the same seed gives the same weights, so the same question gives the same answer.
"""

from __future__ import annotations

import sys
from pathlib import Path

# Enough English for a byte-level BPE to merge something; the text is the project's own.
_TEXT = (
    "A node comes up with one command, answers a question, and goes away clean.",
    "The model is loaded from a local path; nothing is fetched while it starts.",
    "Every number says how it was obtained, and a missing metric is not zero.",
    "Latency first, then throughput: a queue that grows is an answer as well.",
    "What was not asked for is not changed, and what was changed can be undone.",
)
_CHAT = (
    "{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
_BEGIN, _END = "<|begin|>", "<|end|>"
_SPECIAL = (_BEGIN, _END, "<|user|>", "<|assistant|>", "<|system|>")


def make(folder: Path) -> None:
    """Write config, tokenizer and two safetensors shards with their index into `folder`."""
    import torch
    from tokenizers import ByteLevelBPETokenizer
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    bpe = ByteLevelBPETokenizer()
    bpe.train_from_iterator(_TEXT * 40, vocab_size=2000, min_frequency=2, special_tokens=list(_SPECIAL))
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=bpe._tokenizer, bos_token=_BEGIN, eos_token=_END, pad_token=_END
    )
    tokenizer.chat_template = _CHAT
    tokenizer.save_pretrained(folder)

    torch.manual_seed(7)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=2048,
            hidden_size=256,
            intermediate_size=704,
            num_hidden_layers=3,
            num_attention_heads=8,
            num_key_value_heads=4,
            max_position_embeddings=4096,
            bos_token_id=tokenizer.bos_token_id,
            eos_token_id=tokenizer.eos_token_id,
        )
    ).to(torch.bfloat16)
    # Two shards, so that "a shard is missing" is a thing that can happen to it.
    model.save_pretrained(folder, max_shard_size="4MB")


if __name__ == "__main__":
    make(Path(sys.argv[1]))
