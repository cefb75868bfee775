"""The problems of the peer benches, held in torch tensors that all contenders share. As in problem64k.cpp and
prefill.cpp: the same sizes, lists and layouts, other random numbers.

A work has `case`, `bytes`, `flops`, `turns` (each with q, k, v and what its kind needs), `contender(library, context)`,
which is Tamis on the same problem as f(turn), and `reference(library)`, the float64 result of turn 0.
"""
import random

import peer_record as rec
import tamis_ctypes as t

HQ, HKV, D, PAGE, KV_LEN, WINDOW = 32, 8, 128, 16, 65536, 256
PAGES = KV_LEN // PAGE
DTYPES = {"f32": t.F32, "f16": t.F16, "bf16": t.BF16}


def torch_dtype(torch, dtype):
    return {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}[dtype]


def enough_turns(bytes_of_a_turn):
    return 5 * rec.last_level_cache() // bytes_of_a_turn + 1


def uniform_pages(rng):
    """lists.cpp: 32 whole tiles of 64 tokens, 40 halves, 40 quarters, and half of the window's pages."""
    tiles = rng.sample(range((PAGES - WINDOW // PAGE) // 4), 112)
    pages = [4 * tile + j for n, tile in enumerate(tiles)
             for j in rng.sample(range(4), 4 if n < 32 else 2 if n < 72 else 1)]
    pages += [PAGES - WINDOW // PAGE + j for j in rng.sample(range(WINDOW // PAGE), 8)]
    rng.shuffle(pages)
    return pages


class Work:
    bound_by_arithmetic = False

    def __init__(self, torch, dtype):
        self.torch, self.dtype, self.turns = torch, dtype, []
        self.type = torch_dtype(torch, dtype)
        torch.manual_seed(64)

    def random(self, *shape):
        return self.torch.randn(*shape, dtype=self.torch.float32).to(self.type) if self.dtype != "f32" \
            else self.torch.randn(*shape)

    def ints(self, values):
        return self.torch.tensor(values, dtype=self.torch.int32)

    def view(self, x):
        kind = t.I32 if x.dtype == self.torch.int32 else DTYPES[self.dtype]
        assert x.is_contiguous()
        return t.Tensor(x.data_ptr(), kind, list(x.shape))

    def problem(self, library, tensors, causal=True, window=0, layout=t.NHD, form=t.FORM_CSR, unit=1, query_block=1,
                index_heads=1):
        """tensors: {field of query, cache or candidates: tensor}. Returns (problem, what must be kept)."""
        p = library.filled(t.Problem)
        keep = [tensors]
        for name, x in tensors.items():
            group = p.query if name in ("q", "cu_q") else p.candidates if name in ("indptr", "indices") else p.cache
            keep.append(self.view(x))
            setattr(group, name, t.c.pointer(keep[-1]))
        p.cache.layout = layout
        p.mask.causal, p.mask.window = int(causal), window
        c = p.candidates
        c.form, c.unit, c.query_block, c.index_heads = form, unit, query_block, index_heads
        return p, keep

    def contender(self, library, context):
        """Attention, planned beforehand: one plan a turn, all into one output."""
        out = self.torch.empty_like(self.turns[0]["q"])
        planned = [self.planned(library, turn, out) for turn in range(len(self.turns))]

        def call(turn):
            planned[turn].run(context)
            return out
        return call

    def reference(self, library):
        """By the library's float64 judge."""
        out = self.torch.empty_like(self.turns[0]["q"])
        return self.torch.tensor(self.planned(library, 0, out).reference(), dtype=self.torch.float64)


class Decode(Work):
    """One request of the 64K case, NHD pages."""

    def __init__(self, torch, dtype, seed=64):
        super().__init__(torch, dtype)
        rng, size = random.Random(seed), torch.empty(0, dtype=self.type).element_size()
        self.bytes, self.flops = HKV * 264 * PAGE * 2 * D * size, 4 * HQ * 264 * PAGE * D
        count = enough_turns(self.bytes)
        self.k, self.v = (torch.empty(count * PAGES, PAGE, HKV, D, dtype=self.type) for _ in range(2))
        for pool in (self.k, self.v):
            for n in range(count):
                pool[n * PAGES:(n + 1) * PAGES] = self.random(PAGES, PAGE, HKV, D)
        for n in range(count):
            table = list(range(n * PAGES, (n + 1) * PAGES))
            rng.shuffle(table)
            lists = [uniform_pages(rng) for _ in range(HKV)]
            window = range(PAGES - WINDOW // PAGE, PAGES)
            selected = [sorted({*pages, *window}) for pages in lists]
            self.turns.append({
                "q": self.random(1, HQ, D), "table": self.ints([table]),
                "indptr": self.ints([sum(map(len, lists[:i])) for i in range(HKV + 1)]),
                "indices": self.ints([page for pages in lists for page in pages]),
                # For the peers, made outside the timed part: physical pages; rows of the pool as [tokens * Hkv].
                "pages": torch.tensor([[table[p] for p in pages] for pages in selected]),
                "rows": torch.tensor([(table[p] * PAGE + j) * HKV + h for h, pages in enumerate(selected)
                                      for p in pages for j in range(PAGE)])})
        self.case = {"requests": 1, "q_heads": HQ, "kv_heads": HKV, "head_dim": D, "kv_len": KV_LEN, "page_size": PAGE,
                     "window": WINDOW, "listed_per_head": 256, "distribution": "uniform", "dtype": dtype,
                     "layout": "nhd", "turns": count, "working_set_bytes": count * self.bytes}

    def planned(self, library, turn, out):
        x = self.turns[turn]
        p, keep = self.problem(library, {"q": x["q"], "cu_q": self.ints([0, 1]), "k": self.k, "v": self.v,
                                         "kv_len": self.ints([KV_LEN]), "page_table": x["table"],
                                         "indptr": x["indptr"], "indices": x["indices"]},
                               window=WINDOW, unit=PAGE, index_heads=HKV)
        return t.Planned(library, p, self.view(out), t.PATH_DIRECT, keep)


class Dense(Work):
    """One request over 65536 contiguous tokens, each KV head's together."""

    def __init__(self, torch, dtype):
        super().__init__(torch, dtype)
        size = torch.empty(0, dtype=self.type).element_size()
        self.bytes, self.flops = 2 * HKV * KV_LEN * D * size, 4 * HQ * KV_LEN * D
        for _ in range(enough_turns(self.bytes)):
            self.turns.append({"q": self.random(1, HQ, D), "k": self.random(HKV, KV_LEN, D),
                               "v": self.random(HKV, KV_LEN, D)})
        self.case = {"requests": 1, "q_heads": HQ, "kv_heads": HKV, "head_dim": D, "kv_len": KV_LEN,
                     "distribution": "all", "dtype": dtype, "layout": "hnd", "turns": len(self.turns),
                     "working_set_bytes": len(self.turns) * self.bytes}

    def planned(self, library, turn, out):
        x = self.turns[turn]
        p, keep = self.problem(library, {"q": x["q"], "cu_q": self.ints([0, 1]), "k": x["k"], "v": x["v"],
                                         "kv_len": self.ints([KV_LEN]), "cu_kv": self.ints([0, KV_LEN])},
                               layout=t.HND, form=t.FORM_ALL)
        return t.Planned(library, p, self.view(out), t.PATH_DENSE, keep)


class Prefill(Work):
    """L 4096, 8/2 heads, one block of 128 in eight for each query block and KV head, not causal."""
    bound_by_arithmetic = True
    length, block, heads, kv_heads, blocks = 4096, 128, 8, 2, 32

    def __init__(self, torch, dtype):
        super().__init__(torch, dtype)
        rng, taken = random.Random(128), self.blocks // 8
        size = torch.empty(0, dtype=self.type).element_size()
        self.bytes = self.blocks * self.kv_heads * taken * self.block * 2 * D * size
        self.flops = 4 * self.length * taken * self.block * self.heads * D
        q, k, v = (self.random(self.length, h, D) for h in (self.heads, self.kv_heads, self.kv_heads))
        for _ in range(4):
            lists = [[rng.sample(range(self.blocks), taken) for _ in range(self.kv_heads)] for _ in range(self.blocks)]
            flat = [block for of_heads in lists for one in of_heads for block in one]
            self.turns.append({"q": q, "k": k, "v": v, "lists": lists, "indices": self.ints(flat),
                               "indptr": self.ints([taken * i for i in range(self.blocks * self.kv_heads + 1)])})
        self.case = {"length": self.length, "q_heads": self.heads, "kv_heads": self.kv_heads, "head_dim": D,
                     "block": self.block, "query_block": self.block, "density": 0.125, "causal": False,
                     "distribution": "uniform", "dtype": dtype, "layout": "nhd", "turns": 4}

    def planned(self, library, turn, out):
        x = self.turns[turn]
        p, keep = self.problem(library, {"q": x["q"], "cu_q": self.ints([0, self.length]), "k": x["k"], "v": x["v"],
                                         "kv_len": self.ints([self.length]), "cu_kv": self.ints([0, self.length]),
                                         "indptr": x["indptr"], "indices": x["indices"]},
                               causal=False, unit=self.block, query_block=self.block, index_heads=self.kv_heads)
        return t.Planned(library, p, self.view(out), t.PATH_DIRECT, keep)
