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

def same(ours, expected):
    """Equal but for rounding in float32, by the size of the logits: near zero they are differences of larger sums."""
    torch.testing.assert_close(ours, expected, rtol=0, atol=2e-5 * max(1.0, float(expected.abs().max())))



def tiny(kind="Llama", **changes):
    """A random model of two layers, four query heads over two KV heads of 16."""
    torch.manual_seed(7)
    sizes = dict(vocab_size=97, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
                 num_key_value_heads=2, head_dim=16, max_position_embeddings=128, pad_token_id=0, bos_token_id=1,
                 eos_token_id=None, initializer_range=0.4)
    config = getattr(transformers, f"{kind}Config")(**{**sizes, **changes})
    return getattr(transformers, f"{kind}ForCausalLM")(config).eval()


@pytest.fixture(scope="module")
def model():
    return tiny()


def tokens(batch, length):
    return torch.randint(1, 97, (batch, length), generator=torch.Generator().manual_seed(3))


def padded(batch, length, lengths, side):
    ids, mask = tokens(batch, length), torch.zeros(batch, length, dtype=torch.long)
    for b, n in enumerate(lengths):
        part = slice(length - n, length) if side == "left" else slice(0, n)
        mask[b, part] = 1
    return ids.masked_fill(mask == 0, 0), mask


@torch.no_grad()
def logits(model, implementation, ids, mask=None, **more):
    model.set_attn_implementation(implementation)
    return model(ids, attention_mask=mask, **more).logits


def use(**changes):
    return hf.register("tamis_test", **{"window": 0, "sink": 0, **changes})


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


# --- selection

