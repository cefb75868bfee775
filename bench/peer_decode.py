"""The work of bench/peers.py: decode over one K and V that all contenders share, its lists, and the float64 reference.

Dense decode reads every token. Selected decode reads, for each KV head, the listed pages and those of the window, both
through a page table. torch is handed in, so that this file loads without it.
"""
import ctypes
import random
from dataclasses import dataclass

import tamis_ctypes as t

FIXED_WIDTH = 1


@dataclass(frozen=True)
class Sizes:
    q_heads: int = 32
    kv_heads: int = 8
    dim: int = 128
    tokens: int = 65536
    page: int = 16
    window: int = 256
    listed: int = 256     # pages a KV head, some of them in the window
    listed_in_window: int = 8

    @property
    def pages(self):
        return self.tokens // self.page

    @property
    def group(self):
        return self.q_heads // self.kv_heads

    @property
    def window_pages(self):
        return self.window // self.page

    @property
    def selected(self):
        """Pages that lists and window have together."""
        return self.listed - self.listed_in_window + self.window_pages


def some_pages(rng, sizes):
    """A list: distinct pages, `listed_in_window` of them in the window."""
    first = sizes.pages - sizes.window_pages
    return (rng.sample(range(first), sizes.listed - sizes.listed_in_window) +
            rng.sample(range(first, sizes.pages), sizes.listed_in_window))


