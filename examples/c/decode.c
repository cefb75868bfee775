/* One decode step in plain C: two requests over a paged cache, four query heads on two KV heads.
 *
 * Each stage is called by itself, so that everything it makes can be looked at and the workspace is ours. A
 * tamis_forward() would do the same in one call. The last part shows what an error carries. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <tamis/tamis_c.h>

enum { kRequests = 2, kQHeads = 4, kKvHeads = 2, kDim = 8, kPage = 4, kPages = 6, kMaxPages = 3, kWidth = 4 };

/* Everything a step needs. Handles are created once and filled again in every step. */
typedef struct Engine {
  tamis_context* context;
  tamis_index_set* index;
  tamis_bundles* bundles;
  tamis_plan* plan;
  tamis_schedule* schedule;
  tamis_error error;
  char message[256];
} Engine;

static int report(const tamis_error* e) {
  printf("%s: %s\n", tamis_code_name(e->code), e->message);
  if (e->has & TAMIS_HAS_REQUEST) printf("  request %lld\n", (long long)e->request);
  if (e->has & TAMIS_HAS_ROW) printf("  row %lld\n", (long long)e->row);
  if (e->has & TAMIS_HAS_PAGE) printf("  page %lld\n", (long long)e->page);
  if (e->has & TAMIS_HAS_VALUE) printf("  value %lld\n", (long long)e->value);
  if (e->has & TAMIS_HAS_LIMIT) printf("  limit %lld\n", (long long)e->limit);
  return e->code;
}

static int open_engine(Engine* engine) {
  tamis_error* e = &engine->error;
  tamis_error_init(e, engine->message, sizeof engine->message);
  if (tamis_context_create(1, NULL, &engine->context, e)) return report(e);
  if (tamis_index_set_create(&engine->index, e)) return report(e);
  if (tamis_bundles_create(&engine->bundles, e)) return report(e);
  if (tamis_plan_create(&engine->plan, e)) return report(e);
  if (tamis_schedule_create(&engine->schedule, e)) return report(e);
  return TAMIS_OK;
}

static void close_engine(Engine* engine) { /* each may be NULL */
  tamis_schedule_destroy(engine->schedule);
  tamis_plan_destroy(engine->plan);
  tamis_bundles_destroy(engine->bundles);
  tamis_index_set_destroy(engine->index);
  tamis_context_destroy(engine->context);
}

/* normalize, bundle, plan, schedule: lists become tasks. */
static int prepare(Engine* engine, const tamis_problem* problem) {
  tamis_error* e = &engine->error;
  tamis_index_arrays index = {.struct_size = sizeof index};
  tamis_capacities capacities = {.struct_size = sizeof capacities};
  tamis_plan_summary plan = {.struct_size = sizeof plan};
  if (tamis_normalize(problem, NULL, engine->index, e)) return report(e);
  if (tamis_bundle(problem, engine->index, NULL, engine->bundles, e)) return report(e);
  if (tamis_index_view(engine->index, &index, e)) return report(e);
  if (tamis_capacities_of(problem, engine->bundles, &capacities, e)) return report(e);
  if (tamis_plan_make(problem, &capacities, index.block, NULL, engine->plan, e)) return report(e);
  if (tamis_plan_info(engine->plan, &plan, e)) return report(e);
  if (tamis_schedule_make(engine->plan, engine->bundles, engine->schedule, e)) return report(e);
  printf("%lld rows, %lld blocks of %d tokens; path %d %s\n", (long long)index.rows, (long long)index.entries,
         (int)index.block, (int)plan.path, plan.reason);
  return TAMIS_OK;
}

/* Runs what was prepared, in a workspace of our own. */
static int run(Engine* engine, const tamis_problem* problem, const tamis_output* output) {
  tamis_step step = {.struct_size = sizeof step,
                     .problem = problem,
                     .bundles = engine->bundles,
                     .plan = engine->plan,
                     .schedule = engine->schedule,
                     .output = output};
  int64_t bytes = 0;
  int code = tamis_workspace_bytes(engine->plan, engine->schedule, &bytes, &engine->error);
  if (code) return report(&engine->error);
  step.workspace = bytes > 0 ? malloc((size_t)bytes) : NULL;
  step.workspace_bytes = step.workspace ? (uint64_t)bytes : 0;
  code = tamis_run(&step, engine->context, NULL, &engine->error);
  free(step.workspace);
  return code ? report(&engine->error) : TAMIS_OK;
}

