# Resolves TAMIS_CUDA to TAMIS_WITH_CUDA and enables the language. Without CUDA nothing of the toolkit is looked for.

set(TAMIS_WITH_CUDA OFF)
if(TAMIS_CUDA STREQUAL "AUTO" OR TAMIS_CUDA)
  # The toolkit's usual place is often not on the search path.
  if(NOT CMAKE_CUDA_COMPILER AND NOT DEFINED ENV{CUDACXX})
    find_program(TAMIS_NVCC nvcc HINTS ENV CUDA_PATH ENV CUDA_HOME PATHS /usr/local/cuda PATH_SUFFIXES bin)
    mark_as_advanced(TAMIS_NVCC)
    if(TAMIS_NVCC)
      set(CMAKE_CUDA_COMPILER ${TAMIS_NVCC})
    endif()
  endif()
  if(CMAKE_CUDA_COMPILER OR DEFINED ENV{CUDACXX})
    set(TAMIS_WITH_CUDA ON)
  elseif(NOT TAMIS_CUDA STREQUAL "AUTO")
    message(FATAL_ERROR "TAMIS_CUDA=${TAMIS_CUDA}, but no nvcc was found: put it on PATH, name it with "
                        "-DCMAKE_CUDA_COMPILER=..., or build without it (-DTAMIS_CUDA=OFF)")
  endif()
endif()

set(TAMIS_CUDA_ARCHITECTURES "none")
if(TAMIS_WITH_CUDA)
  # wgmma and setmaxnreg need the "a" of sm_90a, whose code runs on compute capability 9.0 only; the PTX serves the rest.
  if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
    set(CMAKE_CUDA_ARCHITECTURES "90a-real;80-virtual")
    if(PROJECT_IS_TOP_LEVEL)  # the cache of a project around this one is its own
      set(CMAKE_CUDA_ARCHITECTURES ${CMAKE_CUDA_ARCHITECTURES} CACHE STRING "CUDA architectures")
    endif()
  endif()
  enable_language(CUDA)
  # CMake before 3.25.2 does not know that nvcc speaks C++20.
  if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)
    set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")
    set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION "-std=c++20")
  endif()
  set(CMAKE_CUDA_STANDARD 20)
  set(CMAKE_CUDA_STANDARD_REQUIRED ON)
  set(CMAKE_CUDA_EXTENSIONS OFF)
  set(CMAKE_CUDA_RUNTIME_LIBRARY Static)
  find_package(CUDAToolkit REQUIRED)
  set(TAMIS_CUDA_ARCHITECTURES "${CMAKE_CUDA_ARCHITECTURES}")
endif()
