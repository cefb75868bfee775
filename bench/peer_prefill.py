"""The prefill work of bench/peers.py and its contenders: one loop over one q, K and V, so that all meet the same clocks.

Dense forward at 16K, block-sparse forward at 32K over the same lists for everybody, not causal. Ratios are of TFLOP/s on
selected keys to the fastest cuDNN dense forward of the loop. torch is handed in, so that this file loads without it.
"""
import ctypes
from dataclasses import dataclass

import tamis_ctypes as t
from peer_contenders import Made, every_turn

FIXED_WIDTH = 1
Q_HEADS, KV_HEADS, D = 32, 8, 128


@dataclass(frozen=True)
class Kind:
    length: int = 32768
    block: int = 0          # tokens of a listed block; 0: dense
    query_block: int = 128
    sixteenths: int = 16    # of the key blocks
    page: int = 0           # 0: contiguous, HND; else pages, NHD

    @property
    def listed(self):
        return self.length // self.block * self.sixteenths // 16

    @property
    def tokens(self):
        """That a query selects."""
        return self.listed * self.block if self.block else self.length


KINDS = {"dense.L16k": Kind(16384),
         **{f"block{block}.L32k.d{100 * n // 16}{'.paged' if page else ''}":
            Kind(32768, block, 64 if block == 64 else 128, n, page)
            for block, page in ((128, 0), (64, 0), (16, 0), (16, 16)) for n in (1, 4)}}


