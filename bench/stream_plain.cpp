#define TAMIS_ISA plain
#include "stream_body.h"

namespace tamis::bench {

extern const StreamIsa kStreamPlain = {"plain", &plain::read, plain::kRows, 2 * plain::kLanes,
                                       &plain::product};

}  // namespace tamis::bench
