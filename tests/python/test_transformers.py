"""A tiny random Llama under tamis.transformers against the eager attention of transformers."""
import copy
import re
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import tamis
import tamis.transformers as hf

from hf_models import logits, padded, same, tiny, tokens, use


@pytest.fixture(scope="module")
def model():
    return tiny()


# --- everything selected equals eager

@pytest.mark.parametrize("length", [1, 16, 23])
def test_prefill(model, length):
    ids = tokens(2, length)
    same(logits(model, use(), ids), logits(model, "eager", ids))


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("lengths", [(9, 9), (23, 5, 1), (4, 0, 23), (3, 23, 17)])
def test_padding(model, side, lengths):
    ids, mask = padded(len(lengths), 23, lengths, side)
    ours, eager = logits(model, use(), ids, mask), logits(model, "eager", ids, mask)
    same(ours[mask == 1], eager[mask == 1])


@pytest.mark.parametrize("cache", [None, "static"])
@pytest.mark.parametrize("lengths", [(12, 12), (12, 5), (1, 12, 7)])
def test_generation(model, cache, lengths):
    ids, mask = padded(len(lengths), 12, lengths, "left")
    results = []
    for implementation in (use(), "eager"):
        model.set_attn_implementation(implementation)
        results.append(model.generate(ids, attention_mask=mask, max_new_tokens=9, do_sample=False, output_logits=True,
                                      return_dict_in_generate=True, cache_implementation=cache))
    ours, eager = results
    assert ours.sequences.tolist() == eager.sequences.tolist()
    same(torch.stack(ours.logits), torch.stack(eager.logits))


def test_chunks_over_a_cache(model):
    """More than one query behind tokens that are cached already."""
    ids, mask = padded(2, 20, (20, 11), "left")
    whole = logits(model, "eager", ids, mask)
    model.set_attn_implementation(use())
    with torch.no_grad():
        first = model(ids[:, :13], attention_mask=mask[:, :13], use_cache=True)
        second = model(ids[:, 13:], attention_mask=mask, past_key_values=first.past_key_values)
    same(second.logits, whole[:, 13:])


def test_a_compiled_model_steps_out_for_attention(model):
    ids, mask = padded(2, 15, (15, 8), "left")
    expected = logits(model, "eager", ids, mask)
    model.set_attn_implementation(use())
    with torch.no_grad():
        ours = torch.compile(model, backend="eager")(ids, attention_mask=mask).logits
    torch._dynamo.reset()
    same(ours[mask == 1], expected[mask == 1])


@pytest.mark.parametrize("kind, changes", [
    ("Mistral", dict(sliding_window=6)),
    ("Gemma2", dict(sliding_window=6, attn_logit_softcapping=2.0, query_pre_attn_scalar=40)),
])
def test_what_other_models_ask_for(kind, changes):
    """Sliding windows and their caches, softcap, a scale that is not 1 / sqrt(D)."""
    model = tiny(kind, **changes)
    ids, mask = padded(2, 15, (15, 8), "left")
    ours, eager = logits(model, use(), ids, mask), logits(model, "eager", ids, mask)
    same(ours[mask == 1], eager[mask == 1])
    steps = []
    for implementation in (use(pages=0), "eager") if kind == "Mistral" else (use(), "eager"):
        model.set_attn_implementation(implementation)
        steps.append(model.generate(ids, attention_mask=mask, max_new_tokens=5, do_sample=False, output_logits=True,
                                    return_dict_in_generate=True).logits)
    same(torch.stack(steps[0]), torch.stack(steps[1]))


def test_an_encoder_is_not_causal():
    torch.manual_seed(7)
    config = transformers.BertConfig(vocab_size=97, hidden_size=64, num_hidden_layers=2, num_attention_heads=4,
                                     intermediate_size=96, max_position_embeddings=64, initializer_range=0.4)
    model = transformers.BertModel(config).eval()
    for side in ("left", "right"):
        ids, mask = padded(3, 14, (14, 6, 2), side)
        results = []
        for implementation in (use(pages=0, window=2), "eager"):
            model.set_attn_implementation(implementation)
            with torch.no_grad():
                results.append(model(ids, attention_mask=mask).last_hidden_state[mask == 1])
        same(*results)


def test_bfloat16(model):
    """No farther from float32 than twice what eager is."""
    ids, mask = padded(2, 23, (23, 9), "left")
    exact, half = logits(model, "eager", ids, mask), copy.deepcopy(model).bfloat16()
    ours, eager = (logits(half, name, ids, mask) for name in (use(), "eager"))
    assert ours.dtype == torch.bfloat16
    kept = mask == 1
    ours, eager = ((x.float() - exact)[kept].square().mean().sqrt() for x in (ours, eager))
    assert ours <= 2 * eager


# --- copies

