// docs/semantics.md section 2: which request a query belongs to and where it sits.
#pragma once

#include <cstdint>

#include "tamis/problem.h"

namespace tamis::reference {

inline int64_t position_of(const Problem& p, int64_t request, int64_t query) {
  if (p.query.q_pos.present()) return p.query.q_pos.at<int32_t>({query});
  const int64_t end = p.query.cu_q.at<int32_t>({request + 1});
  return p.cache.kv_len.at<int32_t>({request}) - end + query;
}

// Calls f(request, query) for every query, in order.
template <class F>
void for_each_query(const Problem& p, const F& f) {
  for (int64_t b = 0; b + 1 < p.query.cu_q.shape[0]; ++b)
    for (int64_t i = p.query.cu_q.at<int32_t>({b}); i < p.query.cu_q.at<int32_t>({b + 1}); ++i) f(b, i);
}

}  // namespace tamis::reference
