// threadIdx and its like: those of the thread that runs.
#pragma once

struct EmulatedIndex {
  unsigned x = 0, y = 0, z = 0;
};
extern EmulatedIndex threadIdx, blockIdx, blockDim, gridDim;