def test_k_and_v_are_read_where_they_lie():
    """Unless they lie in no grid of rows that a table could name, or have gradients to be written to such a grid."""
    generator = torch.Generator().manual_seed(5)
    long, other = (torch.randn(3, 2, 30, dim, generator=generator) for dim in (16, 8))
    query, key, value = torch.randn(3, 4, 2, 16, generator=generator), long[:, :, :20], other[:, :, :20]
    rows = hf._padding.Rows((0, 4, 11), (20, 9, 3), (18, 7, 1), True, 0)
    odd = torch.randn(3, 1301, generator=generator)[:, :640].reshape(3, 2, 20, 16)
    assert odd.stride(0) % odd.stride(2) != 0
    for k, v, differentiable, copied in ((key, value, False, False), (key, value, True, True),
                                         (key, value.clone(), False, True), (odd, odd, False, True),
                                         (key[:1].expand(3, -1, -1, -1), value[:1].expand(3, -1, -1, -1), False, True),
                                         (key.transpose(1, 2).clone().transpose(1, 2), key.transpose(1, 2).clone().
                                          transpose(1, 2), False, False)):
        q, k_given, v_given, given = hf._padding.arguments(query, k, v, rows, differentiable)
        assert (k_given.data_ptr() != k.data_ptr(), v_given.data_ptr() != v.data_ptr()) == (copied, copied)
        out = tamis.attention(q, k_given, v_given, tamis.ALL, **given)
        for b, (first, count, start) in enumerate(zip(rows.first, rows.tokens, rows.q_start)):
            part = slice(first, first + count)
            alone = tamis.attention(query[b:b + 1].transpose(1, 2), k[b:b + 1, :, part], v[b:b + 1, :, part], tamis.ALL,
                                    q_pos=torch.tensor([start, start + 1], dtype=torch.int32), kv_layout="HND")
            same(out[b:b + 1], alone)


def test_rows_of_other_requests_are_not_seen():
    """Overlapping pages reach into neighbours; NaN there and in the padding changes nothing."""
    generator = torch.Generator().manual_seed(5)
    query, key, value = (torch.randn(3, heads, n, 16, generator=generator) for heads, n in ((4, 2), (2, 21), (2, 21)))
    mask = torch.zeros(3, 21, dtype=torch.bool)
    mask[0, 2:], mask[1, 19:], mask[2, 14:] = True, True, True
    module = torch.nn.Module()
    run = transformers.AttentionInterface()[use()]
    results = []
    for hostile in (False, True):
        k, v = (torch.where(mask[:, None, :, None] | ~torch.tensor(hostile), x, float("nan")) for x in (key, value))
        packed = hf._mask(batch_size=3, q_length=2, kv_length=21, q_offset=19, attention_mask=mask)
        results.append(run(module, query, k, v, packed)[0])
    assert torch.equal(*results) and results[0].isfinite().all()


@pytest.mark.skipif(not hasattr(transformers.masking_utils, "bidirectional_mask_function"),
                    reason="transformers 4 has no bidirectional mask function")
def test_keys_of_an_encoder():
    """Queries of a decoder are not padding because keys of the encoder are; and what transformers 4 tells a mask."""
    run = transformers.AttentionInterface()[use(pages=0)]
    mask = torch.tensor([[0, 0, 0, 1, 1], [1, 1, 1, 1, 1]])
    q, k, v = (torch.randn(2, 2, n, 8, generator=torch.Generator().manual_seed(n)) for n in (3, 5, 5))
    packed = hf._mask(batch_size=2, q_length=3, kv_length=5, attention_mask=mask,
                      mask_function=transformers.masking_utils.bidirectional_mask_function)
    expected = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask[:, None, None].bool())
    same(run(torch.nn.Module(), q, k, v, packed)[0].transpose(1, 2), expected)
    four = hf._mask(batch_size=2, cache_position=torch.tensor([3, 4]), kv_length=5, attention_mask=mask)
    assert hf._padding.unpack(four) == hf._padding.unpack(
        hf._mask(batch_size=2, q_length=2, q_offset=3, kv_length=5, attention_mask=mask))
    assert hf._padding.unpack(four).q_start == (0, 3)
    assert hf._padding.unpack(four.clone()) == hf._padding.unpack(four)


def test_without_a_mask():
    """Causality of the call, else of the module; a sliding window that the call alone names."""
    run = transformers.AttentionInterface()[use(pages=0)]
    q, k, v = (torch.randn(2, 2, n, 8, generator=torch.Generator().manual_seed(n)) for n in (3, 5, 5))
    i, t = torch.arange(2, 5)[:, None], torch.arange(5)
    encoder = torch.nn.Module()
    encoder.is_causal = False
    for module, asked, mask in ((torch.nn.Module(), dict(sliding_window=2), (t <= i) & (t > i - 2)),
                                (torch.nn.Module(), dict(is_causal=False), i + t >= 0), (encoder, {}, i + t >= 0)):
        expected = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        same(run(module, q, k, v, None, **asked)[0].transpose(1, 2), expected)
    with pytest.raises(tamis.Error, match="sliding_window: is computed for causal"):
        run(encoder, q, k, v, None, sliding_window=2)


