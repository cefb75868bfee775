/* A decode step on a CUDA device (cuda.h) in C. The first page of tamis_c.h holds for all of this, but for
 * where arrays are: tensors of the problem and the output, the buffers and the counters are device memory of
 * the caller's, and they must live until the stream is done with them. `fetch` is C++ only.
 *
 * A stream is a cudaStream_t, NULL the default one. Nothing but tamis_cuda_poll waits for the device, nothing
 * allocates on it, and what is launched may be captured into a CUDA graph; a graph keeps the pointers and
 * extents it was captured with. From tamis_cuda_normalize to the last tamis_cuda_run of its index set lists,
 * lengths, cu_q, the page table and, where there is a mask, q_pos stay as they are: q_pos that changed is not
 * noticed. One set of buffers has one user at a time.
 *
 * What only the device can know is judged there: a batch that is refused leaves NaN in out and lse, the calls
 * that launched it have answered TAMIS_OK long before, and tamis_cuda_poll answers the code.
 *
 * A build without CUDA answers TAMIS_DEVICE_ERROR. */
#ifndef TAMIS_TAMIS_C_STEP_H_
#define TAMIS_TAMIS_C_STEP_H_

#include "tamis/tamis_c.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Makes `device` the current one of the calling thread, as cudaSetDevice does, and sets *previous, which may
 * be NULL, to the one before. All calls below launch on the current device, so for a stream and arrays of
 * another one, come here first; the calls that only plan need none. */
TAMIS_API int32_t tamis_cuda_use_device(int32_t device, int32_t* previous, tamis_error* error);

/* ---- The plan ---------------------------------------------------------------------------------------- */

/* What a step launches and how large its buffers are; made from extents and dtypes alone, without a device.
 */
typedef struct tamis_cuda_plan tamis_cuda_plan;
TAMIS_API int32_t tamis_cuda_plan_create(tamis_cuda_plan** plan, tamis_error* error);
TAMIS_API void tamis_cuda_plan_destroy(tamis_cuda_plan* plan);

/* How K and V come in. */
typedef enum tamis_cuda_load {
  TAMIS_CUDA_LOAD_AUTO = 0,
  TAMIS_CUDA_LOAD_BLOCKS, /* 16 neighbouring tokens of a block at a time */
  TAMIS_CUDA_LOAD_TOKENS  /* 16 selected tokens at a time, from wherever they are */
} tamis_cuda_load;

/* Which kernel computes. */
typedef enum tamis_cuda_engine {
  TAMIS_CUDA_ENGINE_AUTO = 0, /* decode */
  TAMIS_CUDA_ENGINE_DECODE,   /* 8 or 16 query rows a CTA: every problem, compute capability 8.0 and later */
  TAMIS_CUDA_ENGINE_PREFILL   /* 128 query rows a CTA, for many queries: compute capability 9.0, see cuda.h */
} tamis_cuda_engine;

/* How much of K and V a CTA has under way in shared memory. */
typedef enum tamis_cuda_ring {
  TAMIS_CUDA_RING_AUTO = 0, /* full where the device has shared memory for it, known where a run launches */
  TAMIS_CUDA_RING_FULL,     /* 111 KB a CTA in all, 142 KB for head sizes above 128 */
  TAMIS_CUDA_RING_SHORT     /* at most 79 KB */
} tamis_cuda_ring;

typedef struct tamis_cuda_plan_options {
  uint64_t struct_size;
  const tamis_plan_options* plan; /* or NULL; its backend is taken as TAMIS_CUDA */
  int32_t block;                  /* 16, 32 or 64 tokens; 0: chosen */
  int32_t load;                   /* tamis_cuda_load */
  double density; /* of earlier steps, see tamis_cuda_stats; at most 1; below 0, as after init: not known */
  int64_t row_entries; /* blocks that one bundle may hold; 0: as many as candidates and mask can bring, see
                          cuda.h */
  int64_t max_kv_len;  /* tokens of a request; 0: what the page table or the cache holds */
  int32_t ring;        /* tamis_cuda_ring */
  int32_t engine;      /* tamis_cuda_engine */
} tamis_cuda_plan_options;

TAMIS_API void tamis_cuda_plan_options_init_sized(tamis_cuda_plan_options* options, uint64_t size);
static inline void tamis_cuda_plan_options_init(tamis_cuda_plan_options* o) {
  tamis_cuda_plan_options_init_sized(o, sizeof *o);
}

/* Reads no array. TAMIS_UNSUPPORTED, naming the property, where no kernel computes the problem. `options` may
 * be NULL. */
TAMIS_API int32_t tamis_cuda_plan_make(const tamis_problem* problem, const tamis_cuda_plan_options* options,
                                       tamis_cuda_plan* plan, tamis_error* error);

/* Strings but the names of path and load, which are static, live until the plan is filled again or destroyed.
 */
typedef struct tamis_cuda_plan_summary {
  uint64_t struct_size;
  const char* kernel;                    /* its row of the kernel table */
  const char* reason;                    /* why this path, block, load or split count; "" when as asked */
  const char* path_name;                 /* "direct" and so on */
  const char* load_name;                 /* "blocks" or "tokens" */
  uint64_t fingerprint;                  /* of the shapes the plan holds for */
  int32_t path;                          /* tamis_path */
  int32_t block;                         /* tokens */
  int32_t load;                          /* tamis_cuda_load */
  int32_t columns;                       /* query rows a CTA computes at a time */
  int32_t lists;                         /* candidate rows of a bundle */
  int32_t ring;                          /* tamis_cuda_ring, as asked for */
  int64_t bundles, groups, tasks, parts; /* most of each; a group is a bundle for one KV head */
  int64_t column_tiles;                  /* CTAs a task */
  int64_t row_entries, max_kv_len;       /* that the plan holds */
  int32_t engine;                        /* tamis_cuda_engine, never auto */
  int32_t reserved;
} tamis_cuda_plan_summary;

