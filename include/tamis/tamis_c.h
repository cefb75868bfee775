/* The C interface, for bindings: all stages of Tamis in plain C11, call by call like the C++ headers beside
 * it. Gradients are in tamis_c_backward.h, the step on a CUDA device in tamis_c_step.h, layouts of candidate
 * rows in tamis_c_convert.h. Selection (select.h), tier edges (tiers.h), quantizers (quant.h, accuracy.h),
 * what a device step left (fetch), pictures, kept mass, base-2 LSE: C++ only. docs/c_api.md is a guide.
 * Longer than most headers: a binding reads the stages of the host in one file.
 *
 * Codes. Functions return an int32_t of tamis_code; 0 is ok. Details go to a tamis_error of the caller's,
 * which may be NULL. Nothing is printed and no exception leaves the library: no memory, or no thread to be
 * had, is TAMIS_CAPACITY_EXCEEDED. NULL where something is required is TAMIS_INVALID_ARGUMENT.
 *
 * Sizes. Structs that start with `struct_size` hold sizeof of the struct as the caller compiled it; the
 * ..._init functions set it, for output structs the caller does. A smaller one, from an older header, is
 * accepted: options it lacks keep their defaults, results it lacks are not written. A larger one, or one that
 * is no multiple of 8, is TAMIS_INVALID_ARGUMENT. Structs without struct_size never change within an ABI
 * version.
 *
 * Memory. Arrays are host memory of the caller's (of the device in tamis_c_step.h), never copied and never
 * kept after the call; a tamis_problem and what it points to must live through the calls it is given to.
 * Strings returned by pointer live as long as said.
 *
 * Handles. A handle is created empty, filled by the call that makes its content, which replaces what was
 * there, and left empty when that call fails; an empty handle is TAMIS_INVALID_ARGUMENT where content is
 * needed. Destroying NULL does nothing. A failed create sets its handle to NULL.
 *
 * Threads. Everything is re-entrant; one call at a time may use a context, a handle that it fills, or a
 * workspace. A call that uses bundles uses the index set behind them.
 *
 * Versions. Unstable until 1.0: compare tamis_abi_version() with TAMIS_ABI_VERSION and refuse to go on if
 * they differ. The number goes up when a program built with an older header could misbehave: a field or an
 * argument moved, removed or retyped, a number given a new meaning. It stays when functions, codes, or fields
 * at the end of a size-prefixed struct are added. */
#ifndef TAMIS_TAMIS_C_H_
#define TAMIS_TAMIS_C_H_

#include <stdint.h>

#include "tamis/tamis_c_types.h"

