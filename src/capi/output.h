// Where results go, C to C++.
#pragma once

#include "tamis/attention.h"
#include "tamis/tamis_c.h"

namespace tamis::capi {

// Arrays, epilogue and slots. What they must be is for run() to judge; sizes of structs and missing memory
// are judged here.
Status read_output(const tamis_output* from, OutView* to);

}  // namespace tamis::capi