static void print(const float* out, const float* lse) {
  for (int b = 0; b < kRequests; ++b)
    for (int h = 0; h < kQHeads; ++h) {
      const float* row = out + (b * kQHeads + h) * kDim;
      printf("request %d head %d  O", b, h);
      for (int d = 0; d < 4; ++d) printf(" %7.4f", (double)row[d]);
      printf(" ...  LSE %7.4f\n", (double)lse[b * kQHeads + h]);
    }
}

int main(void) {
  /* Values made up so that every token and head differs. */
  static float q[kRequests][kQHeads][kDim], k[kPages][kPage][kKvHeads][kDim],
      v[kPages][kPage][kKvHeads][kDim];
  static float out[kRequests][kQHeads][kDim], lse[kRequests][kQHeads];
  for (int i = 0; i < kRequests * kQHeads * kDim; ++i) (&q[0][0][0])[i] = sinf((float)i);
  for (int i = 0; i < kPages * kPage * kKvHeads * kDim; ++i) {
    (&k[0][0][0][0])[i] = cosf(0.5f * (float)i);
    (&v[0][0][0][0])[i] = sinf(0.3f * (float)i);
  }
  /* One query a request, its last token. Ten and seven tokens lie on pages (4, 0, 2) and (5, 1). */
  const int32_t cu_q[] = {0, 1, 2}, kv_len[] = {10, 7};
  int32_t table[kRequests][kMaxPages] = {{4, 0, 2}, {5, 1, -1}};
  /* A list for each KV head of each request; -1 is padding, and a token listed twice counts once. */
  const int32_t lists[kRequests * kKvHeads][kWidth] = {
      {0, 3, 8, 9}, {1, 9, 9, -1}, {0, 2, 5, 6}, {6, 4, -1, -1}};

  const tamis_tensor tq = tamis_dense(q, TAMIS_F32, 3, (int64_t[]){kRequests, kQHeads, kDim});
  const tamis_tensor tcu = tamis_dense(cu_q, TAMIS_I32, 1, (int64_t[]){kRequests + 1});
  const tamis_tensor tk = tamis_dense(k, TAMIS_F32, 4, (int64_t[]){kPages, kPage, kKvHeads, kDim});
  const tamis_tensor tv = tamis_dense(v, TAMIS_F32, 4, (int64_t[]){kPages, kPage, kKvHeads, kDim});
  const tamis_tensor tlen = tamis_dense(kv_len, TAMIS_I32, 1, (int64_t[]){kRequests});
  const tamis_tensor ttable = tamis_dense(table, TAMIS_I32, 2, (int64_t[]){kRequests, kMaxPages});
  const tamis_tensor tlists = tamis_dense(lists, TAMIS_I32, 2, (int64_t[]){kRequests * kKvHeads, kWidth});
  const tamis_tensor tout = tamis_dense(out, TAMIS_F32, 3, (int64_t[]){kRequests, kQHeads, kDim});
  const tamis_tensor tlse = tamis_dense(lse, TAMIS_F32, 2, (int64_t[]){kRequests, kQHeads});
  const tamis_output output = {.struct_size = sizeof output, .out = &tout, .lse = &tlse};

  tamis_problem problem;
  tamis_problem_init(&problem);
  problem.query = (tamis_query){.q = &tq, .cu_q = &tcu};
  problem.cache.k = &tk;
  problem.cache.v = &tv;
  problem.cache.kv_len = &tlen;
  problem.cache.page_table = &ttable;
  problem.candidates.form = TAMIS_FORM_FIXED_WIDTH;
  problem.candidates.indices = &tlists;
  problem.candidates.index_heads = kKvHeads;

  if (tamis_abi_version() != TAMIS_ABI_VERSION) return 1;
  Engine engine = {0};
  int failed = open_engine(&engine) || prepare(&engine, &problem) || run(&engine, &problem, &output);
  if (!failed) print(&out[0][0][0], &lse[0][0]);

  /* Token 5 of request 1 is on its logical page 1. A table that sends it to page 77 is refused before any key
   * is read, and the error says where. */
  if (!failed) {
    table[1][1] = 77;
    failed = prepare(&engine, &problem) != TAMIS_PAGE_OUT_OF_RANGE;
  }
  close_engine(&engine);
  return failed ? 1 : 0;
}
