// docs/semantics.md sections 1 and 8: one number of K or V, from where it lies and how it is stored.
#pragma once

#include <cstdint>

#include "kernels/reference/numbers.h"
#include "tamis/cache.h"

namespace tamis::reference {

// Reads K or V by (physical slot, KV head) and dimension. Looks at nothing but what it is asked for.
class KvReader {
 public:
  struct Place {
    int64_t page, token, head;
    int64_t from;  // of dimension 0, in elements
  };

  // `page_size` 0: contiguous, where a slot is a row.
  KvReader(const TensorView& stored, const Quantization& quant, Layout layout, int64_t page_size)
      : stored_(stored),
        quant_(quant),
        stride_(kv_strides(stored, layout)),
        hnd_(layout == Layout::kHND),
        page_size_(page_size) {}

  Place place(int64_t slot, int64_t head) const {
    const int64_t page = page_size_ == 0 ? 0 : slot / page_size_,
                  token = page_size_ == 0 ? slot : slot % page_size_;
    return {page, token, head, page * stride_.page + token * stride_.token + head * stride_.head};
  }

  double at(const Place& p, int64_t dim) const {
    if (quant_.format == Format::kPlain) return load_float(stored_, p.from + dim * stride_.dim);
    return code(p.from, dim) * scale(p, dim);
  }

 private:
  double code(int64_t from, int64_t dim) const {
    const uint8_t* bytes = static_cast<const uint8_t*>(stored_.data);
    switch (quant_.format) {
      case Format::kInt8:
        return static_cast<const int8_t*>(stored_.data)[from + dim * stride_.dim];
      case Format::kFp8E4M3:
        return decode_e4m3(bytes[from + dim * stride_.dim]);
      case Format::kFp8E5M2:
        return decode_e5m2(bytes[from + dim * stride_.dim]);
      case Format::kInt4:
        return decode_int4(bytes[from + dim / 2 * stride_.dim], dim % 2 == 1);
      case Format::kPlain:
        break;
    }
    return NAN;
  }

  double scale(const Place& p, int64_t dim) const {
    const TensorView& s = quant_.scale;
    const int64_t first = hnd_ ? p.head : p.token, second = hnd_ ? p.token : p.head;
    switch (quant_.kind) {
      case ScaleKind::kTensor:
        return s.at<float>({});
      case ScaleKind::kHead:
        return s.at<float>({p.head});
      case ScaleKind::kPage:
        return s.at<float>({p.page, p.head});
      case ScaleKind::kChannel:
        return s.at<float>({p.head, dim});
      case ScaleKind::kPageChannel:
        return s.at<float>({p.page, p.head, dim});
      case ScaleKind::kToken:
        return page_size_ == 0 ? s.at<float>({first, second}) : s.at<float>({p.page, first, second});
    }
    return NAN;
  }

  TensorView stored_;
  Quantization quant_;
  KvStrides stride_;
  bool hnd_;
  int64_t page_size_;
};

}  // namespace tamis::reference
