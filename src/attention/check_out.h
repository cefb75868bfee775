// Where results go, judged before anything is read: arrays, epilogue and slots of an OutView.
#pragma once

#include "tamis/attention.h"

namespace tamis {

// invalid_argument for whatever is wrong. Reads the slots of requests and the static scale, which are small;
// nothing of live_generation. Not `readable`: the arrays lie on a device, no content is judged and an
// epilogue is the caller's to refuse.
Status check_out(const OutView& out, const Shape& shape, bool readable = true);

}  // namespace tamis