def judged(seen):
    """An attention function that repeats, over dense masks, what `observe` saw each layer select."""
    calls = iter(seen)

    def attention(module, query, key, value, attention_mask, scaling=None, **_):
        given = next(calls)
        starts, lengths = given["first"], given["kv_len"]
        mask = torch.zeros(query.shape[0], key.shape[1], query.shape[2], key.shape[2], dtype=torch.bool)
        for b in range(query.shape[0]):
            t = torch.arange(key.shape[2]) - starts[b]
            for i in range(query.shape[2]):
                position = given["q_pos"][b][i]
                seen = (t >= 0) & (t < lengths[b]) & (t <= position)
                near = (t < given["sink"]) | (t > position - given["window"])
                for g in range(key.shape[1]):
                    listed = torch.isin(t // given["unit"], given["pages"][b][i][g])
                    mask[b, g, i] = seen & (near | listed)
        groups = query.shape[1] // key.shape[1]
        key, value, mask = (x.repeat_interleave(groups, 1) for x in (key, value, mask))
        weights = ((query @ key.transpose(2, 3)) * scaling).masked_fill(~mask, -1e30).softmax(-1) * mask
        return (weights @ value).transpose(1, 2).contiguous(), None

    transformers.AttentionInterface.register("judge", attention)
    transformers.AttentionMaskInterface.register("judge", lambda **_: None)
    return "judge"


def watch(seen, mask):
    """An `observe` that keeps selections in the terms of `judged`."""
    def observe(module, given):
        batch = mask.shape[0]
        total, lists = len(given["q_pos"]), given["candidates"]
        queries = total // batch
        cu_q = given["cu_q"].tolist() if "cu_q" in given else range(0, total + 1, queries)
        rows, unit = torch.full((total, 2, 1), -9), 1
        if lists is not None:
            listed, unit = lists.indices.reshape(-1, lists.index_heads, lists.indices.shape[-1]), lists.unit
            order, blocks = [], 0  # the block of each query: none covers two requests
            for begin, end in zip(cu_q, cu_q[1:]):
                order += [blocks + i // lists.query_block for i in range(end - begin)]
                blocks = order[-1] + 1
            assert blocks == len(listed)
            rows = listed[order]
        length = {end - 1: n for end, n in zip(cu_q[1:], given["kv_len"].tolist())}
        seen.append(dict(first=[int(row.argmax()) for row in mask],
                         kv_len=[length[b * queries + queries - 1] for b in range(batch)],
                         q_pos=given["q_pos"].reshape(batch, queries).tolist(),
                         pages=rows.reshape(batch, queries, *rows.shape[1:]), unit=unit, window=given["window"],
                         sink=given["sink"]))
    return observe


@pytest.mark.parametrize("lengths", [(40, 40), (40, 22, 7)])
@pytest.mark.parametrize("pages, page_size, query_block", [(0, 16, 16), (1, 4, 1), (3, 5, 4), (2, 16, 64)])
def test_selection_equals_its_dense_mask(model, lengths, pages, page_size, query_block):
    ids, mask = padded(len(lengths), 40, lengths, "left")
    seen = []
    ours = logits(model, use(window=3, sink=2, pages=pages, page_size=page_size, query_block=query_block,
                             observe=watch(seen, mask)), ids, mask)
    assert len(seen) == 2
    dense = logits(model, judged(seen), ids, mask)
    same(ours[mask == 1], dense[mask == 1])
    everything = logits(model, "eager", ids, mask)
    assert (ours - everything)[mask == 1].abs().max() > 1e-2  # something was left out


def test_window_and_sink_while_generating(model):
    """Against eager under a 4-D mask of window and sink."""
    ids = tokens(1, 12)
    model.set_attn_implementation(use(window=4, sink=2, pages=0))
    made = model.generate(ids, max_new_tokens=6, do_sample=False, output_logits=True, return_dict_in_generate=True)
    whole = made.sequences[:, :-1]
    t, i = torch.arange(whole.shape[1]), torch.arange(whole.shape[1])[:, None]
    mask = (t <= i) & ((t < 2) | (t > i - 4))
    dense = logits(model, "eager", whole, torch.where(mask, 0.0, -1e30)[None, None])
    same(torch.stack(made.logits, 1), dense[:, 11:])


def test_selection_does_not_depend_on_padding_or_chunks(model):
    """One request alone, beside others, and token by token has the same pages, so the same logits."""
    name = use(window=1, sink=0, pages=2, page_size=4, query_block=1)
    ids, mask = padded(3, 30, (30, 18, 7), "left")
    # Bounds are those of rotated keys, so the model has to count from the first token as well.
    beside = logits(model, name, ids, mask, position_ids=(mask.cumsum(1) - 1).clamp(min=0))
    for request, length in ((1, 18), (2, 7)):
        alone = logits(model, name, ids[request:request + 1, 30 - length:])[0]
        same(beside[request, 30 - length:], alone)
        cache, steps = transformers.DynamicCache(), []
        with torch.no_grad():
            for i in range(30 - length, 30):
                steps.append(model(ids[request:request + 1, i:i + 1], past_key_values=cache).logits[0])
        same(torch.cat(steps), alone)


def positions(mask):
    """Of each token in its request: what `generate` passes to a model beside a mask."""
    return (mask.cumsum(1) - 1).clamp(min=0)


@pytest.mark.parametrize("query_block", [1, 7, 16])
@pytest.mark.parametrize("side", ["left", "right"])
def test_query_blocks_do_not_depend_on_padding(model, side, query_block):
    """Blocks begin with a request's first token, and a query that is padding has no say in the pages of a block."""
    name = use(window=4, sink=2, pages=2, page_size=4, query_block=query_block)
    ids = tokens(1, 40)
    alone, everything = logits(model, name, ids), logits(model, "eager", ids)
    assert (alone - everything).abs().max() > 1e-2  # something was left out
    for padding in (1, 5, 8, 16, 19):
        more, mask = torch.full((1, padding), 5), torch.ones(1, 40 + padding, dtype=torch.long)
        mask[:, slice(0, padding) if side == "left" else slice(40, None)] = 0
        wider = torch.cat([more, ids] if side == "left" else [ids, more], 1)
        ours = logits(model, name, wider, mask, position_ids=positions(mask))
        same(ours[mask == 1], alone[0])
    lengths = (40, 23, 0, 9)
    beside, mask = padded(4, 40, lengths, side)
    ours = logits(model, name, beside, mask, position_ids=positions(mask))
    for b, n in enumerate(lengths):
        if n:
            same(ours[b, mask[b] == 1], logits(model, name, beside[b:b + 1, mask[b] == 1])[0])


def test_generation_does_not_depend_on_padding(model):
    name = use(window=16, sink=4, pages=2, page_size=8)
    ids, results = tokens(1, 40), []
    model.set_attn_implementation(name)
    for padding in (0, 1, 8):
        wider, mask = torch.nn.functional.pad(ids, (padding, 0)), torch.ones(1, 40 + padding, dtype=torch.long)
        mask[:, :padding] = 0
        made = model.generate(wider, attention_mask=mask, max_new_tokens=6, do_sample=False, output_logits=True,
                              return_dict_in_generate=True)
        results.append(torch.stack(made.logits))
    same(results[1], results[0])
    same(results[2], results[0])


@pytest.mark.parametrize("cache", ["dynamic", "static"])
def test_chunks_of_whole_query_blocks(model, cache):
    """Chunks that end where query blocks do choose what one prefill chooses, behind padding too."""
    name = use(window=4, sink=2, pages=2, page_size=4, query_block=8)
    # Blocks of request 1 begin at column 5, so no chunk suits both. Padding that is embedded as zeros is nothing to the
    # static cache of transformers 4, which counts rows of K that are not 0.
    ids, mask = tokens(2, 45), padded(2, 45, (45, 40), "left")[1]
    for b, ends in ((0, (16, 40, 45)), (1, (21, 37, 45))):
        one, seen = ids[b:b + 1], mask[b:b + 1]
        whole = logits(model, name, one, seen, position_ids=positions(seen))
        held = (transformers.DynamicCache() if cache == "dynamic" else
                transformers.StaticCache(config=model.config, max_cache_len=60))
        begin, parts = 0, []
        for end in ends:
            with torch.no_grad():
                parts.append(model(one[:, begin:end], attention_mask=seen[:, :end], past_key_values=held,
                                   position_ids=positions(seen)[:, begin:end]).logits)
            begin = end
        same(torch.cat(parts, 1)[seen == 1], whole[seen == 1])


def test_query_blocks_of_a_chunk_begin_at_multiples(model):
    """A chunk from position 13 on: blocks of 8 are 13-15, 16-23, 24-29; beside it one from padding, 5-7, 8-15, 16-20."""
    asked, seen, starts = [], [], []

    def some(request):
        asked.append((request.q_start, request.query.shape[1], request.blocks))
        return torch.arange(request.blocks)[:, None, None].expand(-1, request.key.shape[0], 1) % 4

    def begin(module, given):
        starts.append((given["q"].shape[0], given["cu_q"].tolist() if "cu_q" in given else None))

    ids, mask = padded(3, 30, (30, 21, 2), "left")
    mask[0, 29] = mask[1, 28:] = 0  # padding behind as well
    name = use(window=1, sink=1, pages=1, page_size=4, query_block=8, selector=some, observe=begin)
    model.set_attn_implementation(name)
    with torch.no_grad():
        first = model(ids[:, :14], attention_mask=mask[:, :14])
        del asked[:], starts[:]
        model(ids[:, 14:], attention_mask=mask, past_key_values=first.past_key_values)
    assert asked[:3] == [(14, 15, 3), (5, 14, 3), (0, 2, 1)]
    assert starts[0] == (48, [0, 2, 15, 16, 19, 30, 32, 46, 48])


@pytest.mark.parametrize("rows, q_start, block", [(1, 36, 1), (37, 0, 8), (26, 11, 8), (4, 33, 16),
                                                   (3, 30, 16), (300, 27, 16), (512, 0, 300)])
def test_best_pages_by_hand(rows, q_start, block):
    generator = torch.Generator().manual_seed(5)
    query = torch.randn(4, rows, 8, generator=generator)
    key = torch.randn(2, 37, 8, generator=generator)
    chosen = hf.best_pages(hf.PageRequest(query, key, q_start, 3, 5, block))
    assert chosen.dtype == torch.int32
    blocks = {}
    for i in range(rows):
        blocks.setdefault((q_start + i) // block, []).append(i)
    assert len(chosen) == len(blocks)
    for b, members in enumerate(blocks.values()):
        for h in range(2):
            bounds = {}
            for page in range(7):
                part = key[h, page * 5:page * 5 + 5]
                low, high = part.amin(0), part.amax(0)
                for i in members:
                    if page * 5 + 4 <= q_start + i:
                        for q in query[2 * h:2 * h + 2, i]:
                            bound = float(torch.maximum(q * low, q * high).sum())
                            assert bound >= float((part @ q).max()) - 1e-4
                            bounds[page] = max(bounds.get(page, bound), bound)
            best = sorted(bounds, key=bounds.get)[-3:]
            assert sorted(chosen[b, h].tolist()) == sorted(best + [-1] * (3 - len(best)))


def test_equal_bounds_and_bounds_that_are_none():
    key = torch.zeros(1, 24, 4)
    key[0, 4:8] = key[0, 16:20] = 1.0
    key[0, 9] = float("nan")
    ask = lambda pages: hf.best_pages(hf.PageRequest(torch.ones(1, 1, 4), key, 23, pages, 4, 1)).tolist()
    assert ask(1) == [[[1]]] and ask(3) == [[[1, 4, 0]]] and ask(9) == [[[1, 4, 0, 3, 5, -1]]]


def test_a_selector_of_ones_own(model):
    """Pages behind the first 12 tokens; with room for all of them nothing is lost."""
    asked = []

    def everything(request):
        asked.append((tuple(request.query.shape), tuple(request.key.shape), request.q_start, request.module.layer_idx))
        count = -(-request.key.shape[1] // request.page_size)
        return torch.arange(count).expand(request.blocks, request.key.shape[0], count)

    ids, mask = padded(2, 20, (20, 7), "left")
    ours = logits(model, use(pages=9, page_size=4, selector=everything), ids, mask)
    same(ours[mask == 1], logits(model, "eager", ids, mask)[mask == 1])
    assert asked[:2] == [((4, 20, 16), (2, 20, 16), 0, 0), ((4, 7, 16), (2, 7, 16), 0, 0)]


def test_what_a_selector_returns_is_checked(model):
    """Twenty tokens in blocks of 16 and pages of 4, beside a request of seven; int64 is taken, and never cut to 32 bits."""
    ids, mask = padded(2, 20, (20, 7), "left")

    def answer(*changes, dtype=torch.int64, shape=(2,)):
        def selector(request):
            pages = torch.zeros(request.blocks, request.key.shape[0], *shape, dtype=dtype)
            for at, value in changes if request.key.shape[1] == 20 else ():
                pages[at] = value
            return pages
        return logits(model, use(pages=2, page_size=4, selector=selector), ids, mask)

    narrow, wide = (answer(((0, 0, 1), -1), ((1, 1, 0), 4), dtype=dtype) for dtype in (torch.int32, torch.int64))
    assert torch.equal(narrow, wide)
    for dtype in (torch.float32, torch.float64, torch.bool, torch.int16, torch.uint8):
        with pytest.raises(tamis.Error, match=f"^invalid_argument: selector: returned {dtype}, expected torch.int32 or "
                                              "torch.int64"):
            answer(dtype=dtype)
    for shape in ((), (1, 1)):
        with pytest.raises(tamis.Error, match=r"^invalid_argument: selector: returned .*, expected .* \[2, 2, K\]"):
            answer(shape=shape)
    for returned in ([[[0]]], None):
        with pytest.raises(tamis.Error, match="^invalid_argument: selector: returned (list|NoneType), expected a tensor"):
            logits(model, use(pages=2, page_size=4, selector=lambda request: returned), ids, mask)
    for value, dtype in ((5, torch.int32), (-2, torch.int32), (5, torch.int64), (1 << 32, torch.int64),
                         (-1 << 40, torch.int64)):
        with pytest.raises(tamis.Error, match=fr"^index_out_of_range: selector: page {value} of block 1, KV head 0 is "
                                              r"outside \[0, 5\)") as caught:
            answer(((1, 0, 1), value), dtype=dtype)
        assert (caught.value.request, caught.value.value, caught.value.limit) == (0, value, 5)


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


@pytest.mark.parametrize("pages", [None, 0, 1])
@pytest.mark.parametrize("held", [0, 9])
def test_padding_gives_zero_and_is_not_read(pages, held):
    """In front and behind, cached or not; NaN in padded rows of Q, K and V changes nothing."""
    generator = torch.Generator().manual_seed(5)
    query, key, value = (torch.randn(4, heads, n, 16, generator=generator)
                         for heads, n in ((4, 21 - held), (2, 21), (2, 21)))
    mask = torch.zeros(4, 21, dtype=torch.bool)
    mask[0, 2:], mask[1, 13:], mask[3, 3:15] = True, True, True
    run = transformers.AttentionInterface()[use(window=2, sink=1, pages=pages, page_size=3, query_block=5)]
    results = []
    for hostile in (False, True):
        q, k, v = (torch.where(m[:, None, :, None] | ~torch.tensor(hostile), x, float("nan"))
                   for x, m in ((query, mask[:, held:]), (key, mask), (value, mask)))
        packed = hf._mask(batch_size=4, q_length=21 - held, kv_length=21, q_offset=held, attention_mask=mask)
        results.append(run(torch.nn.Module(), q, k, v, packed)[0])
    assert torch.equal(*results)
    assert (results[0][~mask[:, held:]] == 0).all() and (results[0][mask[:, held:]] != 0).all()


def everything_before(query, key, value, rows):
    """Every token up to a query's position, as torch computes it."""
    mask = torch.zeros(query.shape[0], 1, query.shape[2], key.shape[2], dtype=torch.bool)
    for b, (first, count, start) in enumerate(zip(rows.first, rows.tokens, rows.q_start)):
        for i in range(query.shape[2]):
            if 0 <= start + i < count:
                mask[b, 0, i, first:first + start + i + 1] = True
    key, value = (x.repeat_interleave(query.shape[1] // x.shape[1], 1) for x in (key, value))
    weights = (query @ key.transpose(2, 3) * query.shape[-1] ** -0.5).masked_fill(~mask, -1e30).softmax(-1) * mask
    return (weights @ value).transpose(1, 2)


def test_query_blocks_take_no_copy():
    generator = torch.Generator().manual_seed(5)
    query = torch.randn(3, 12, 4, 16, generator=generator).transpose(1, 2)
    key, value = (torch.randn(3, 2, 30, 16, generator=generator)[:, :, :20] for _ in range(2))
    for first, tokens in (((3, 3, 3), (17, 16, 10)), ((0, 4, 11), (20, 9, 3))):
        rows = hf._padding.Rows(first, tokens, tuple(8 - f for f in first), True, 0)
        q, k, v, given = hf._padding.arguments(query, key, value, rows, False, 8)
        assert [x.data_ptr() for x in (q, k, v)] == [query.data_ptr(), key[:, :, first[0]:].data_ptr(),
                                                     value[:, :, first[0]:].data_ptr()]
        assert len(given["cu_q"]) - 1 > 3 and q.shape == (36, 4, 16)
        ours = tamis.attention(q, k, v, tamis.ALL, **given).reshape(3, 12, 4, 16)
        assert torch.equal(given["q_pos"], hf._padding.arguments(query, key, value, rows, False)[3]["q_pos"])
        same(ours, everything_before(query, key, value, rows))


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


@pytest.mark.parametrize("side", ["left", "right"])
def test_gradients_of_a_selection(model, side):
    """Of the tokens that were selected, with requests whose blocks begin at other rows than the batch's."""
    ids, mask = padded(3, 34, (34, 21, 2), side)
    labels, seen, gradients = ids.masked_fill(mask == 0, -100), [], []
    if side == "left":
        labels = labels.masked_fill(mask.roll(1, 1) == 0, -100)
    name = use(window=2, sink=1, pages=2, page_size=4, query_block=8, observe=watch(seen, mask))
    for implementation in (lambda: name, lambda: judged(seen)):
        model.set_attn_implementation(implementation())
        model.zero_grad()
        model(ids, attention_mask=mask, labels=labels).loss.backward()
        gradients.append({name: p.grad.clone() for name, p in model.named_parameters()})
    model.zero_grad()
    for parameter, expected in gradients[1].items():
        torch.testing.assert_close(gradients[0][parameter], expected, rtol=1e-4, atol=1e-5,
                                   msg=lambda m: f"{parameter}: {m}")


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