TAMIS_API int32_t tamis_cuda_plan_info(const tamis_cuda_plan* plan, tamis_cuda_plan_summary* summary,
                                       tamis_error* error);

/* ---- Buffers ----------------------------------------------------------------------------------------- */

typedef struct tamis_cuda_sizes {
  uint64_t struct_size;
  int64_t control; /* verdict and statistics: one for each user of the other two */
  int64_t index;   /* shared by layers that share lists */
  int64_t scratch; /* one a stream */
} tamis_cuda_sizes;

TAMIS_API int32_t tamis_cuda_plan_sizes(const tamis_cuda_plan* plan, tamis_cuda_sizes* sizes,
                                        tamis_error* error);

/* Device memory, each on a 256-byte line, with the bytes there are: the plan's or more, else
 * TAMIS_WORKSPACE_TOO_SMALL. They do not overlap. */
typedef struct tamis_cuda_buffers {
  uint64_t struct_size;
  void *control, *index, *scratch;
  int64_t control_bytes, index_bytes, scratch_bytes;
} tamis_cuda_buffers;

/* Once for each new control buffer, before its first step. A control counts anew from here, also one that was
 * used before: an index set and scratch that went with it are normalized and scheduled again before they run.
 */
TAMIS_API int32_t tamis_cuda_clear(const tamis_cuda_plan* plan, const tamis_cuda_buffers* buffers,
                                   void* stream, tamis_error* error);

/* ---- Steps ------------------------------------------------------------------------------------------- */

/* Counts of runs, on the device, on a multiple of 8 bytes; each run adds to them. */
typedef struct tamis_cuda_counters {
  uint64_t tasks, tiles;
  uint64_t tokens_loaded; /* per KV head */
  uint64_t rows_redone;   /* query rows summed again, alone, because a V beside theirs was not finite */
  uint64_t empty_rows, stale_rows; /* (query, query head) */
} tamis_cuda_counters;

/* Candidates to index set. */
TAMIS_API int32_t tamis_cuda_normalize(const tamis_cuda_plan* plan, const tamis_problem* problem,
                                       const tamis_cuda_buffers* buffers, void* stream, tamis_error* error);

/* Index set to tasks; judges the batch. After every tamis_cuda_normalize, before the first tamis_cuda_run. */
TAMIS_API int32_t tamis_cuda_schedule(const tamis_cuda_plan* plan, const tamis_cuda_buffers* buffers,
                                      void* stream, tamis_error* error);

/* Attention and merge, any number of times after one tamis_cuda_schedule (layers that share lists). out: f32,
 * f16 or bf16; slots are honoured, an epilogue other than the default is TAMIS_UNSUPPORTED. A step that was
 * not scheduled, or scratch that another plan has used since, is polled as TAMIS_STALE_PLAN. `counters` may
 * be NULL. */
TAMIS_API int32_t tamis_cuda_run(const tamis_cuda_plan* plan, const tamis_problem* problem,
                                 const tamis_output* output, const tamis_cuda_buffers* buffers, void* stream,
                                 tamis_cuda_counters* counters, tamis_error* error);

/* tamis_cuda_normalize, tamis_cuda_schedule, tamis_cuda_run. What only a launch can refuse (the device's
 * shared memory or compute capability, an error of the runtime) comes after stages that are launched or
 * captured already; all else before the first. */
TAMIS_API int32_t tamis_cuda_step(const tamis_cuda_plan* plan, const tamis_problem* problem,
                                  const tamis_output* output, const tamis_cuda_buffers* buffers, void* stream,
                                  tamis_cuda_counters* counters, tamis_error* error);

/* Sums over the bundles of the last step that was scheduled. A bundle whose lists hold 2^31 entries or more
 * adds 2^31 - 1 to each class of entries, and what there are to `raw`. */
typedef struct tamis_cuda_stats {
  uint64_t struct_size;
  int64_t raw, padding, invalid, duplicates, unique, future; /* entries */
  int64_t bundles, empty_bundles, blocks, gaps;
  int64_t touched_pages; /* a page that two bundles touch counts twice */
  int64_t selected;      /* tokens of bundles that some query sees */
  int64_t tasks, parts, most_parts;
  uint64_t epoch; /* steps scheduled with this control buffer */
  double density; /* selected tokens per token of the blocks, for the next plan's options; 1 without blocks */
} tamis_cuda_stats;

/* Waits for the stream, then answers what the device made of the last step: TAMIS_OK, or the first offence,
 * with request, row, page and value in `error` where they apply. `stats`, which may be NULL, is filled either
 * way; it keeps its content only when the device could not be asked. TAMIS_NOT_CAPTURABLE while the stream is
 * being captured. */
TAMIS_API int32_t tamis_cuda_poll(const tamis_cuda_plan* plan, const tamis_cuda_buffers* buffers,
                                  void* stream, tamis_cuda_stats* stats, tamis_error* error);

#ifdef __cplusplus
}
#endif

#endif /* TAMIS_TAMIS_C_STEP_H_ */
