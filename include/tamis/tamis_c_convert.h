/* Layouts of candidate rows (convert.h) in C: CSR, one fixed width, and tiers. It includes tamis_c.h, whose
 * first page holds for all of this.
 *
 * Nothing is judged, sorted or merged: the entries of a row keep their order, duplicates stay, an entry out
 * of range is carried along for tamis_normalize to refuse or drop, and a row that does not fit is
 * TAMIS_CAPACITY_EXCEEDED. Offsets, counts and row ids are checked before they are followed. Only the two
 * forms that list entries can be converted. Host memory. */
#ifndef TAMIS_TAMIS_C_CONVERT_H_
#define TAMIS_TAMIS_C_CONVERT_H_

#include "tamis/tamis_c.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What becomes of -1 entries on the way to CSR. */
typedef enum tamis_padding {
  TAMIS_PADDING_KEEP = 0, /* the same entries */
  TAMIS_PADDING_DROP      /* the same candidates; `raw` and `padding` of the statistics change */
} tamis_padding;

/* Rows that own their arrays. They may be filled from a view of themselves. */
typedef struct tamis_rows tamis_rows;
TAMIS_API int32_t tamis_rows_create(tamis_rows** rows, tamis_error* error);
TAMIS_API void tamis_rows_destroy(tamis_rows* rows);

/* To CSR with 64-bit offsets. `padding` is a tamis_padding. */
TAMIS_API int32_t tamis_rows_to_csr(const tamis_candidates* from, int32_t padding, tamis_rows* rows,
                                    tamis_error* error);

/* To rows of `width` entries, -1: as many as the longest row has, and a count for each. What follows a row is
 * -1 too, for those who know no counts. */
TAMIS_API int32_t tamis_rows_to_fixed_width(const tamis_candidates* from, int64_t width, tamis_rows* rows,
                                            tamis_error* error);

/* The rows as a group of a tamis_problem: form and arrays of their own, which live until they are filled
 * again or destroyed; policies, unit, query block and index heads of what they were made from. */
TAMIS_API int32_t tamis_rows_view(const tamis_rows* rows, tamis_candidates* candidates, tamis_error* error);

/* Rows of one width, and which rows of the whole these are. */
typedef struct tamis_tier {
  const tamis_tensor* row_ids; /* [n] i32 */
  const tamis_tensor* indices; /* [n, edge] i32 */
  const tamis_tensor* count;   /* [n] i32, or NULL */
} tamis_tier;

/* As many tiers as edges, also those that no row fell into; together they hold each row once. */
typedef struct tamis_tiers tamis_tiers;
TAMIS_API int32_t tamis_tiers_create(tamis_tiers** tiers, tamis_error* error);
TAMIS_API void tamis_tiers_destroy(tamis_tiers* tiers);

/* Each row into the smallest tier that holds it. `edges` ascend strictly. */
TAMIS_API int32_t tamis_tiers_make(const tamis_candidates* from, const int64_t* edges, int64_t count,
                                   tamis_tiers* tiers, tamis_error* error);

/* Writes at most `capacity` tiers and sets *count to how many there are; `to` may be NULL when `capacity` is
 * 0. Their arrays live until the tiers are made again or destroyed. */
TAMIS_API int32_t tamis_tiers_view(const tamis_tiers* tiers, tamis_tier* to, int64_t capacity, int64_t* count,
                                   tamis_error* error);

/* Back to CSR, the rows in their order. Row ids are a permutation of 0 .. rows - 1 over all tiers. Policies,
 * unit, query block and index heads are those of `like`, whose arrays are not looked at. */
TAMIS_API int32_t tamis_rows_from_tiers(const tamis_tier* tiers, int64_t count, int32_t padding,
                                        const tamis_candidates* like, tamis_rows* rows, tamis_error* error);

/* The tier of a row of `length` entries: the first whose edge is not below it. */
TAMIS_API int32_t tamis_tier_of(const int64_t* edges, int64_t count, int64_t length, int64_t* tier,
                                tamis_error* error);

/* Of the allocated entries, how many stand before the count of their row and are not -1. Of tiers: [count]
 * numbers each. */
TAMIS_API int32_t tamis_rows_utilization(const tamis_candidates* rows, int64_t* used, int64_t* allocated,
                                         tamis_error* error);
TAMIS_API int32_t tamis_tiers_utilization(const tamis_tier* tiers, int64_t count, int64_t* used,
                                          int64_t* allocated, tamis_error* error);

#ifdef __cplusplus
}
#endif

#endif /* TAMIS_TAMIS_C_CONVERT_H_ */