class Work:
    """q [turns, B, Hq, D], k and v [turns, B, Hkv, T, D]; a request's pages lie in its own block of memory.

    table    [turns, B, pages] i32         where in that block a page is
    lists    [turns, B, Hkv, listed] i32   raw candidates: pages in random order
    chosen   [turns, B, Hkv, selected]     lists and window together, each page once
    """

    def __init__(self, torch, library, requests, turns, sizes=Sizes(), device="cuda"):
        self.torch, self.library, self.device = torch, library, device
        self.b, self.turns, self.sizes, self.kept = requests, turns, sizes, []
        self.generator = torch.Generator(device).manual_seed(64)
        block = (sizes.kv_heads, sizes.tokens, sizes.dim)
        self.k, self.v = (self.values(turns, requests, *block) for _ in range(2))
        self.q = self.values(turns, requests, sizes.q_heads, sizes.dim)
        rng, pages = random.Random(64), sizes.pages
        each = [(turn, r) for turn in range(turns) for r in range(requests)]
        tables = [rng.sample(range(pages), pages) for _ in each]
        lists = [[some_pages(rng, sizes) for _ in range(sizes.kv_heads)] for _ in each]
        window = range(pages - sizes.window_pages, pages)
        chosen = [[sorted({*one, *window}) for one in request] for request in lists]
        self.table, self.lists, self.chosen = (
            self.integers(x).view(turns, requests, *self.integers(x).shape[1:]) for x in (tables, lists, chosen))

    def values(self, *shape):
        """Uniform of variance 1. The generator is this object's own: a capture that fails may spoil the default one."""
        x = self.torch.empty(*shape, dtype=self.torch.bfloat16, device=self.device)
        return x.uniform_(-3 ** 0.5, 3 ** 0.5, generator=self.generator)

    def integers(self, values):
        return self.torch.tensor(values, dtype=self.torch.int32, device=self.device)

    def physical(self, turn, pages):
        """Where logical pages [B, Hkv, n] of a turn lie in the blocks of their requests, i64."""
        table = self.table[turn].long()[:, None].expand(-1, pages.shape[1], -1)
        return table.gather(2, pages.long())

    def head_pages(self, turn):
        """Chosen pages as rows of k[turn].view(B * Hkv * pages, page, D): [B, Hkv, selected] i64."""
        heads = self.torch.arange(self.b * self.sizes.kv_heads, device=self.device).view(self.b, -1, 1)
        return heads * self.sizes.pages + self.physical(turn, self.chosen[turn])

    def pool(self, x):
        """k[turn] or v[turn] as one pool of pages [pages, Hkv, page, D]. Heads of a request are T rows apart, so pages
        of different heads overlap in number, never in memory that a table names."""
        s = self.sizes
        shape = (self.pool_pages(), s.kv_heads, s.page, s.dim)
        return x.as_strided(shape, (s.page * s.dim, s.tokens * s.dim, s.dim, 1))

    def pool_pages(self):
        return ((self.b - 1) * self.sizes.kv_heads + 1) * self.sizes.pages

    def pool_table(self, turn):
        """[B, pages] i32: pages of that pool."""
        first = self.torch.arange(self.b, dtype=self.torch.int32, device=self.device)[:, None]
        return self.table[turn] + first * (self.sizes.kv_heads * self.sizes.pages)

    # -------------------------------------------------------------------- for Tamis

    def keep(self, tensor):
        self.kept.append(tensor)
        return tensor

    def view(self, tensor, dtype=t.I32, shape=None, stride=None):
        x = t.Tensor(self.keep(tensor).data_ptr(), dtype, list(shape or tensor.shape))
        for axis, step in enumerate(stride or ()):
            x.stride[axis] = step
        return ctypes.pointer(self.keep(x))

    def problem(self, turn, selected):
        """Of the C interface; what it points to lives as long as this object."""
        p, b, s = self.library.filled(t.Problem), self.b, self.sizes
        p.query.q = self.view(self.q[turn], t.BF16)
        p.query.cu_q = self.view(self.integers(list(range(b + 1))))
        p.cache.kv_len = self.view(self.integers([s.tokens] * b))
        p.cache.layout = t.HND
        rows = self.pool_pages() * s.page
        for name, x in (("k", self.k[turn]), ("v", self.v[turn])):
            if selected:
                pool = self.pool(x)
                view = self.view(pool, t.BF16, stride=pool.stride())
            else:
                view = self.view(x, t.BF16, (s.kv_heads, rows, s.dim), (s.tokens * s.dim, s.dim, 1))
            setattr(p.cache, name, view)
        if selected:
            p.cache.page_table = self.view(self.pool_table(turn))
            p.candidates.form = FIXED_WIDTH
            p.candidates.unit, p.candidates.query_block, p.candidates.index_heads = s.page, 1, s.kv_heads
            p.candidates.indices = self.view(self.lists[turn].view(b * s.kv_heads, -1))
            p.mask.window = s.window
        else:
            bounds = [r * s.kv_heads * s.tokens for r in range(b)] + [rows]
            p.cache.cu_kv = self.view(self.integers(bounds))
            p.candidates.form = t.FORM_ALL
        return p

    # -------------------------------------------------------------------- checking and counting

    def kind(self, reading):
        """Which work a reading is, for `reference`, `counted` and `case`: whether pages are selected."""
        return reading != "dense"

    def nodes(self):
        return self.turns * (2 if self.b == 8 else 1)  # an event is over 100 us

    def checked(self):
        """The first request and the last, whose memory lies farthest."""
        return sorted({0, self.b - 1})

    def checked_rows(self, kind):
        return self.sizes.q_heads * len(self.checked())

    def results(self, out, kind):
        """What `reference` is compared with."""
        return out.reshape(self.b, self.sizes.q_heads, self.sizes.dim)[self.checked()].double()

    def finish(self, readings):
        """Adds what only all readings of the case together tell."""

    def reference(self, turn, selected):
        """Of the checked requests, in float64: [checked, Hq, D]."""
        torch, s, out = self.torch, self.sizes, []
        for r in self.checked():
            for head in range(s.kv_heads):
                k, v = (x[turn, r, head].view(s.pages, s.page, s.dim) for x in (self.k, self.v))
                if selected:
                    rows = self.table[turn, r].long()[self.chosen[turn, r, head].long()]
                    k, v = k[rows], v[rows]
                k, v = (x.reshape(-1, s.dim).double() for x in (k, v))
                q = self.q[turn, r, head * s.group:(head + 1) * s.group].double()
                out.append(torch.softmax(q @ k.T / s.dim ** 0.5, -1) @ v)
        return torch.stack(out).view(-1, s.q_heads, s.dim)

    def counted(self, selected):
        """Bytes of K and V, FLOPs of one step."""
        s = self.sizes
        tokens = self.b * s.kv_heads * (s.selected * s.page if selected else s.tokens)
        return tokens * 2 * s.dim * 2, tokens * s.group * 4 * s.dim

    def case(self, selected):
        s = self.sizes
        case = {"requests": self.b, "q_heads": s.q_heads, "kv_heads": s.kv_heads, "head_dim": s.dim,
                "kv_len": s.tokens, "dtype": "bf16", "layout": "hnd", "turns": self.turns,
                "distribution": "uniform" if selected else "all"}
        return {**case, "page": s.page, "pages": s.selected} if selected else case
