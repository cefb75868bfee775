// The version of the library these headers belong to. Semantic versioning; unstable until 1.0. The build
// reads it here.
#pragma once

#define TAMIS_VERSION_MAJOR 0
#define TAMIS_VERSION_MINOR 1
#define TAMIS_VERSION_PATCH 0
#define TAMIS_VERSION "0.1.0"
