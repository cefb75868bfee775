"""Tiny random models of transformers, and attention over dense masks that repeats what Tamis selected."""
import torch
import transformers

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


def positions(mask):
    """Of each token in its request: what `generate` passes to a model beside a mask."""
    return (mask.cumsum(1) - 1).clamp(min=0)


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
