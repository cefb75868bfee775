"""Gradients of block-sparse prefill: the problem, its judge, and a peer that does the same work.

The work is the backward alone: out and lse of the forward are given, as to any backward that saved them. Five
products over the listed pairs: q k^T again, dO v^T, P^T dO, dS k and dS^T q.
"""
import peer_work as w
import tamis_ctypes as t


class Backward(w.Prefill):
    def __init__(self, torch, dtype):
        super().__init__(torch, dtype)
        self.bytes, self.flops = 0, self.flops // 4 * 10
        self.d_out = self.random(self.length, self.heads, w.D)
        for x in self.turns:
            x["blocks"] = torch.tensor(x["lists"]).transpose(0, 1)  # [KV head, query block, listed]
            out, lse = forward(self, x)
            x["out"], x["lse"] = unfold(self, out).to(self.type), lse
        self.case = dict(self.case, what="backward over saved out and lse")

    def contender(self, library, context):
        """Gradients in the dtype of what they belong to, planned beforehand: one plan a turn, all into one result."""
        torch, x = self.torch, self.turns[0]
        grads = tuple(torch.empty_like(x[name]) for name in "qkv")
        views, planned = [self.view(g) for g in grads], []
        for turn, x in enumerate(self.turns):
            forward_plan = self.planned(library, turn, x["out"])
            lse = unfold(self, x["lse"]).squeeze(-1).contiguous()
            d_out = self.view(self.d_out)
            forward_plan.problem.gradients.d_out = t.c.pointer(d_out)
            saved = t.Tensor(lse.data_ptr(), t.F32, list(lse.shape)), self.view(x["out"])
            planned.append(forward_plan.backward(*saved, views))
            planned[-1].keep = lse, d_out, saved

        def call(turn):
            planned[turn].run(context)
            return grads
        return call

    def reference(self, library):
        """float64, by automatic differentiation of the dense formula under a mask; nothing is shared with the peers."""
        torch, x, group = self.torch, self.turns[0], self.heads // self.kv_heads
        d_q = torch.zeros(self.length, self.heads, w.D, dtype=torch.float64)
        d_k, d_v = (torch.zeros(self.length, self.kv_heads, w.D, dtype=torch.float64) for _ in range(2))
        for h in range(self.heads):
            keep = torch.zeros(self.blocks, self.blocks, dtype=torch.bool)
            for row, lists in enumerate(x["lists"]):
                keep[row, lists[h // group]] = True
            keep = keep.repeat_interleave(self.block, 0).repeat_interleave(self.block, 1)
            q, k, v = (x[name][:, at].double().requires_grad_()
                       for name, at in (("q", h), ("k", h // group), ("v", h // group)))
            with torch.enable_grad():
                scores = (q @ k.T * w.D**-0.5).masked_fill(~keep, -torch.inf)
                (scores.softmax(-1) @ v).backward(self.d_out[:, h].double())
            d_q[:, h] += q.grad
            d_k[:, h // group] += k.grad
            d_v[:, h // group] += v.grad
        return torch.cat([g.flatten() for g in (d_q, d_k, d_v)])


# ---------------------------------------------------------------------------- the same work in torch

def fold(work, x):
    """[L, Hq, D] -> [Hkv * query blocks, rows of the group, D]."""
    group = work.heads // work.kv_heads
    return x.view(work.blocks, work.block, work.kv_heads, group, -1).permute(2, 0, 1, 3, 4).reshape(
        work.kv_heads * work.blocks, work.block * group, -1)


def unfold(work, x):
    group = work.heads // work.kv_heads
    return x.view(work.kv_heads, work.blocks, work.block, group, -1).permute(1, 2, 0, 3, 4).reshape(
        work.length, work.heads, -1)


def key_blocks(work, x):
    """[L, Hkv, D] -> [Hkv * key blocks, block, D]."""
    return x.view(work.blocks, work.block, work.kv_heads, -1).permute(2, 0, 1, 3).reshape(
        work.kv_heads * work.blocks, work.block, -1)


def listed(work, turn):
    """Which of key_blocks() each list holds, [Hkv * query blocks * listed]."""
    heads = work.torch.arange(work.kv_heads).view(-1, 1, 1)
    return (turn["blocks"] + heads * work.blocks).flatten()


def gathered(work, blocks, index):
    return blocks.index_select(0, index).view(work.kv_heads * work.blocks, -1, blocks.shape[-1])


def forward(work, turn):
    """(out, lse), folded, in float64: what a forward would have saved."""
    index = listed(work, turn)
    q = fold(work, turn["q"]).double()
    k, v = (gathered(work, key_blocks(work, turn[name]).double(), index) for name in "kv")
    scores = q @ k.transpose(1, 2) * w.D**-0.5
    lse = scores.logsumexp(-1, keepdim=True)
    return (scores - lse).exp() @ v, lse.float()


def gather_bmm(torch, work):
    """Gathers the listed key blocks, multiplies in batches, adds the gradients of a block up where several lists had
    it. Layouts are folded beforehand; softmax and sums are float32."""
    scale = w.D**-0.5
    folded = []
    for x in work.turns:
        folded.append((fold(work, x["q"]), key_blocks(work, x["k"]), key_blocks(work, x["v"]), fold(work, x["out"]),
                       fold(work, work.d_out), x["lse"], listed(work, x)))

    def call(turn):
        q, all_k, all_v, out, d_out, lse, index = folded[turn]
        k, v = gathered(work, all_k, index), gathered(work, all_v, index)
        p = ((q @ k.transpose(1, 2)).float() * scale - lse).exp()
        delta = (out.float() * d_out.float()).sum(-1, keepdim=True)
        d_s = (p * ((d_out @ v.transpose(1, 2)).float() - delta) * scale).to(q.dtype)

        def spread(parts):
            whole = torch.zeros(all_k.shape, dtype=torch.float32)
            whole.index_add_(0, index, parts.float().view(len(index), *all_k.shape[1:]))
            return whole.view(work.kv_heads, work.blocks, work.block, -1).permute(1, 2, 0, 3).reshape(
                work.length, work.kv_heads, -1).to(q.dtype)
        d_k, d_v = spread(d_s.transpose(1, 2) @ q), spread(p.to(q.dtype).transpose(1, 2) @ d_out)
        return unfold(work, d_s @ k), d_k, d_v
    return call


def flex_backward(torch, work):
    """Asked so that the record holds the reason of the day. Uncompiled: the compiler would hide it behind its own."""
    from torch.nn.attention.flex_attention import flex_attention
    x = work.turns[0]
    with torch.enable_grad():
        q, k, v = (x[name].transpose(0, 1)[None].clone().requires_grad_() for name in "qkv")
        flex_attention(q, k, v, enable_gqa=True).sum().backward()
    raise t.Failure("FlexAttention has a CPU backward now: give it a contender")


def peers(torch, work):
    return {"torch gather + bmm": lambda: gather_bmm(torch, work),
            "torch flex_attention": lambda: flex_backward(torch, work)}
