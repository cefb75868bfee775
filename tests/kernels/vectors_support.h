// The vector tables this machine can run.
#pragma once

#include <gtest/gtest.h>

#include <vector>

#include "kernels/cpu/isa.h"
#include "kernels/vectors_table.h"

namespace tamis::testing {

inline std::vector<const cpu::VectorTable*> vector_tables() {
  std::vector<const cpu::VectorTable*> tables{&cpu::kPlainVectors};
#if defined(__x86_64__)
  for (const cpu::VectorTable* t : {&cpu::kAvx2Vectors, &cpu::kAvx512Vectors, &cpu::kAvx512Bf16Vectors})
    if (cpu::find_isa(t->name) != nullptr) tables.push_back(t);
#endif
  return tables;
}

class Vectors : public ::testing::TestWithParam<const cpu::VectorTable*> {
 protected:
  const cpu::VectorTable& v() const { return *GetParam(); }
  int width() const { return GetParam()->width; }
};

}  // namespace tamis::testing
