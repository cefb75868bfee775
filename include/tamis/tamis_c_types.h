/* The values of the C interface: errors, tensors, problems. tamis_c.h, which includes this file, has the
 * contract. */
#ifndef TAMIS_TAMIS_C_TYPES_H_
#define TAMIS_TAMIS_C_TYPES_H_

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Errors ------------------------------------------------------------------------------------------ */

/* The codes of docs/semantics.md section 10, in that order. */
typedef enum tamis_code {
  TAMIS_OK = 0,
  TAMIS_INVALID_ARGUMENT,
  TAMIS_INDEX_OUT_OF_RANGE,
  TAMIS_DUPLICATE_INDEX,
  TAMIS_UNSUPPORTED_SEMANTICS,
  TAMIS_PAGE_OUT_OF_RANGE,
  TAMIS_PAGE_UNMAPPED,
  TAMIS_FOREIGN_PAGE,
  TAMIS_WORKSPACE_TOO_SMALL,
  TAMIS_CAPACITY_EXCEEDED,
  TAMIS_STALE_PLAN,
  TAMIS_NOT_CAPTURABLE,
  TAMIS_UNSUPPORTED,
  TAMIS_IO_ERROR,
  TAMIS_DEVICE_ERROR
} tamis_code;

/* Which of the numbers of a tamis_error apply. */
enum {
  TAMIS_HAS_REQUEST = 1,
  TAMIS_HAS_ROW = 2,
  TAMIS_HAS_PAGE = 4,
  TAMIS_HAS_VALUE = 8,
  TAMIS_HAS_LIMIT = 16
};

/* Why a call failed, and where. Every call rewrites it: after success the code is 0 and the message empty.
 * `message` is the caller's buffer of `message_capacity` bytes; it may be NULL. A longer message is cut
 * between characters, and whatever fits ends with NUL. A tamis_error whose struct_size is refused is not
 * written to. */
typedef struct tamis_error {
  uint64_t struct_size;
  int32_t code;
  uint32_t has; /* TAMIS_HAS_... bits */
  char* message;
  uint64_t message_capacity;
  uint64_t message_length; /* of the whole message, without NUL */
  int64_t request;
  int64_t row;   /* candidate row */
  int64_t page;  /* logical page */
  int64_t value; /* the offending number; for pages the stored table entry */
  int64_t limit; /* the first value that is too large */
} tamis_error;

static inline void tamis_error_init(tamis_error* error, char* message, uint64_t capacity) {
  error->struct_size = sizeof *error;
  error->code = TAMIS_OK;
  error->has = 0;
  error->message = message;
  error->message_capacity = capacity;
  error->message_length = 0;
  error->request = error->row = error->page = error->value = error->limit = 0;
}

/* ---- Tensors ----------------------------------------------------------------------------------------- */

/* 0 is none, so that a forgotten field is refused. */
typedef enum tamis_dtype {
  TAMIS_F64 = 1,
  TAMIS_F32 = 2,
  TAMIS_F16 = 3,
  TAMIS_BF16 = 4,
  TAMIS_F8_E4M3 = 5,
  TAMIS_F8_E5M2 = 6,
  TAMIS_I64 = 7,
  TAMIS_I32 = 8,
  TAMIS_I16 = 9,
  TAMIS_I8 = 10,
  TAMIS_U64 = 11,
  TAMIS_U32 = 12,
  TAMIS_U16 = 13,
  TAMIS_U8 = 14, /* also int4, two per byte, with half the last extent */
  TAMIS_BOOL = 15
} tamis_dtype;

#define TAMIS_MAX_RANK 5

/* A strided view. Strides count elements and may be zero or negative; a scalar has rank 0. `data` may be NULL
 * when there are no elements, and must be aligned to the element. Inputs are only read. */
typedef struct tamis_tensor {
  uint64_t struct_size;
  void* data;
  int32_t dtype;
  int32_t rank;
  int64_t shape[TAMIS_MAX_RANK];
  int64_t stride[TAMIS_MAX_RANK];
} tamis_tensor;

