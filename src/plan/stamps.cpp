// The fingerprint of a plan and the stamp of a schedule.
#include "plan/stamps.h"

#include "tamis/plan.h"

namespace tamis {

uint64_t fingerprint(const Problem& problem, const Shape& shape, int32_t block, Backend backend) {
  Hash hash;
  const auto add = [&hash](int64_t number) { hash.add(static_cast<uint64_t>(number)); };
  add(static_cast<int64_t>(backend));
  add(block);
  add(shape.q_heads);
  add(shape.kv_heads);
  add(shape.index_heads);
  add(shape.head_dim);
  add(shape.v_head_dim);
  add(shape.page_size);  // 0: contiguous
  add(shape.k_bits);
  add(shape.v_bits);
  add(static_cast<int64_t>(problem.cache.layout));
  add(shape.index_only);
  if (shape.index_only) return hash.value();
  for (const TensorView* t : {&problem.query.q, &problem.cache.k, &problem.cache.v})
    add(static_cast<int64_t>(t->dtype));
  for (const Quantization* quant : {&problem.cache.k_quant, &problem.cache.v_quant}) {
    add(static_cast<int64_t>(quant->format));
    // Plain caches have no scale, whatever its kind says.
    add(quant->format == Format::kPlain ? -1 : static_cast<int64_t>(quant->kind));
  }
  return hash.value();
}

// All that schedule() reads of a bundle: block count, KV heads, and the query rows of its lists.
uint64_t schedule_stamp(const BundleView& bundles) {
  Hash hash;
  hash.add(static_cast<uint64_t>(bundles.bundles));
  hash.add(static_cast<uint64_t>(bundles.block));
  for (int64_t b = 0; b < bundles.bundles; ++b) {
    const Bundle& bundle = bundles.bundle[b];
    hash.add(static_cast<uint32_t>(bundle.count), static_cast<uint32_t>(bundle.lists));
    hash.add(static_cast<uint32_t>(bundle.kv_head), static_cast<uint32_t>(bundle.kv_heads));
    for (int32_t list = 0; list < bundle.lists; ++list) {
      const RowInfo& row = bundles.row[bundles.rows[bundle.first_list + list]];
      hash.add(static_cast<uint32_t>(row.last_query - row.first_query),
               static_cast<uint32_t>(row.index_head));
    }
  }
  return hash.value();
}

}  // namespace tamis
