#define TAMIS_ISA avx512
#include "stream_body.h"

namespace tamis::bench {

extern const StreamIsa kStreamAvx512 = {"avx512", &avx512::read, avx512::kRows, 2 * avx512::kLanes,
                                        &avx512::product};

}  // namespace tamis::bench
