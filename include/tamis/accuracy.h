// How far an output is from what it should be, with the two causes told apart (docs/quantization.md).
#pragma once

#include "tamis/problem.h"
#include "tamis/status.h"
#include "tamis/tensor.h"

namespace tamis {

struct ErrorMeasure {
  double max_abs = 0;  // largest |a - b|; infinite where only one is NaN, or an infinity of one is missing
  double relative_rms = 0;  // sqrt(sum (a - b)^2 / sum b^2) over finite pairs; 0 / 0 counts as 0
};

// a against b, element by element; f32, f16 or bf16 of any strides and one shape. NaN equals NaN. Host
// memory.
Result<ErrorMeasure> measure_error(const TensorView& a, const TensorView& b);

struct AccuracySplit {
  ErrorMeasure kernel;        // the output against the exact result on the dequantized K and V
  ErrorMeasure quantization;  // that exact result against the exact result on the original K and V
};

// `original` is the problem before quantization, `quantized` the one that was run, `out` its output
// [total_q, Hq, Dv] in f32, f16 or bf16 without an epilogue. The exact results are the float64 reference's,
// which runs twice. Fails as reference::forward does on either problem, and with invalid_argument where the
// two select other tokens or have other sizes, or `out` has another shape.
Result<AccuracySplit> accuracy_split(const Problem& original, const Problem& quantized,
                                     const TensorView& out);

}  // namespace tamis
