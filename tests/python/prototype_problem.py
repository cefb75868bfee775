"""Problems for the tests of the Triton prototype, and their float64 judge over dense masks.

Without a device the kernels run in Triton's interpreter on CPU tensors. Whatever no query selects is NaN in K and V,
and page table entries that nobody needs are junk. Kernels run before the judge does.
"""
import math
import os
import pathlib
import sys

import pytest

torch = pytest.importorskip("torch")
DEVICE = "cuda" if torch.cuda.is_available() and os.environ.get("TRITON_INTERPRET", "0") != "1" else "cpu"
if DEVICE == "cpu":
    os.environ["TRITON_INTERPRET"] = "1"  # read when kernels are defined
pytest.importorskip("triton")
PYTHON = str(pathlib.Path(__file__).parents[2] / "python")
sys.path.append(PYTHON)

import tamis.prototype as prototype  # noqa: E402

needs_device = pytest.mark.skipif(DEVICE == "cpu", reason="no device")
NAN = float("nan")
JUNK = 2 ** 30
F32, F16, BF16 = torch.float32, torch.float16, torch.bfloat16
# Of the largest value: one rounding of the weights and one of the result, each of half a unit in the last place (the
# interpreter keeps weights in float32 but truncates a bfloat16 result). The rest is the float32 rounding of scores.
TOLERANCE = {F32: 4e-6, F16: 2 * 2 ** -11 + 4e-6, BF16: 2 * 2 ** -9 + 4e-6}


def ints(values):
    return torch.tensor(values, dtype=torch.int32, device=DEVICE)


class Problem:
    """Requests of lengths `lengths`, one query each unless `request` says otherwise; logical K and V [B, T, Hkv, .]."""

    def __init__(self, lengths, hq, hkv, d, dv=None, page=16, dtype=F32, layout="NHD", request=None):
        self.lengths, self.hq, self.hkv, self.page, self.layout = lengths, hq, hkv, page, layout
        self.request = list(range(len(lengths))) if request is None else request
        self.max_pages = max(1, max(-(-length // page) for length in lengths))
        tokens = self.max_pages * page
        self.q = torch.randn(len(self.request), hq, d).to(dtype)
        self.k = torch.randn(len(lengths), tokens, hkv, d).to(dtype)
        self.v = torch.randn(len(lengths), tokens, hkv, dv or d).to(dtype)

    def store(self, mask):
        """Tensors on the device for a mask [N, Hq, T]: q, k, v in shuffled pages, page table, kv_len."""
        b, tokens, group = len(self.lengths), self.k.shape[1], self.hq // self.hkv
        used = torch.zeros(b, tokens, self.hkv, dtype=torch.bool)
        for n, request in enumerate(self.request):
            used[request] |= mask[n].view(self.hkv, group, tokens).any(1).T
        pages = b * self.max_pages + 3
        table = torch.randperm(pages)[:b * self.max_pages].view(b, self.max_pages)
        cache = []
        for x in (self.k, self.v):
            x = torch.where(used[..., None], x, NAN).view(b * self.max_pages, self.page, self.hkv, -1)
            stored = torch.full((pages, *x.shape[1:]), NAN, dtype=x.dtype)
            stored[table.flatten()] = x
            if self.layout == "HND":
                stored = stored.transpose(1, 2).contiguous().transpose(1, 2)
            cache.append(stored.to(DEVICE))
        touched = used.view(b, self.max_pages, self.page, self.hkv).any(3).any(2)
        table = torch.where(touched, table, JUNK).int().to(DEVICE)
        return self.q.to(DEVICE), *cache, table, ints(self.lengths)

    def expected(self, mask, scale=None):
        """Float64 O [N, Hq, Dv] and LSE [N, Hq]."""
        group = self.hq // self.hkv
        q = self.q.double()
        k, v = (x.double()[self.request].repeat_interleave(group, 2) for x in (self.k, self.v))
        s = torch.einsum("nhd,nthd->nht", q, k) * (q.shape[2] ** -0.5 if scale is None else scale)
        lse = torch.where(mask, s, -math.inf).logsumexp(2)
        weights = torch.where(mask, (s - torch.where(lse == -math.inf, 0, lse)[..., None]).exp(), 0)
        return torch.einsum("nht,nthd->nhd", weights, v), lse

    def check(self, out, lse, mask, scale=None):
        want, want_lse = self.expected(mask, scale)
        assert out.dtype == self.q.dtype and lse.dtype == F32
        assert out.shape == want.shape and lse.shape == want_lse.shape
        out, lse = out.double().cpu(), lse.double().cpu()
        assert torch.isfinite(out).all()
        empty = ~mask.any(2)
        assert (out[empty] == 0).all() and (lse[empty] == -math.inf).all()
        error = (out - want).abs().amax() / self.v.double().abs().amax()
        assert error <= TOLERANCE[self.q.dtype], f"error {error:.3g}"
        torch.testing.assert_close(lse[~empty], want_lse[~empty], rtol=1e-5, atol=1e-5)


def per_head(mask, problem):
    """[N, Hi, T] to [N, Hq, T]."""
    return mask.repeat_interleave(problem.hq // mask.shape[1], 1)


def index_of(mask, block, beyond=None):
    """The Index of a mask [N, Hi, T], written bit by bit. `beyond`: also sets all bits of listed blocks from token
    beyond[n] on, which kv_len or q_pos must hide."""
    indptr, blocks, members = [0], [], []
    for n, rows in enumerate(mask):
        for row in rows:
            chosen = set(row.nonzero().flatten().tolist())
            for number in sorted({t // block for t in chosen}):
                word = 0
                for i in range(block):
                    t = number * block + i
                    if t in chosen or (beyond is not None and t >= beyond[n]):
                        word |= 1 << i
                blocks.append(number)
                members.append(word - 2 ** 64 if word >= 2 ** 63 else word)
            indptr.append(len(blocks))
    spare = 5  # capacity past indptr[-1] is never read
    return prototype.Index(torch.tensor(indptr, device=DEVICE), ints(blocks + [JUNK] * spare),
                           torch.tensor(members + [-1] * spare, dtype=torch.int64, device=DEVICE), block)


def random_mask(problem, index_heads, limits, density=0.3):
    """Rows of runs and of single tokens below limits[n]; the rows of query 1 and the very last one are empty."""
    n, tokens = len(problem.request), problem.k.shape[1]
    runs = (torch.rand(n, index_heads, -(-tokens // 12)) < density).repeat_interleave(12, 2)[..., :tokens]
    mask = runs | (torch.rand(n, index_heads, tokens) < 0.05)
    mask &= torch.arange(tokens) < torch.tensor(limits)[:, None, None]
    mask[1:2] = False
    mask[-1, -1] = False
    return mask
