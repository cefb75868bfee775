#define TAMIS_ISA avx2
#include "stream_body.h"

namespace tamis::bench {

extern const StreamIsa kStreamAvx2 = {"avx2", &avx2::read, avx2::kRows, 2 * avx2::kLanes, &avx2::product};

}  // namespace tamis::bench
