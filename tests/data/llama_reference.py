#!/usr/bin/env python3
"""Writes llama_reference.json: what small Llamas of transformers compute in f64, in the form of modules_reference.py, with
their losses and the tokens that they generate; and llama_config.json, the configuration of one as Hugging Face writes it.

transformers computes norms and angles in f32 whatever the dtype. Here norms stay in f64, and angles are computed in f64,
rounded once, and compared with its own.

usage: llama_reference.py    (with transformers 5.24, torch 2.15)"""
import json
import math
from pathlib import Path

import torch
from modules_reference import case, dump
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.models.llama.modeling_llama import LlamaRMSNorm

FOLDER = Path(__file__).parent
SMALL = {"vocab_size": 11, "hidden_size": 8, "intermediate_size": 12, "num_hidden_layers": 2, "num_attention_heads": 4,
         "max_position_embeddings": 16, "rms_norm_eps": 1e-5, "bos_token_id": 1, "eos_token_id": None, "pad_token_id": None,
         "attn_implementation": "sdpa"}
CONFIGS = {
    "Llama grouped": {"num_key_value_heads": 2, "head_dim": 4, "tie_word_embeddings": False,
                      "rope_parameters": {"rope_type": "llama3", "rope_theta": 500.0, "factor": 4.0,
                                          "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                                          "original_max_position_embeddings": 32}},
    "Llama tied": {"num_key_value_heads": 4, "tie_word_embeddings": True, "attention_bias": True, "mlp_bias": True,
                   "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}},
    "Llama stretched": {"num_key_value_heads": 1, "head_dim": 6, "tie_word_embeddings": False,
                        "rope_parameters": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.0}},
}


def frequencies(config):
    rope, half = config.rope_parameters, config.head_dim // 2
    made = []
    for i in range(half):
        f = rope["rope_theta"] ** (-i / half)
        if rope["rope_type"] == "linear":
            f /= rope["factor"]
        if rope["rope_type"] == "llama3":
            low, high, context = rope["low_freq_factor"], rope["high_freq_factor"], rope["original_max_position_embeddings"]
            turns = context * f / (2 * math.pi)
            kept = min(max((turns - low) / (high - low), 0), 1)
            f = kept * f + (1 - kept) * f / rope["factor"]
        made.append(f)
    return torch.tensor(made, dtype=torch.float64)


def tables(config):
    angles = torch.outer(torch.arange(config.max_position_embeddings).double(), frequencies(config))
    return angles.cos().float().double(), angles.sin().float().double()


LlamaRMSNorm.forward = lambda self, x: torch.nn.functional.rms_norm(x, x.shape[-1:], self.weight, self.variance_epsilon)


def reference(options):
    config = LlamaConfig(**SMALL, **options)
    model = LlamaForCausalLM(config)
    rotary, (cosines, sines) = model.model.rotary_emb, tables(config)
    assert torch.allclose(rotary.inv_freq.double(), frequencies(config), rtol=1e-6)
    rotary.forward = lambda x, position_ids: tuple(
        torch.cat([t, t], -1)[position_ids].to(x.dtype) for t in (cosines, sines))
    tokens, targets = torch.randint(11, (2, 2, 5))
    targets[0, 1] = -100
    made = case(model, [tokens], lambda m, x: m(x).logits)
    tied = options["tie_word_embeddings"]
    made["state"] = [t for t in made["state"] if not (tied and t["name"] == "lm_head.weight")]
    made["after"] = {"model.cosines": dump(cosines), "model.sines": dump(sines)}
    with torch.no_grad():
        logits = model(tokens).logits
        made["targets"] = dump(targets)
        made["loss"] = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten()).item()
        made["generated"] = dump(model.generate(tokens, attention_mask=torch.ones_like(tokens), max_new_tokens=9, do_sample=False))
    return made, config


def nets():
    """Those that have no tensor under two names, of which a file of ours has one."""
    for name, options in CONFIGS.items():
        if not options["tie_word_embeddings"]:
            yield name, LlamaForCausalLM(LlamaConfig(**SMALL, **options, use_cache=False)), [torch.randint(11, (2, 5))]


def main():
    made = {}
    for name, options in CONFIGS.items():
        made[name], config = reference(options)
        if name == "Llama grouped":
            (FOLDER / "llama_config.json").write_text(config.to_json_string())
    lines = ",\n".join(f'"{name}": {json.dumps(c, separators=(",", ":"))}' for name, c in made.items())
    (FOLDER / "llama_reference.json").write_text('{"llama": {\n' + lines + "}}\n")


if __name__ == "__main__":
    main()
