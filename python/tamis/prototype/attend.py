"""The call for any index set: rung 3 where rows stay whole, rung 4 where they are split."""
from .r3_ragged import check_index, ragged_attention
from .r4_split import choose_splits, split_attention


def attention(q, k, v, index, page_table, kv_len, *, scale=None, q_pos=None, request=None, splits=None,
              return_lse=False):
    """Sparse attention over a paged cache: rung 3, or rung 4 where rows are split.

    q           [N, Hq, D]           f16, bf16 or f32; N queries of all requests
    k           [pages, P, Hkv, D]   dtype of q; any strides but 1 in the last axis (HND: pass k.transpose(1, 2))
    v           [pages, P, Hkv, Dv]  likewise; D and Dv up to 256
    index       Index of N * Hi rows, row n * Hi + g, Hi one of 1, Hkv, Hq (see prepare)
    page_table  [B, max_pages] i32   physical page of a request's page; entries that no selected token needs may be junk
    kv_len      [B] i32              tokens of each request
    scale       1 / sqrt(D) unless given
    q_pos       [N] i32              given: causal, query n sees tokens t <= q_pos[n]. An index made by prepare has
                                     causality in its words and needs none
    request     [N] i32              request of each query; None: N = B, one query each
    splits      shares a row is cut into, 1 to 64; None: chosen from shapes alone, so it never waits for the device

    Returns out [N, Hq, Dv] in the dtype of q, with return_lse also LSE [N, Hq] f32 (natural logarithm). An empty row is
    0 with LSE -inf. Raises ValueError for shapes and dtypes that do not fit; values on the device are trusted.
    """
    check_index(q, k, v, index, page_table, kv_len, q_pos, request)
    if splits is None:
        splits = choose_splits(q, k, v, index)
    arguments = dict(scale=scale, q_pos=q_pos, request=request)
    if splits == 1:
        out, lse = ragged_attention(q, k, v, index, page_table, kv_len, **arguments)
    else:
        out, lse = split_attention(q, k, v, index, page_table, kv_len, splits=splits, **arguments)
    return (out, lse) if return_lse else out