# --- refusals

def test_masks_that_are_not_computed(model):
    ids, mask = padded(2, 9, (9, 9), "left")
    mask[1, 4] = 0
    with pytest.raises(tamis.Error, match="attention_mask: request 1 has padding between") as caught:
        logits(model, use(), ids, mask)
    assert (caught.value.code, caught.value.request) == ("unsupported", 1)
    with pytest.raises(tamis.Error, match=r"attention_mask: torch.float32 \(1, 1, 9, 9\) was not made"):
        logits(model, use(), ids, torch.zeros(1, 1, 9, 9))
    packed = torch.tensor([[0, 1, 2, 3, 0, 1, 2, 3, 4]])
    with pytest.raises(tamis.Error, match="mask_function: and_masks.* is neither causal"):
        logits(model, use(), ids[:1], position_ids=packed, use_cache=False)
    for unsaid in (dict(use_cache=True), dict(use_cache=False, mask=torch.ones_like(ids[:1]))):  # one sequence, then
        same(*(logits(model, name, ids[:1], position_ids=packed, **unsaid) for name in (use(), "eager")))
    with pytest.raises(tamis.Error, match="mask_function: .* is neither causal.*chunked"):
        hf._mask(batch_size=1, q_length=4, kv_length=4, mask_function=transformers.masking_utils.
                 chunked_causal_mask_function(2, torch.zeros(1, dtype=int)))


@pytest.mark.parametrize("argument, value", [("s_aux", torch.zeros(4)), ("position_bias", torch.zeros(1)),
                                             ("output_attentions", True), ("cu_seq_lens_q", torch.zeros(2))])
def test_arguments_that_are_not_computed(argument, value):
    run = transformers.AttentionInterface()[use()]
    x = torch.zeros(1, 2, 3, 8)
    with pytest.raises(tamis.Error, match=f"^unsupported: {argument}: "):
        run(torch.nn.Module(), x, x, x, None, **{argument: value})
    harmless = dict(output_attentions=False, position_ids=torch.zeros(1, 3), use_cache=True)
    run(torch.nn.Module(), x, x, x, None, **{**harmless, argument: False if value is True else None})


def test_numbers_out_of_range():
    for changes, message in (({"window": -1}, "window: -1 is below 0"), ({"pages": -2}, "pages: -2 is below 0"),
                             ({"page_size": 0}, "page_size: 0 is below 1"), ({"query_block": 0}, "query_block"),
                             ({"selector": "best"}, "selector: 'best' is neither"), ({"backend": "tpu"}, "backend")):
        with pytest.raises(tamis.Error, match=message):
            use(**changes)


# --- training

def test_dropout_follows_the_seed_of_torch():
    run = transformers.AttentionInterface()[use()]
    x = torch.randn(1, 2, 30, 8, generator=torch.Generator().manual_seed(1))
    results = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        results.append(run(torch.nn.Module(), x, x, x, None, dropout=0.5)[0])
    assert torch.equal(results[0], results[1]) and not torch.equal(results[0], results[2])
    assert not torch.equal(results[0], run(torch.nn.Module(), x, x, x, None, dropout=0.5)[0])
    assert not torch.equal(results[0], run(torch.nn.Module(), x, x, x, None)[0])


def test_gradients(model):
    ids, mask = padded(3, 14, (14, 6, 2), "left")
    gradients = []
    labels = ids.masked_fill((mask == 0) | (mask.roll(1, 1) == 0), -100)  # what padding predicts is nobody's answer
    for implementation in (use(), "eager"):
        model.set_attn_implementation(implementation)
        model.zero_grad()
        model(ids, attention_mask=mask, labels=labels).loss.backward()
        gradients.append({name: p.grad.clone() for name, p in model.named_parameters()})
    model.zero_grad()
    for name, expected in gradients[1].items():
        torch.testing.assert_close(gradients[0][name], expected, rtol=1e-4, atol=1e-5, msg=lambda m: f"{name}: {m}")


# --- documents

ROOT = Path(__file__).resolve().parents[2]


def test_the_guide_runs(capsys):
    blocks = re.findall(r"^```python\n(.*?)^```", (ROOT / "docs/python_frameworks.md").read_text(), re.M | re.S)
    assert len(blocks) == 3
    for block in blocks[:2]:
        exec(compile(block, "docs/python_frameworks.md", "exec"), {})
    assert "torch.Size([1, 400, 1000])" in capsys.readouterr().out


def test_the_example_runs():
    ran = subprocess.run([sys.executable, ROOT / "examples/python/smollm2.py", "--tiny", "--tokens", "3"],
                         capture_output=True, text=True, timeout=300)
    assert ran.returncode == 0, ran.stderr
    assert re.search(r"every token: .*\n.* 100.0 % of K and V", ran.stdout), ran.stdout
