# Writes OUT with the commit of SOURCE and the compiler FLAGS, only when they changed. Runs at every build: a commit
# read at configure time would be that of an older tree.
execute_process(COMMAND git rev-parse HEAD WORKING_DIRECTORY ${SOURCE} OUTPUT_VARIABLE commit
                OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE failed)
if(failed)
  set(commit unknown)
else()
  execute_process(COMMAND git --no-optional-locks status --porcelain --untracked-files=no
                  WORKING_DIRECTORY ${SOURCE} OUTPUT_VARIABLE changes ERROR_QUIET)
  if(changes)
    string(APPEND commit "+changes")
  endif()
endif()
string(STRIP "${FLAGS}" flags)
string(REPLACE "\\" "\\\\" flags "${flags}")
string(REPLACE "\"" "\\\"" flags "${flags}")
file(WRITE ${OUT}.new "#define TAMIS_BENCH_COMMIT \"${commit}\"\n#define TAMIS_BENCH_FLAGS \"${flags}\"\n")
execute_process(COMMAND ${CMAKE_COMMAND} -E copy_if_different ${OUT}.new ${OUT})
file(REMOVE ${OUT}.new)