/* A dense row-major view of `rank` (0 to TAMIS_MAX_RANK) extents. */
static inline tamis_tensor tamis_dense(const void* data, int32_t dtype, int32_t rank, const int64_t* shape) {
  tamis_tensor t;
  int64_t step = 1;
  t.struct_size = sizeof t;
  t.data = (void*)(uintptr_t)data;
  t.dtype = dtype;
  t.rank = rank;
  for (int axis = TAMIS_MAX_RANK - 1; axis >= 0; --axis) {
    t.shape[axis] = axis < rank ? shape[axis] : 0;
    t.stride[axis] = axis < rank ? step : 0;
    if (axis < rank) step *= shape[axis];
  }
  return t;
}

/* ---- The problem (problem.h, cache.h, candidates.h) -------------------------------------------------- */

/* NULL tensors are absent. B requests, Hq query heads, Hkv KV heads, Hi index heads, D and Dv head sizes, P
 * page. */
typedef struct tamis_query {
  const tamis_tensor* q;     /* [total_q, Hq, D] f32, f16 or bf16 */
  const tamis_tensor* cu_q;  /* [B + 1] i32: rows of each request */
  const tamis_tensor* q_pos; /* [total_q] i32, optional; else the last query is the last token */
} tamis_query;

typedef enum tamis_layout { TAMIS_NHD = 0, TAMIS_HND = 1 } tamis_layout;

typedef enum tamis_format {
  TAMIS_FORMAT_PLAIN = 0,
  TAMIS_FORMAT_INT8,
  TAMIS_FORMAT_FP8_E4M3,
  TAMIS_FORMAT_FP8_E5M2,
  TAMIS_FORMAT_INT4
} tamis_format;

typedef enum tamis_scale_kind {
  TAMIS_SCALE_TENSOR = 0,   /* [] */
  TAMIS_SCALE_HEAD,         /* [Hkv] */
  TAMIS_SCALE_PAGE,         /* [pages, Hkv] */
  TAMIS_SCALE_CHANNEL,      /* [Hkv, D] */
  TAMIS_SCALE_PAGE_CHANNEL, /* [pages, Hkv, D] */
  TAMIS_SCALE_TOKEN         /* k's shape less D */
} tamis_scale_kind;

typedef struct tamis_quantization {
  int32_t format; /* tamis_format */
  int32_t kind;   /* tamis_scale_kind */
  const tamis_tensor* scale;
} tamis_quantization;

/* Paged: k [pages, P, Hkv, D], with HND [pages, Hkv, P, D]. Contiguous: [total_kv, Hkv, D], [Hkv, total_kv,
 * D]. */
typedef struct tamis_cache {
  const tamis_tensor *k, *v;
  const tamis_tensor* kv_len;                     /* [B] i32: committed tokens */
  const tamis_tensor* page_table;                 /* [B, max_pages] i32; or */
  const tamis_tensor* cu_kv;                      /* [B + 1] i32; exactly one of the two */
  const tamis_tensor *page_stamps, *table_stamps; /* [pages], [B, max_pages] u64; both or neither */
  tamis_quantization k_quant, v_quant;
  int32_t layout; /* tamis_layout */
  int32_t reserved;
} tamis_cache;

typedef enum tamis_form {
  TAMIS_FORM_CSR = 0,     /* indptr [rows + 1] i32 or i64, indices [nnz] i32 */
  TAMIS_FORM_FIXED_WIDTH, /* indices [rows, K] i32, optional count [rows] i32 */
  TAMIS_FORM_NONE,        /* window and sink only */
  TAMIS_FORM_ALL          /* every token: full attention */
} tamis_form;

typedef enum tamis_on_duplicate { TAMIS_DUPLICATES_MERGE = 0, TAMIS_DUPLICATES_REJECT } tamis_on_duplicate;
typedef enum tamis_on_invalid { TAMIS_INVALID_REJECT = 0, TAMIS_INVALID_DROP } tamis_on_invalid;
typedef enum tamis_semantics {
  TAMIS_SET = 0,
  TAMIS_SEQUENCE,
  TAMIS_MULTISET
} tamis_semantics; /* only sets run */

typedef struct tamis_candidates {
  const tamis_tensor *indptr, *indices, *count;
  int32_t form;                           /* tamis_form; TAMIS_FORM_NONE after init */
  int32_t duplicates;                     /* tamis_on_duplicate */
  int32_t invalid;                        /* tamis_on_invalid */
  int32_t semantics;                      /* tamis_semantics */
  int64_t unit, query_block, index_heads; /* 1, 1, 1 after init */
} tamis_candidates;

