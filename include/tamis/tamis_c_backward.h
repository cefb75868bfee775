/* Gradients (backward.h) in C. Included by tamis_c.h, whose first page holds for all of this. */
#ifndef TAMIS_TAMIS_C_BACKWARD_H_
#define TAMIS_TAMIS_C_BACKWARD_H_

#include "tamis/tamis_c.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Tasks of the gradients of one index set. Keeps that set alive, but not its content: once it is filled again
 * the plan is TAMIS_STALE_PLAN. */
typedef struct tamis_backward_plan tamis_backward_plan;
TAMIS_API int32_t tamis_backward_plan_create(tamis_backward_plan** plan, tamis_error* error);
TAMIS_API void tamis_backward_plan_destroy(tamis_backward_plan* plan);

typedef struct tamis_backward_options {
  uint64_t struct_size;
  const tamis_bundle_options* bundle; /* or NULL */
  int64_t slab_bytes; /* of weights and score gradients kept between the passes; 16 MiB after init */
} tamis_backward_options;

TAMIS_API void tamis_backward_options_init_sized(tamis_backward_options* options, uint64_t size);
static inline void tamis_backward_options_init(tamis_backward_options* o) {
  tamis_backward_options_init_sized(o, sizeof *o);
}

/* `index` must be one that was normalized for this problem's sizes, lengths and positions. `options` may be
 * NULL. */
TAMIS_API int32_t tamis_plan_backward(const tamis_problem* problem, const tamis_index_set* index,
                                      const tamis_backward_options* options, tamis_backward_plan* plan,
                                      tamis_error* error);

/* f32, f16 or bf16 in any strides: d_q [total_q, Hq, D], d_k and d_v shaped as k and v (int4: with the full
 * head size). All elements are written. */
typedef struct tamis_input_gradients {
  uint64_t struct_size;
  const tamis_tensor *d_q, *d_k, *d_v;
} tamis_input_gradients;

/* Bytes that tamis_run_backward needs for gradients as these; their memory is not touched. */
TAMIS_API int32_t tamis_backward_workspace_bytes(const tamis_backward_plan* plan,
                                                 const tamis_input_gradients* gradients, int64_t* bytes,
                                                 tamis_error* error);

/* d_out and d_lse are the problem's. */
typedef struct tamis_backward_step {
  uint64_t struct_size;
  const tamis_problem* problem;
  const tamis_backward_plan* plan;
  const tamis_tensor* lse; /* [total_q, Hq] f32, the forward's */
  const tamis_tensor*
      out; /* [total_q, Hq, Dv] f32, f16 or bf16, the forward's; or NULL, at the cost of a pass */
  const tamis_input_gradients* gradients;
  void* workspace;
  uint64_t workspace_bytes;
} tamis_backward_step;

typedef struct tamis_backward_counters {
  uint64_t struct_size;
  int64_t tasks, slabs, tiles, runs, owners;
  double clear_us, query_us, transpose_us, key_us;
} tamis_backward_counters;

/* Bitwise equal for any thread count. `counters`, overwritten, may be NULL. */
TAMIS_API int32_t tamis_run_backward(const tamis_backward_step* step, tamis_context* context,
                                     tamis_backward_counters* counters, tamis_error* error);

#ifdef __cplusplus
}
#endif

#endif /* TAMIS_TAMIS_C_BACKWARD_H_ */
