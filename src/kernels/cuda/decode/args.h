// What the decode kernels are told. Strides in bytes.
#pragma once

#include <cstdint>

#include "index/device.h"
#include "plan/device.h"
#include "tamis/cuda.h"
#include "tamis/problem.h"

namespace tamis::cuda {

// Queries: element (query, head) of q at data + query * stride_query + head * stride_head.
struct DecodeQueries {
  const char* data;
  int64_t stride_query, stride_head;
  const int32_t* q_pos;  // or null
  const int32_t* cu_q;
  int32_t head_dim, q_heads, group;
  bool aligned;  // rows start on 16 bytes
};

// K or V. Contiguous: page 0 is the whole cache.
struct DecodeSide {
  const char* data;
  int64_t page, token, head;
  int32_t dim;
};

struct DecodePages {
  const int32_t* table;  // null: contiguous
  int64_t table_stride, page_size, pages;
  int32_t blocks_a_page;  // 0: contiguous, or pages that blocks do not divide
  int32_t log2_blocks;    // of blocks_a_page, or -1
  int32_t log2_page;      // of page_size, or -1
};

struct DecodeScore {
  float scale, softcap;  // softcap 0: none
  const float* slopes;   // or null
  int64_t window, sink;
  bool causal;
};

struct DecodeSlots {
  const int32_t* slot;  // null: all rows are written
  const uint32_t* generation;
  const uint32_t* live;
  int64_t slots;
};

struct DecodeOut {
  char* data;
  int64_t query, head;          // bytes
  bool aligned;                 // four elements of a row start on a multiple of their size
  bool wide;                    // 16-bit elements, and eight of a row start on 16 bytes
  float* lse;                   // or null
  int64_t lse_query, lse_head;  // floats
  DType dtype;
  float
      most;  // where dtype is f16: of finite results, whose weights are rounded, as their values are; or inf
  DecodeSlots slots;
  int32_t requests;
  int64_t total_q;
};

struct DecodeArgs {
  DecodeQueries q;
  DecodeSide k, v;
  DecodePages pages;
  DecodeScore score;
  DecodeOut out;
  index::DeviceIndex index;
  DeviceScratch scratch;
  DeviceControl* control;
  StepCounters* counters;  // or null
  int32_t log2_block;
  int32_t list_heads;        // query heads of a KV head that one list serves
  bool every_token, tokens;  // tokens: Load::kTokens
  uint64_t plan;             // mark of scratch
  index::IndexMark mark;     // of the index set
};

}  // namespace tamis::cuda