typedef struct tamis_mask {
  int32_t causal; /* 0 or 1; 1 after init */
  int32_t reserved;
  int64_t window, sink; /* tokens */
} tamis_mask;

typedef struct tamis_score {
  double scale;      /* counts when has_scale is 1; else 1 / sqrt(D) */
  int32_t has_scale; /* 0 or 1 */
  int32_t reserved;
  double softcap;                   /* 0: none */
  const tamis_tensor* alibi_slopes; /* [Hq] f32, optional */
} tamis_score;

typedef struct tamis_dropout {
  double p;
  uint64_t seed;
} tamis_dropout;

typedef struct tamis_gradients {
  const tamis_tensor* d_out; /* [total_q, Hq, Dv] */
  const tamis_tensor* d_lse; /* [total_q, Hq] f32 */
} tamis_gradients;

/* Stands in for q, k and v where only the index is of interest. */
typedef struct tamis_index_only {
  uint64_t struct_size;
  int64_t q_heads, kv_heads, head_dim, v_head_dim;
  int64_t page_size; /* 0: contiguous */
  int64_t num_pages; /* 0: not stated */
  int32_t kv_bits;   /* of one K or V element; 0 is not allowed */
  int32_t reserved;
} tamis_index_only;

/* The groups never grow; what is added comes at the end, and its default is 0. Fields named reserved are 0.
 */
typedef struct tamis_problem {
  uint64_t struct_size;
  tamis_query query;
  tamis_cache cache;
  tamis_candidates candidates;
  tamis_mask mask;
  tamis_score score;
  tamis_dropout dropout;
  tamis_gradients gradients;
  const tamis_index_only* index_only; /* NULL: q, k and v are there */
} tamis_problem;

/* The sizes of a problem. */
typedef struct tamis_shape {
  uint64_t struct_size;
  int64_t requests, total_q;
  int64_t q_heads, kv_heads, index_heads, group;
  int64_t head_dim, v_head_dim;
  int64_t page_size, pages, max_pages; /* page_size 0: contiguous */
  int64_t kv_rows;                     /* of a contiguous cache */
  double scale;
  int32_t k_bits, v_bits; /* of one element */
  int32_t index_only;     /* 0 or 1 */
  int32_t reserved;
} tamis_shape;

/* ---- Results (attention.h) --------------------------------------------------------------------------- */

/* O * scale * gate, then the cast to out's dtype or its code; once, after splits are merged. A gate of 0
 * gives 0, where O is NaN too; an empty row stays 0. docs/epilogues.md. */
typedef struct tamis_epilogue {
  uint64_t struct_size;
  float scale; /* finite; 1 after init */
  int32_t reserved;
  const tamis_tensor* gate;         /* [total_q, Hq] f32, or NULL */
  const tamis_tensor* static_scale; /* [] or [Hq] f32: out holds codes under this scale; or NULL */
  const tamis_tensor* out_scale;    /* [total_q, Hq] f32, written: a scale for each row of codes; or NULL */
} tamis_epilogue;

/* A row is written only if its slot's live generation, read once right before the store, is the one its
 * request was admitted with; else it keeps its bytes and counts as stale. All three tensors are required.
 * docs/epilogues.md has what that promises to whoever reuses a slot. */
typedef struct tamis_slots {
  uint64_t struct_size;
  const tamis_tensor* slot;            /* [B] i32; -1: none */
  const tamis_tensor* generation;      /* [B] u32 */
  const tamis_tensor* live_generation; /* [slots] u32; other threads may change it meanwhile, atomically */
} tamis_slots;

typedef struct tamis_output {
  uint64_t struct_size;
  /* [total_q, Hq, Dv] f32, f16, bf16 or fp8, any strides; with a scale of the epilogue's i8 or fp8 codes */
  const tamis_tensor* out;
  const tamis_tensor* lse;        /* [total_q, Hq] f32, or NULL */
  const tamis_epilogue* epilogue; /* or NULL: none */
  const tamis_slots* slots;       /* or NULL: none */
} tamis_output;

#ifdef __cplusplus
}
#endif

#endif /* TAMIS_TAMIS_C_TYPES_H_ */
