# Compiler settings that hold for every target of this project.

if(PROJECT_IS_TOP_LEVEL)
  if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
    set(CMAKE_BUILD_TYPE Release CACHE STRING "Debug, Release, RelWithDebInfo or MinSizeRel" FORCE)
  endif()
  set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
  find_program(CCACHE_PROGRAM ccache)
  mark_as_advanced(CCACHE_PROGRAM)
  if(CCACHE_PROGRAM)
    foreach(language C CXX CUDA)
      if(NOT DEFINED CMAKE_${language}_COMPILER_LAUNCHER)
        set(CMAKE_${language}_COMPILER_LAUNCHER ${CCACHE_PROGRAM})
      endif()
    endforeach()
  endif()
endif()

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)

find_package(Threads REQUIRED)

# Flags of our own targets; nothing here reaches a consumer.
add_library(tamis_flags INTERFACE)
set(host_warnings -Wall -Wextra -Wshadow -Wnon-virtual-dtor -Woverloaded-virtual)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  list(APPEND host_warnings -Wno-restrict)  # GCC 12 finds overlap in "text" + std::string (GCC bug 105651)
endif()
target_compile_options(tamis_flags INTERFACE "$<$<COMPILE_LANGUAGE:CXX>:${host_warnings}>"
                                             "$<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=-Wall,-Wextra>")
if(TAMIS_WERROR)
  target_compile_options(tamis_flags INTERFACE "$<$<COMPILE_LANGUAGE:CXX>:-Werror>"
                                               "$<$<COMPILE_LANGUAGE:CUDA>:-Werror=all-warnings;-Xcompiler=-Werror>")
endif()

# Flags of the command and the tests: mostly third-party templates, which sanitizers make four times slower to optimize.
add_library(tamis_shell_flags INTERFACE)
target_link_libraries(tamis_shell_flags INTERFACE tamis_flags)

if(TAMIS_SANITIZE)
  target_compile_options(tamis_shell_flags INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-O0>)
  # Directory-wide: sanitized objects only link and run with sanitized neighbours.
  add_compile_options("$<$<COMPILE_LANGUAGE:CXX>:-fsanitize=${TAMIS_SANITIZE};-fno-sanitize-recover=all;-fno-omit-frame-pointer>")
  add_link_options(-fsanitize=${TAMIS_SANITIZE})
endif()

if(TAMIS_RACECHECK)
  add_compile_definitions(TAMIS_RACECHECK)
endif()
if(TAMIS_FUZZ)
  if(NOT CMAKE_CXX_COMPILER_ID MATCHES "Clang")
    message(FATAL_ERROR "TAMIS_FUZZ needs clang: configure with -DCMAKE_CXX_COMPILER=clang++ or --preset fuzz")
  endif()
  add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-fsanitize=fuzzer-no-link>)
endif()
