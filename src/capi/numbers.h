// Numbers of the C interface and the C++ ones they stand for, one list each: the asserts fail where they
// part.
#pragma once

#include <cstdint>

#include "core/checks.h"
#include "tamis/attention.h"
#include "tamis/tamis_c.h"

namespace tamis::capi {

#define TAMIS_SAME(c, cpp) static_assert(static_cast<int>(c) == static_cast<int>(cpp))
TAMIS_SAME(TAMIS_OK, Code::kOk);
TAMIS_SAME(TAMIS_INVALID_ARGUMENT, Code::kInvalidArgument);
TAMIS_SAME(TAMIS_INDEX_OUT_OF_RANGE, Code::kIndexOutOfRange);
TAMIS_SAME(TAMIS_DUPLICATE_INDEX, Code::kDuplicateIndex);
TAMIS_SAME(TAMIS_UNSUPPORTED_SEMANTICS, Code::kUnsupportedSemantics);
TAMIS_SAME(TAMIS_PAGE_OUT_OF_RANGE, Code::kPageOutOfRange);
TAMIS_SAME(TAMIS_PAGE_UNMAPPED, Code::kPageUnmapped);
TAMIS_SAME(TAMIS_FOREIGN_PAGE, Code::kForeignPage);
TAMIS_SAME(TAMIS_WORKSPACE_TOO_SMALL, Code::kWorkspaceTooSmall);
TAMIS_SAME(TAMIS_CAPACITY_EXCEEDED, Code::kCapacityExceeded);
TAMIS_SAME(TAMIS_STALE_PLAN, Code::kStalePlan);
TAMIS_SAME(TAMIS_NOT_CAPTURABLE, Code::kNotCapturable);
TAMIS_SAME(TAMIS_UNSUPPORTED, Code::kUnsupported);
TAMIS_SAME(TAMIS_IO_ERROR, Code::kIoError);
TAMIS_SAME(TAMIS_DEVICE_ERROR, Code::kDeviceError);
TAMIS_SAME(TAMIS_HND, Layout::kHND);
TAMIS_SAME(TAMIS_FORMAT_INT8, Format::kInt8);
TAMIS_SAME(TAMIS_FORMAT_FP8_E4M3, Format::kFp8E4M3);
TAMIS_SAME(TAMIS_FORMAT_FP8_E5M2, Format::kFp8E5M2);
TAMIS_SAME(TAMIS_FORMAT_INT4, Format::kInt4);
TAMIS_SAME(TAMIS_SCALE_HEAD, ScaleKind::kHead);
TAMIS_SAME(TAMIS_SCALE_PAGE, ScaleKind::kPage);
TAMIS_SAME(TAMIS_SCALE_CHANNEL, ScaleKind::kChannel);
TAMIS_SAME(TAMIS_SCALE_PAGE_CHANNEL, ScaleKind::kPageChannel);
TAMIS_SAME(TAMIS_SCALE_TOKEN, ScaleKind::kToken);
TAMIS_SAME(TAMIS_FORM_CSR, CandidateForm::kCsr);
TAMIS_SAME(TAMIS_FORM_FIXED_WIDTH, CandidateForm::kFixedWidth);
TAMIS_SAME(TAMIS_FORM_NONE, CandidateForm::kNone);
TAMIS_SAME(TAMIS_FORM_ALL, CandidateForm::kAll);
TAMIS_SAME(TAMIS_DUPLICATES_REJECT, OnDuplicate::kReject);
TAMIS_SAME(TAMIS_INVALID_DROP, OnInvalid::kDrop);
TAMIS_SAME(TAMIS_SEQUENCE, Semantics::kSequence);
TAMIS_SAME(TAMIS_MULTISET, Semantics::kMultiset);
TAMIS_SAME(TAMIS_ORDERING_BITMAP, Ordering::kBitmap);
TAMIS_SAME(TAMIS_ORDERING_SORT, Ordering::kSort);
TAMIS_SAME(TAMIS_ORDERING_HASH, Ordering::kHash);
TAMIS_SAME(TAMIS_BUNDLE_ROWS, BundlePolicy::kRows);
TAMIS_SAME(TAMIS_BUNDLE_HEADS, BundlePolicy::kHeads);
TAMIS_SAME(TAMIS_BUNDLE_NEIGHBOURS, BundlePolicy::kNeighbours);
TAMIS_SAME(TAMIS_REFERENCE, Backend::kReference);
TAMIS_SAME(TAMIS_CPU, Backend::kCpu);
TAMIS_SAME(TAMIS_CUDA, Backend::kCuda);
TAMIS_SAME(TAMIS_PATH_DIRECT, Path::kDirect);
TAMIS_SAME(TAMIS_PATH_GATHER, Path::kGather);
TAMIS_SAME(TAMIS_PATH_DENSE, Path::kDense);
TAMIS_SAME(TAMIS_FALLBACK_REFUSE, Fallback::kRefuse);
#undef TAMIS_SAME

// The enumerators of a C++ enum are 0 .. last.
template <class E>
Status read_enum(const char* name, int32_t number, E last, E* out) {
  if (number < 0 || number > static_cast<int32_t>(last))
    return {Code::kInvalidArgument,
            text(name, ": ", number, " is outside [0, ", static_cast<int32_t>(last), "]"),
            {.value = number, .limit = int64_t{static_cast<int32_t>(last)} + 1}};
  *out = static_cast<E>(number);
  return {};
}

inline Status read_flag(const char* name, int32_t number, bool* out) {
  if (number != 0 && number != 1) return invalid(name, number, " is not 0 or 1");
  *out = number == 1;
  return {};
}

// Fields that a later version may give a meaning.
inline Status check_reserved(const char* name, int32_t number) {
  return number == 0 ? Status() : invalid(name, "reserved is ", number, ", not 0");
}

}  // namespace tamis::capi