#ifdef __cplusplus
extern "C" {
#endif

#define TAMIS_ABI_VERSION 1

#if defined(_WIN32)
#define TAMIS_API
#else
#define TAMIS_API __attribute__((visibility("default")))
#endif

/* ---- Library ----------------------------------------------------------------------------------------- */

TAMIS_API int32_t tamis_abi_version(void);
TAMIS_API const char* tamis_version(void); /* static */

/* "invalid_argument" and so on; "unknown" for a number that is no code. Static. */
TAMIS_API const char* tamis_code_name(int32_t code);

/* The instruction sets the CPU kernels can use here, widest first. Writes at most `capacity` names, which are
 * static, and sets *count to how many there are. `names` may be NULL when `capacity` is 0. */
TAMIS_API int32_t tamis_cpu_isas(const char** names, int64_t capacity, int64_t* count, tamis_error* error);

typedef struct tamis_cuda_info {
  uint64_t struct_size;
  int32_t built_with_cuda; /* 0 or 1 */
  int32_t devices;         /* visible */
  int32_t major, minor;    /* compute capability of the device asked for, and so on */
  int32_t multiprocessors;
  int32_t driver, runtime; /* as CUDA counts: 13000 is 13.0 */
  int32_t reserved;
  uint64_t memory_bytes;
} tamis_cuda_info;

/* TAMIS_DEVICE_ERROR, with the reason, where there is no device or the build has no CUDA; `info` is filled
 * all the same. `device` counts from 0; a number at or above `devices` is TAMIS_INVALID_ARGUMENT. */
TAMIS_API int32_t tamis_cuda_status(int32_t device, tamis_cuda_info* info, tamis_error* error);

/* ---- Problems ---------------------------------------------------------------------------------------- */

/* Sets the first `size` bytes of *problem to the defaults; callers use the form without `_sized`, which knows
 * how large their struct is. Likewise for the options below. */
TAMIS_API void tamis_problem_init_sized(tamis_problem* problem, uint64_t size);
static inline void tamis_problem_init(tamis_problem* p) { tamis_problem_init_sized(p, sizeof *p); }

/* Checks all that needs no element of any array; reads no memory behind the tensors. */
TAMIS_API int32_t tamis_describe(const tamis_problem* problem, tamis_shape* shape, tamis_error* error);

/* ---- Index sets (index.h) ---------------------------------------------------------------------------- */

typedef struct tamis_index_set tamis_index_set;
TAMIS_API int32_t tamis_index_set_create(tamis_index_set** index, tamis_error* error);
TAMIS_API void tamis_index_set_destroy(tamis_index_set* index);

typedef enum tamis_ordering {
  TAMIS_ORDERING_AUTO = 0,
  TAMIS_ORDERING_BITMAP,
  TAMIS_ORDERING_SORT,
  TAMIS_ORDERING_HASH
} tamis_ordering;

typedef struct tamis_normalize_options {
  uint64_t struct_size;
  int32_t block;      /* 16, 32, 64, 128; 0: chosen */
  int32_t ordering;   /* tamis_ordering; all give the same set */
  int32_t all_blocks; /* 1: keep every block a row can see, listed or not, for the dense path */
  int32_t reserved;
} tamis_normalize_options;

TAMIS_API void tamis_normalize_options_init_sized(tamis_normalize_options* options, uint64_t size);
static inline void tamis_normalize_options_init(tamis_normalize_options* o) {
  tamis_normalize_options_init_sized(o, sizeof *o);
}

/* Validates candidates and pages and fills `index`, whose memory is reused. `options` may be NULL. */
TAMIS_API int32_t tamis_normalize(const tamis_problem* problem, const tamis_normalize_options* options,
                                  tamis_index_set* index, tamis_error* error);

/* Tokens [token, token + length) lie at slots [slot, slot + length). */
typedef struct tamis_span {
  int32_t token, length;
  int64_t slot;
} tamis_span;

typedef struct tamis_row_info {
  int32_t request, index_head;
  int32_t first_query, last_query; /* [first, last) of total_q */
} tamis_row_info;

/* What index.h calls IndexView. Valid until the set is filled again or destroyed. */
typedef struct tamis_index_arrays {
  uint64_t struct_size;
  int64_t rows, entries;
  int32_t block, words;
  const tamis_row_info* row; /* [rows] */
  const int64_t* begin;      /* [rows] */
  const int32_t* count;      /* [rows] */
  const int32_t* blocks;     /* [entries] */
  const uint64_t* members;   /* [entries * words] */
  const uint8_t* full;       /* [entries] */
  const int64_t* span_begin; /* [entries + 1] */
  const tamis_span* spans;   /* [span_begin[entries]] */
} tamis_index_arrays;

TAMIS_API int32_t tamis_index_view(const tamis_index_set* index, tamis_index_arrays* arrays,
                                   tamis_error* error);

/* The set of docs/semantics.md section 4 of one query and index head, rebuilt from the index: tokens
 * ascending. Writes at most `capacity` of them and sets *count to how many there are; `tokens` may be NULL
 * when `capacity` is 0. `problem` must be the one that `index` was made of. */
TAMIS_API int32_t tamis_expand_set(const tamis_problem* problem, const tamis_index_set* index, int64_t query,
                                   int64_t index_head, int32_t* tokens, int64_t capacity, int64_t* count,
                                   tamis_error* error);
/* All of them, query by query, the index heads of one together: set i is tokens[indptr[i], indptr[i + 1]).
 * `indptr` is written whole, [total_q * index_heads + 1]; of the tokens the first `capacity`. */
TAMIS_API int32_t tamis_expand_sets(const tamis_problem* problem, const tamis_index_set* index,
                                    int64_t* indptr, int32_t* tokens, int64_t capacity, int64_t* count,
                                    tamis_error* error);

typedef struct tamis_percentiles {
  int64_t p50, p95, max;
} tamis_percentiles;

typedef struct tamis_index_summary {
  uint64_t struct_size;
  int64_t raw, padding, invalid, duplicates, unique; /* entries; raw is the sum of the other four */
  int64_t future;                                    /* unique entries that no query may see yet */
  int64_t empty_rows;                                /* candidate rows without a block */
  int64_t blocks, spans;
  int64_t touched_pages; /* (request, logical page) pairs */
  int64_t gaps;          /* places where a row's next block is no neighbour */
  int64_t rows_bitmap, rows_sort, rows_hash;
  tamis_percentiles row_blocks; /* blocks of a row */
} tamis_index_summary;

TAMIS_API int32_t tamis_index_stats(const tamis_index_set* index, tamis_index_summary* summary,
                                    tamis_error* error);

/* Rows that share a (request, block): a pass over the set. */
TAMIS_API int32_t tamis_index_reuse(const tamis_index_set* index, tamis_percentiles* reuse,
                                    tamis_error* error);

/* ---- Bundles (bundle.h) ------------------------------------------------------------------------------ */

/* Bundles keep the index set they were made of alive, but not its content: once that set is filled again they
 * are TAMIS_STALE_PLAN. */
typedef struct tamis_bundles tamis_bundles;
TAMIS_API int32_t tamis_bundles_create(tamis_bundles** bundles, tamis_error* error);
TAMIS_API void tamis_bundles_destroy(tamis_bundles* bundles);

typedef enum tamis_bundle_policy {
  TAMIS_BUNDLE_AUTO = 0,  /* the cheapest of the others */
  TAMIS_BUNDLE_ROWS,      /* one row a bundle */
  TAMIS_BUNDLE_HEADS,     /* the lists of a KV head's query heads together */
  TAMIS_BUNDLE_NEIGHBOURS /* also consecutive query blocks */
} tamis_bundle_policy;

typedef struct tamis_bundle_options {
  uint64_t struct_size;
  int32_t policy;     /* tamis_bundle_policy */
  int32_t neighbours; /* query blocks joined by TAMIS_BUNDLE_NEIGHBOURS; 4 after init */
} tamis_bundle_options;

TAMIS_API void tamis_bundle_options_init_sized(tamis_bundle_options* options, uint64_t size);
static inline void tamis_bundle_options_init(tamis_bundle_options* o) {
  tamis_bundle_options_init_sized(o, sizeof *o);
}

/* `problem` must be the one `index` was made of. `options` may be NULL. */
TAMIS_API int32_t tamis_bundle(const tamis_problem* problem, const tamis_index_set* index,
                               const tamis_bundle_options* options, tamis_bundles* bundles,
                               tamis_error* error);

typedef struct tamis_bundle_summary {
  uint64_t struct_size;
  int32_t policy, neighbours; /* taken */
  int64_t bundles;
  int64_t listed_blocks; /* of all rows, one by one */
  int64_t union_blocks;  /* of all bundles: what is loaded once */
} tamis_bundle_summary;

TAMIS_API int32_t tamis_bundle_stats(const tamis_bundles* bundles, tamis_bundle_summary* summary,
                                     tamis_error* error);

/* ---- Plans and schedules (plan.h) -------------------------------------------------------------------- */

typedef struct tamis_plan tamis_plan;
TAMIS_API int32_t tamis_plan_create(tamis_plan** plan, tamis_error* error);
TAMIS_API void tamis_plan_destroy(tamis_plan* plan);

typedef enum tamis_backend { TAMIS_REFERENCE = 0, TAMIS_CPU, TAMIS_CUDA } tamis_backend;
typedef enum tamis_path {
  TAMIS_PATH_AUTO = 0,
  TAMIS_PATH_DIRECT,
  TAMIS_PATH_GATHER,
  TAMIS_PATH_DENSE
} tamis_path;
typedef enum tamis_fallback { TAMIS_FALLBACK_ALLOW = 0, TAMIS_FALLBACK_REFUSE } tamis_fallback;

/* What a plan must be able to hold; sizes follow from these alone. */
typedef struct tamis_capacities {
  uint64_t struct_size;
  int64_t requests, queries;
  int64_t rows;        /* candidate rows */
  int64_t entries;     /* blocks of all bundles */
  int64_t row_entries; /* blocks of one bundle */
  int64_t group_rows;  /* query rows of one bundle and KV head; 0: as many as `queries` allow */
} tamis_capacities;

/* The capacities that exactly hold these bundles of this problem. */
TAMIS_API int32_t tamis_capacities_of(const tamis_problem* problem, const tamis_bundles* bundles,
                                      tamis_capacities* capacities, tamis_error* error);

typedef struct tamis_plan_options {
  uint64_t struct_size;
  int32_t backend;  /* tamis_backend; TAMIS_CPU after init */
  int32_t path;     /* tamis_path */
  int32_t fallback; /* tamis_fallback */
  int32_t splits;   /* 0: balanced; else parts of every row */
  int32_t batch_invariant;
  int32_t shares;    /* equal shares a balanced schedule aims at; 0: the backend's */
  int32_t min_tiles; /* of a part, below which a row is not split; 0: the backend's for this mode */
  int32_t reserved;
  int64_t workspace_budget; /* bytes; -1, set by init: no limit */
} tamis_plan_options;

TAMIS_API void tamis_plan_options_init_sized(tamis_plan_options* options, uint64_t size);
static inline void tamis_plan_options_init(tamis_plan_options* o) {
  tamis_plan_options_init_sized(o, sizeof *o);
}

/* Plans by shapes and capacities, for index sets of `block` tokens. `options` may be NULL. */
TAMIS_API int32_t tamis_plan_make(const tamis_problem* problem, const tamis_capacities* capacities,
                                  int32_t block, const tamis_plan_options* options, tamis_plan* plan,
                                  tamis_error* error);

typedef struct tamis_plan_summary {
  uint64_t struct_size;
  const char* reason; /* why this path, block or split count; "" when as asked. Lives as long as the plan */
  int32_t backend, path;
  int32_t block, tile; /* tokens */
  int32_t splits;      /* forced count, or 0 */
  int32_t batch_invariant;
  int32_t shares;
  int32_t reserved;
  int64_t min_part, max_parts;
  int64_t workspace_bound;   /* bytes, enough for any step within the capacities */
  int64_t workspace_typical; /* bytes, enough where rows are of like length */
  uint64_t fingerprint;
} tamis_plan_summary;

TAMIS_API int32_t tamis_plan_info(const tamis_plan* plan, tamis_plan_summary* summary, tamis_error* error);

typedef struct tamis_schedule tamis_schedule;
TAMIS_API int32_t tamis_schedule_create(tamis_schedule** schedule, tamis_error* error);
TAMIS_API void tamis_schedule_destroy(tamis_schedule* schedule);

TAMIS_API int32_t tamis_schedule_make(const tamis_plan* plan, const tamis_bundles* bundles,
                                      tamis_schedule* schedule, tamis_error* error);

typedef struct tamis_schedule_summary {
  uint64_t struct_size;
  int64_t tasks, split_rows, parts, empty_tasks;
  tamis_percentiles task_blocks;
  int64_t workspace_bytes;
  uint64_t fingerprint, stamp;
} tamis_schedule_summary;

TAMIS_API int32_t tamis_schedule_info(const tamis_schedule* schedule, tamis_schedule_summary* summary,
                                      tamis_error* error);

/* Bytes of workspace that tamis_run needs for this schedule. */
TAMIS_API int32_t tamis_workspace_bytes(const tamis_plan* plan, const tamis_schedule* schedule,
                                        int64_t* bytes, tamis_error* error);

/* ---- Running (attention.h) --------------------------------------------------------------------------- */

/* The CPU threads of a caller. */
typedef struct tamis_context tamis_context;

/* `threads` 0: as many as the machine has. `isa`: one of tamis_cpu_isas(), or NULL for the best. */
TAMIS_API int32_t tamis_context_create(int32_t threads, const char* isa, tamis_context** context,
                                       tamis_error* error);
TAMIS_API void tamis_context_destroy(tamis_context* context);

TAMIS_API void tamis_epilogue_init_sized(tamis_epilogue* epilogue, uint64_t size);
static inline void tamis_epilogue_init(tamis_epilogue* e) { tamis_epilogue_init_sized(e, sizeof *e); }

/* Counts of runs, added to what is there. */
typedef struct tamis_run_counters {
  uint64_t struct_size;
  int64_t tasks, tiles;
  int64_t tokens_loaded; /* K/V rows brought in, per KV head */
  /* Times a query row was summed over its own tokens only, per tile, because another row's V was not
   * finite. */
  int64_t rows_redone;
  int64_t empty_rows; /* (query, query head) with an empty set */
  double attention_us, merge_us;
  int64_t stale_rows; /* (query, query head) not written because their slot was reused */
  int64_t saturated;  /* values of an i8 or fp8 out beyond its range, or NaN lost to i8 */
} tamis_run_counters;

/* One planned step. The workspace holds tamis_workspace_bytes() or more, on a multiple of 4 bytes; it is dead
 * afterwards and need not be initialized. */
typedef struct tamis_step {
  uint64_t struct_size;
  const tamis_problem* problem;
  const tamis_bundles* bundles;
  const tamis_plan* plan;
  const tamis_schedule* schedule;
  const tamis_output* output;
  void* workspace;
  uint64_t workspace_bytes;
} tamis_step;

/* Bitwise equal for any thread count. TAMIS_STALE_PLAN when the parts of the step do not belong together,
 * TAMIS_WORKSPACE_TOO_SMALL with the bytes needed as `limit`; nothing is read or written then. `counters` may
 * be NULL. */
TAMIS_API int32_t tamis_run(const tamis_step* step, tamis_context* context, tamis_run_counters* counters,
                            tamis_error* error);

/* NULL members stand for the defaults. */
typedef struct tamis_forward_options {
  uint64_t struct_size;
  const tamis_normalize_options* normalize;
  const tamis_bundle_options* bundle;
  const tamis_plan_options* plan;
} tamis_forward_options;

/* What a forward did. The caller sets struct_size, the reason buffer (cut like an error's message) and
 * pointers to the summaries it wants; the rest, and the summaries, are filled. */
typedef struct tamis_forward_report {
  uint64_t struct_size;
  char* reason; /* or NULL */
  uint64_t reason_capacity;
  tamis_index_summary* index;       /* or NULL, and so on */
  tamis_bundle_summary* bundles;    /* its `bundles` count is 0 here */
  tamis_schedule_summary* schedule; /* its fingerprint and stamp are 0 here */
  tamis_run_counters* counters;     /* added to */
  int32_t path, block, tile;
  int32_t reserved;
  double normalize_us, plan_us, attention_us, merge_us, total_us;
} tamis_forward_report;

/* normalize, bundle, plan, schedule and run in one call, which allocates what it needs. `options` and
 * `report` may be NULL. The CPU backend only. */
TAMIS_API int32_t tamis_forward(const tamis_problem* problem, const tamis_forward_options* options,
                                const tamis_output* output, tamis_context* context,
                                tamis_forward_report* report, tamis_error* error);

/* The float64 judge (reference.h), into dense arrays: out [total_q, Hq, Dv], lse [total_q, Hq]. The counts
 * are of elements and must match exactly; either array may be NULL with count 0. */
TAMIS_API int32_t tamis_reference_forward(const tamis_problem* problem, double* out, int64_t out_count,
                                          double* lse, int64_t lse_count, tamis_error* error);

/* ---- Merging (merge.h) ------------------------------------------------------------------------------- */

/* Merges `count` normalized results of disjoint key sets, in order: outs[s] is [rows, dim], lses[s] is
 * [rows], dense f32. An LSE of -inf weighs nothing. `out` and `lse` may be among the inputs. */
TAMIS_API int32_t tamis_merge_states(int64_t count, const float* const* outs, const float* const* lses,
                                     int64_t rows, int64_t dim, float* out, float* lse, tamis_error* error);

/* out = sum over s of gates[s][row] * outs[s][row]; a gate of 0 skips its branch, NaN included. */
TAMIS_API int32_t tamis_gated_sum(int64_t count, const float* const* outs, const float* const* gates,
                                  int64_t rows, int64_t dim, float* out, tamis_error* error);

/* ---- The accounting (explain.h) ---------------------------------------------------------------------- */

typedef struct tamis_explain_options {
  uint64_t struct_size;
  int64_t tile;     /* tokens; 64 after init */
  int64_t splits;   /* 1 after init */
  double bandwidth; /* bytes per second; 0: no floor */
} tamis_explain_options;

TAMIS_API void tamis_explain_options_init_sized(tamis_explain_options* options, uint64_t size);
static inline void tamis_explain_options_init(tamis_explain_options* o) {
  tamis_explain_options_init_sized(o, sizeof *o);
}

/* docs/explain.md has the formulas. Workspaces are bytes, workspace_splits a number. */
typedef struct tamis_accounting {
  uint64_t struct_size;
  int64_t rows, kv_heads, selected_tokens, touched_pages, tiles_aligned, tiles_packed;
  double tile_efficiency_aligned, tile_efficiency_packed, block_utilization;
  int64_t bytes_logical, bytes_pages, bytes_aligned, bytes_dense;
  double compression_logical, compression_aligned;
  int64_t index_bytes, index_bytes_normalized, scale_bytes, transaction_bytes;
  double transaction_efficiency;
  int64_t flops_logical, flops_aligned;
  int64_t workspace_splits, workspace_partial_o, workspace_partial_ml, workspace_total;
  double floor_us;
} tamis_accounting;

/* Reads no K and V, checks no pages. `options` may be NULL. */
TAMIS_API int32_t tamis_explain(const tamis_problem* problem, const tamis_explain_options* options,
                                tamis_accounting* accounting, tamis_error* error);

/* ---- Case files (io.h) ------------------------------------------------------------------------------- */

/* Reads a case file and checks all its arguments. A build without TAMIS_IO answers TAMIS_UNSUPPORTED. */
typedef struct tamis_case tamis_case;
TAMIS_API int32_t tamis_read_case(const char* path, tamis_case** file, tamis_error* error);
TAMIS_API void tamis_case_free(tamis_case* file);
/* Its problem, with arrays that live until the case is freed. The caller sets struct_size. */
TAMIS_API int32_t tamis_case_problem(const tamis_case* file, tamis_problem* problem, tamis_error* error);

/* Writes the case file that reads as `problem`, whole or not at all. `keys` and `values`: `count` texts of
 * metadata of the caller's, under keys of its own. */
TAMIS_API int32_t tamis_write_case(const char* path, const tamis_problem* problem, const char* const* keys,
                                   const char* const* values, int64_t count, tamis_error* error);

#ifdef __cplusplus
}
#endif

#endif /* TAMIS_TAMIS_C_H_ */
