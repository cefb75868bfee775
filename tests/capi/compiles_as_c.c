/* The headers must be C: this file is compiled by a C compiler. */
#include "tamis/tamis_c.h"
#include "tamis/tamis_c_backward.h"
#include "tamis/tamis_c_convert.h"
#include "tamis/tamis_c_step.h"

int tamis_header_compiles_as_c(void);

/* Every inline function is used, so that none hides a fault. */
int tamis_header_compiles_as_c(void) {
  const int64_t shape[] = {2, 3};
  const float data[6] = {0};
  const tamis_tensor t = tamis_dense(data, TAMIS_F32, 2, shape);
  char message[8];
  tamis_error error;
  tamis_problem problem;
  tamis_normalize_options normalize;
  tamis_bundle_options bundle;
  tamis_plan_options plan;
  tamis_explain_options explain;
  tamis_epilogue epilogue;
  tamis_backward_options backward;
  tamis_cuda_plan_options step;
  tamis_code code = TAMIS_OK;
  tamis_error_init(&error, message, sizeof message);
  tamis_problem_init(&problem);
  tamis_normalize_options_init(&normalize);
  tamis_bundle_options_init(&bundle);
  tamis_plan_options_init(&plan);
  tamis_explain_options_init(&explain);
  tamis_epilogue_init(&epilogue);
  tamis_backward_options_init(&backward);
  tamis_cuda_plan_options_init(&step);
  if (t.stride[0] != 3 || t.stride[1] != 1 || t.data != (const void*)data) return -1;
  if (problem.mask.causal != 1 || problem.candidates.unit != 1 || problem.candidates.query_block != 1 ||
      problem.candidates.index_heads != 1 || problem.candidates.form != TAMIS_FORM_NONE ||
      problem.score.has_scale != 0 || problem.query.q || problem.index_only)
    return -2;
  if (normalize.block != 0 || bundle.neighbours != 4 || plan.backend != TAMIS_CPU ||
      plan.workspace_budget != -1 || epilogue.scale != 1 || epilogue.gate || epilogue.out_scale ||
      explain.tile != 64 || explain.splits != 1)
    return -3;
  if (backward.slab_bytes <= 0 || backward.bundle || step.density != -1 || step.block != 0 ||
      step.load != TAMIS_CUDA_LOAD_AUTO || step.plan)
    return -5;
  if (error.struct_size != sizeof error || problem.struct_size != sizeof problem) return -4;
  return code == TAMIS_OK ? tamis_abi_version() : -1;
}