def draw(torch, kind, generator, device):
    """[query blocks, KV heads, listed] i32: different key blocks in random order."""
    shape = (kind.length // kind.query_block, KV_HEADS, kind.length // kind.block)
    order = torch.rand(shape, generator=generator, device=device).argsort(-1)
    return order[..., :kind.listed].int().contiguous()


class Prefill:
    """q [L, Hq, D]; k and v [Hkv, L, D]; the first tokens of them, copied, where a kind is shorter."""
    b, turns = 1, 1

    def __init__(self, torch, library, kinds=None, device="cuda"):
        self.torch, self.library, self.device, self.kept = torch, library, device, []
        self.kinds = KINDS if kinds is None else kinds
        generator = torch.Generator(device).manual_seed(128)
        longest = max(kind.length for kind in self.kinds.values())

        def values(*shape):
            x = torch.empty(*shape, dtype=torch.bfloat16, device=device)
            return x.uniform_(-3 ** 0.5, 3 ** 0.5, generator=generator)
        q, k, v = values(longest, Q_HEADS, D), values(KV_HEADS, longest, D), values(KV_HEADS, longest, D)
        self.q, self.k, self.v = ({n: cut(n) for n in {kind.length for kind in self.kinds.values()}} for cut in (
            lambda n: q[:n], lambda n: k[:, :n].contiguous(), lambda n: v[:, :n].contiguous()))
        # Whoever takes pages has the lists of its like that is contiguous.
        self.lists, drawn = {}, {}
        for name, kind in self.kinds.items():
            if kind.block:
                key = kind.length, kind.block, kind.sixteenths
                if key not in drawn:
                    drawn[key] = draw(torch, kind, generator, device)
                self.lists[name] = drawn[key]
        self.generator = generator

    def keep(self, tensor):
        self.kept.append(tensor)
        return tensor

    # -------------------------------------------------------------------- for Tamis

    def view(self, tensor, dtype=t.I32):
        return ctypes.pointer(self.keep(t.Tensor(self.keep(tensor).data_ptr(), dtype, list(tensor.shape))))

    def integers(self, values):
        return self.torch.tensor(values, dtype=self.torch.int32, device=self.device)

    def problem(self, name):
        """Of the C interface; what it points to lives as long as this object."""
        p, kind = self.library.filled(t.Problem), self.kinds[name]
        n = kind.length
        p.query.q = self.view(self.q[n], t.BF16)
        p.query.cu_q = self.view(self.integers([0, n]))
        p.cache.kv_len = self.view(self.integers([n]))
        p.mask.causal = 0
        if kind.page:
            pages = n // kind.page
            table = self.torch.randperm(pages, generator=self.generator, device=self.device)
            for side, x in (("k", self.k[n]), ("v", self.v[n])):
                pool = self.torch.empty(pages, kind.page, KV_HEADS, D, dtype=x.dtype, device=self.device)
                pool[table] = x.view(KV_HEADS, pages, kind.page, D).permute(1, 2, 0, 3)
                setattr(p.cache, side, self.view(pool, t.BF16))
            p.cache.page_table = self.view(table.int()[None])
            p.cache.layout = t.NHD
        else:
            p.cache.k, p.cache.v = (self.view(x[n], t.BF16) for x in (self.k, self.v))
            p.cache.cu_kv = self.view(self.integers([0, n]))
            p.cache.layout = t.HND
        c = p.candidates
        c.query_block = kind.query_block
        if kind.block:
            c.form, c.unit, c.index_heads = FIXED_WIDTH, kind.block, KV_HEADS
            c.indices = self.view(self.lists[name].view(-1, kind.listed))
        else:
            c.form = t.FORM_ALL
        return p

    # -------------------------------------------------------------------- checking and counting

    def kind(self, reading):
        return reading

    def nodes(self):
        return 1

    def checked(self, name):
        n = self.kinds[name].length
        return [0, 127, n // 2 + 1, n - 1]

    def checked_rows(self, name):
        return Q_HEADS * len(self.checked(name))

    def results(self, out, name):
        """`out` is [L, Hq, D]."""
        return out[self.checked(name)].double()

    def reference(self, turn, name):
        """Of the checked queries, in float64: [checked, Hq, D]."""
        torch, kind, group, out = self.torch, self.kinds[name], Q_HEADS // KV_HEADS, []
        k_all, v_all = self.k[kind.length], self.v[kind.length]
        for query in self.checked(name):
            for head in range(KV_HEADS):
                k, v = k_all[head], v_all[head]
                if kind.block:
                    blocks = self.lists[name][query // kind.query_block, head].long()
                    k, v = (x.view(-1, kind.block, D)[blocks].reshape(-1, D) for x in (k, v))
                q = self.q[kind.length][query, head * group:(head + 1) * group].double()
                out.append(torch.softmax(q @ k.double().T / D ** 0.5, -1) @ v.double())
        return torch.stack(out).view(-1, Q_HEADS, D)

    def counted(self, name):
        """Bytes of K and V over the lists, FLOPs on selected keys."""
        kind = self.kinds[name]
        rows = kind.length // kind.query_block * KV_HEADS
        return rows * kind.tokens * 2 * D * 2, 4 * D * Q_HEADS * kind.length * kind.tokens

    def case(self, name):
        kind = self.kinds[name]
        case = {"queries": kind.length, "kv_len": kind.length, "q_heads": Q_HEADS, "kv_heads": KV_HEADS, "head_dim": D,
                "dtype": "bf16", "causal": False, "layout": "nhd" if kind.page else "hnd",
                "page_size": kind.page or None, "turns": 1, "distribution": "uniform" if kind.block else "all"}
        if not kind.block:
            return case
        return {**case, "block": kind.block, "query_block": kind.query_block, "density": kind.sixteenths / 16}

    def finish(self, readings):
        """`ratio_to_cudnn_dense`: TFLOP/s over those of cuDNN's fastest dense forward in the same loop."""
        dense = [one["tflop_s"] for one in readings if one["name"].endswith("dense.L16k") and "cudnn" in one["peer"]]
        for one in readings:
            one["ratio_to_cudnn_dense"] = one["tflop_s"] / max(dense) if dense and one["tflop_s"] else None


# ---------------------------------------------------------------------------- the contenders

def tamis(work, name):
    import tamis_cuda_ctypes as device
    torch = work.torch
    out = torch.full_like(work.q[work.kinds[name].length], float("nan"))

    def stream():
        return torch.cuda.current_stream().cuda_stream

    def allocate(size):
        return work.keep(torch.empty(size, dtype=torch.uint8, device=work.device)).data_ptr()
    step = device.DeviceStep(work.library, work.problem(name), work.view(out, t.BF16).contents, allocate, stream(),
                             device.PREFILL)
    return Made(lambda turn: step.run(stream()), [out], case={"kernel": step.kernel})


def sdpa(work, name, backend, expand):
    """Expanded: K and V repeated to all query heads beforehand, q with each head's rows together."""
    from torch.nn.attention import SDPBackend, sdpa_kernel
    n = work.kinds[name].length
    q, k, v = work.q[n].transpose(0, 1)[None], work.k[n][None], work.v[n][None]
    if expand:
        q, (k, v) = q.contiguous(), (x.repeat_interleave(Q_HEADS // KV_HEADS, 1) for x in (k, v))

    def compute(turn):
        with sdpa_kernel(getattr(SDPBackend, backend)):
            out = work.torch.nn.functional.scaled_dot_product_attention(q, k, v, enable_gqa=not expand)
        return out[0].transpose(0, 1)
    return every_turn(work, compute)


def blocks_of_query_heads(lists):
    """Lists [query blocks, KV heads, listed], ascending, as [1, query heads, query blocks, listed]."""
    return lists.transpose(0, 1).repeat_interleave(Q_HEADS // KV_HEADS, 0).sort(-1).values[None].contiguous()


def full_blocks(torch, lists, kind):
    """Counts and blocks, with room for all of them, of nobody and of the lists: what reads partial and full blocks."""
    blocks = blocks_of_query_heads(lists)
    room = torch.zeros(*blocks.shape[:3], kind.length // kind.block, dtype=torch.int32, device=lists.device)
    none = torch.zeros_like(room)
    room[..., :blocks.shape[3]] = blocks
    counts = torch.full(blocks.shape[:3], blocks.shape[3], dtype=torch.int32, device=lists.device)
    return torch.zeros_like(counts), none, counts, room


def block_mask(torch, lists, kind):
    """Lists as full blocks of all query heads, given beforehand."""
    from torch.nn.attention.flex_attention import BlockMask
    return BlockMask.from_kv_blocks(*full_blocks(torch, lists, kind), BLOCK_SIZE=(kind.query_block, kind.block),
                                    seq_lengths=(kind.length, kind.length))


def flex(work, name):
    from torch.nn.attention.flex_attention import flex_attention
    torch, kind = work.torch, work.kinds[name]
    # Uncompiled it would not read block lists, so running out of recompilations has to be an error.
    torch.compiler.reset()
    torch._dynamo.config.fail_on_recompile_limit_hit = True
    compiled, n = torch.compile(flex_attention, dynamic=False, fullgraph=True), kind.length
    q, k, v = work.q[n].transpose(0, 1)[None], work.k[n][None], work.v[n][None]
    mask = block_mask(torch, work.lists[name], kind)
    return every_turn(work, lambda turn: compiled(q, k, v, block_mask=mask, enable_gqa=True)[0].transpose(0, 1),
                      case={"how": "the lists as full blocks, made beforehand"})


def flash4(work, name):
    from flash_attn.cute import flash_attn_func
    from flash_attn.cute.block_sparsity import BlockSparseTensorsTorch
    kind = work.kinds[name]
    lists = BlockSparseTensorsTorch(*full_blocks(work.torch, work.lists[name], kind),
                                    block_size=(kind.query_block, kind.block))
    q, k, v = work.q[kind.length][None], *(x[kind.length].transpose(0, 1)[None] for x in (work.k, work.v))

    def compute(turn):
        out = flash_attn_func(q, k, v, pack_gqa=False, block_sparse_tensors=lists)
        return (out[0] if isinstance(out, tuple) else out)[0]
    return every_turn(work, compute, case={"how": "the lists as full blocks of each query head, made beforehand"})


def cudnn_blocks(work, name):
    from cudnn.block_sparse_attention import block_sparse_attention_forward
    kind = work.kinds[name]
    blocks, n = blocks_of_query_heads(work.lists[name]), kind.length
    q, k, v = work.q[n].transpose(0, 1)[None], work.k[n][None], work.v[n][None]
    return every_turn(work, lambda turn: block_sparse_attention_forward(
        q, k, v, blocks, sparse_block_size=kind.block)["o_tensor"][0].transpose(0, 1),
        case={"how": "the lists of each query head, made beforehand"})


def flashinfer_blocks(work, name):
    import flashinfer
    torch, kind = work.torch, work.kinds[name]
    n, rows, columns = kind.length, kind.length // kind.query_block, kind.length // kind.block
    mask = torch.zeros(KV_HEADS, rows, columns, dtype=torch.bool, device=work.device)
    mask.scatter_(2, work.lists[name].transpose(0, 1).long(), True)

    def sizes(count, size):
        return torch.full((KV_HEADS, count), size, dtype=torch.int32, device=work.device)
    wrapper = flashinfer.VariableBlockSparseAttentionWrapper(
        work.keep(torch.empty(128 << 20, dtype=torch.uint8, device=work.device)))
    wrapper.plan(mask, sizes(rows, kind.query_block), sizes(columns, kind.block), Q_HEADS, KV_HEADS, D,
                 q_data_type=torch.bfloat16)
    q = work.q[n].transpose(0, 1).contiguous()
    return every_turn(work, lambda turn: wrapper.run(q, work.k[n], work.v[n]).transpose(0, 1),
                      case={"how": "planned beforehand on the host"})


def bound(make, *arguments):
    return lambda work: make(work, *arguments)


def contenders():
    """[(reading, peer, function)], as peer_contenders.ALL."""
    found = []
    for label, backend in (("cudnn", "CUDNN_ATTENTION"), ("flash", "FLASH_ATTENTION")):
        for how, expand in (("enable_gqa", False), ("expanded", True)):
            found.append(("dense.L16k", f"torch sdpa {label} {how}", bound(sdpa, "dense.L16k", backend, expand)))
    for name, kind in KINDS.items():
        found.append((name, "", bound(tamis, name)))
        if kind.block == 128:
            found.append((name, "torch flex_attention", bound(flex, name)))
        if kind.block >= 64:
            found += [(name, peer, bound(make, name)) for peer, make in (
                ("flash-attention 4", flash4), ("cudnn block-sparse attention", cudnn_blocks),
                ("flashinfer", flashinfer_blocks))]
    return found


# ---------------------------------------------------------------------------- ceilings

def ceilings(torch, measure, event, samples=50):
    """TB/s of a copy (read plus written), TFLOP/s of a bf16 product of 8192, in a loop of their own before all else."""
    n, size = 8192, 1 << 31
    a, b, out = (torch.empty(n, n, dtype=torch.bfloat16, device="cuda").uniform_(-3 ** 0.5, 3 ** 0.5)
                 for _ in range(3))
    source = torch.empty(size // 2, dtype=torch.bfloat16, device="cuda").uniform_(-3 ** 0.5, 3 ** 0.5)
    target = torch.empty_like(source)
    events = {"gemm_bf16_tflop_s": event(torch, lambda turn: torch.matmul(a, b, out=out), 1, 1),
              "copy_tb_s": event(torch, lambda turn: target.copy_(source), 1, 1)}
    times, _, _ = measure(torch, events, samples)
    work = {"gemm_bf16_tflop_s": 2 * n ** 3, "copy_tb_s": 2 * size}
    return {key: work[key] / sorted(us)[len(us) // 2] * 1e-6 for key, (us, _) in times.items()}
