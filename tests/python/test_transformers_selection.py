"""What tamis.transformers selects under a random model: pages, blocks of queries, padding, selectors, gradients."""
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import tamis
import tamis.transformers as hf

from hf_models import judged, logits, padded, positions, same, tiny, tokens, use, watch


@pytest.fixture(scope="module")
def model():
    return tiny()


# --- against dense masks

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


# --- blocks of queries, and padding

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
    """Columns 14 on: positions 14-15, 16-23, 24-28 of request 0, 5-7, 8-15, 16-18 of request 1, all of request 2."""
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


# --- selectors

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
    """Twenty tokens in blocks of 16 and pages of 4, beside a request of seven; int64 is never cut to 32 bits."""
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
        with pytest.raises(tamis.Error, match="^invalid_argument: selector: returned (list|NoneType), expected"):
            logits(model, use(pages=2, page_size=4, selector=lambda request: returned), ids, mask)
    for value, dtype in ((5, torch.int32), (-2, torch.int32), (5, torch.int64), (1 << 32, torch.int64),
                         (-1 << 40, torch.int64)):
        with pytest.raises(tamis.Error, match=fr"^index_out_of_range: selector: page {value} of block 1, KV head 0 is "
                                              r"outside \[0, 5\)") as caught:
            answer(((1, 0, 1), value), dtype=dtype)
        assert (caught.value.request, caught.value.value, caught.value.limit) == (0, value, 5)
