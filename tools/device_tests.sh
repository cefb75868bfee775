#!/usr/bin/env bash
# Everything that needs a device, in one run with a dated log: tools/device_tests.sh BUILD LOG [PART ...]
#
# Builds nothing: BUILD holds a finished build with tests and the command. Parts, all of them when none is named:
#
#   tests      the room `cuda`, but for the tests of the prefill kernel
#   prefill    those
#   prefilled  the tests of steps once more, by the prefill kernel wherever it takes what a test leaves open
#   unread     its tests whose failure ends the process, each by itself
#   short      the room once more, with the short rings of devices that have less shared memory
#   cases      the conformance cases through the command
#   examples   both programs of examples/cuda_decode, from BUILD/ci/cuda_decode, where .ci/run puts them, or TAMIS_EXAMPLES
#   memcheck racecheck initcheck synccheck   a reduced set of the room under compute-sanitizer; racecheck runs that of
#                                            TAMIS_RACE_BUILD, a build with -DTAMIS_RACECHECK=ON, and without one
#                                            leaves the prefill kernel out: it reports its barriers
#
# LOG gets a heading when it is new, then a section for each part as soon as it ends; docs/runs/ keeps such logs. What a
# part said in full is left in BUILD/device_tests/. A part that cannot run is SKIPPED, which is not passed: the exit
# status is 1 when anything failed, 3 when something was skipped, 0 when all passed.
# TAMIS_COMMIT names the commit where there is no repository. TAMIS_DEVICE_JOBS parts run at a time, 1 unless set.
# TAMIS_CUDA_PROBLEMS and TAMIS_GRAPH_REPLAYS say how much `tests` does (1000 and 10000 unless set). `prefilled` does a
# tenth of the replays, `short` that and half the problems, `prefill` all replays and a fifth of the problems, whose sizes
# are larger.
set -uo pipefail

if [ $# -lt 2 ]; then
  sed -n '2,25s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" >&2
  exit 2
fi
build=$1 log=$2
shift 2
parts=("$@")
[ ${#parts[@]} -gt 0 ] || parts=(tests prefill prefilled unread short cases examples memcheck racecheck initcheck synccheck)

root=$(dirname "${BASH_SOURCE[0]}")/..
room=$build/tests/test_cuda
race_room=${TAMIS_RACE_BUILD:+$TAMIS_RACE_BUILD/tests/test_cuda}
full=$build/device_tests
examples=${TAMIS_EXAMPLES:-$build/ci/cuda_decode}
mkdir -p "$full" "$(dirname "$log")"

# Each kind of kernel, list, page, split and refusal once; nothing that is large only to be large.
reduced='CudaErrorCases.*:CudaSafety*:CudaCapacity.*:CudaStale.*:CudaGraph.*:CudaTwoSets.*'
reduced+=':CudaRandom.TheCpuAgrees:CudaIndex.RandomProblems:CudaBits.ANaNStaysInItsRow:CudaExtents.ManySplits'
reduced+=':CudaRing.TheCpuAgrees:CudaRing.ANaNOfOneListStaysInItsColumn'
reduced+=':CudaPrefill.TheCpuAgrees:CudaPrefill.QueriesOnFourBytes:CudaPrefillStep.*:CudaPrefillBits.Repeats'
reduced+=':CudaPrefillBits.PairsDoNotMatter'
reduced+=':CudaPrefillValues.AValue*:CudaPrefillValues.E*:CudaPrefillValues.L*:CudaPrefillValues.WhollyEmptyBatches'
for name in basic_f16 basic_duplicates_window_sink page_1 page_24 page_64 qblock_16 heads_g8_hi_hq heads_g16_d256 \
  heads_g3_d80_hi1 layout_hnd_contiguous table_stamped_shared_prefix window_sink alibi softcap; do
  reduced+=":CudaCases.HasItsAnswer/$name:CudaCases.HasItsAnswerWithShortRings/$name:CudaCases.HasItsAnswerByPrefill/$name"
done

find_sanitizer() {
  command -v compute-sanitizer && return
  local nvcc
  nvcc=$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)
  nvcc=$(dirname "$(readlink -f "$nvcc")")/compute-sanitizer
  [ -x "$nvcc" ] && echo "$nvcc"
}

commit() {
  local at
  if at=$(git -C "$root" rev-parse --short HEAD 2>/dev/null); then
    [ -z "$(git -C "$root" status --porcelain --untracked-files=no)" ] || at+=" with local changes"
    echo "${TAMIS_COMMIT:-$at}"
  else
    echo "${TAMIS_COMMIT:-unknown}"
  fi
}

heading() {
  [ -s "$log" ] && return
  local toolkit
  toolkit=$({ nvcc --version || /usr/local/cuda/bin/nvcc --version; } 2>/dev/null | sed -n 's/.*release \([0-9.]*\).*/\1/p')
  {
    echo "# Device tests, $(date +%F)"
    echo
    echo "* commit $(commit)"
    echo "* $(nvidia-smi --query-gpu=name,driver_version --format=csv,noheader -i 0 | sed 's/, /, driver /'), CUDA toolkit ${toolkit:-unknown}"
    echo "* command: \`tools/device_tests.sh BUILD LOG\`, part by part; the commands it ran stand in each section"
  } >"$log"
}

# section PART SHOWN-COMMAND OUTCOME [LINE ...]
section() {
  local part=$1 command=$2 outcome=$3 line
  shift 3
  echo "$part: $outcome"
  {
    printf '\n## %s: %s\n\n    %s\n\n' "$part" "$outcome" "$command"
    for line in "$@"; do printf '    %s\n' "$line"; done
  } >"$full/$part.section"
  cat "$full/$part.section" >>"$log"  # in one piece, whatever else ends now
}

# part NAME PATTERN-OF-LINES-TO-KEEP SHOWN-COMMAND COMMAND...
part() {
  local name=$1 keep=$2 shown=$3 begin=$SECONDS status lines=()
  shift 3
  "$@" >"$full/$name.log" 2>&1
  status=$?
  mapfile -t lines < <(grep -E "$keep" "$full/$name.log" | sort -u | head -n 60)
  if [ ${#lines[@]} = 0 ]; then  # nothing that says so is nothing that passed
    section "$name" "$shown" "FAILED (exit $status, no summary)"
  elif [ $status != 0 ]; then
    section "$name" "$shown" "FAILED (exit $status) after $((SECONDS - begin)) s" "${lines[@]}"
  elif grep -q 'SKIPPED' <<<"${lines[*]}"; then
    section "$name" "$shown" "passed in $((SECONDS - begin)) s, with tests that were SKIPPED" "${lines[@]}"
  else
    section "$name" "$shown" "passed in $((SECONDS - begin)) s" "${lines[@]}"
  fi
}

skip() { section "$1" "-" "SKIPPED ($2)"; }

# Without a device these end well, and here that is a failure.
run_examples() {
  local program said status
  for program in "$@"; do
    said=$("$program")
    status=$?
    printf '%s\n' "$said"
    [ $status = 0 ] && [[ $said != "no device"* ]] || return 1
  done
}

run_part() {
  local tests_keep='^\[  (PASSED|FAILED|SKIPPED) |tests? ran' problems=${TAMIS_CUDA_PROBLEMS:-1000}
  local replays=${TAMIS_GRAPH_REPLAYS:-10000} sanitizer poison=1 env options filter binary set
  case $1 in
    tests)
      env=(TAMIS_CUDA_PROBLEMS="$problems" TAMIS_GRAPH_REPLAYS="$replays")
      filter='-CudaUnread.*:CudaPrefill*:*ByPrefill*'
      part tests "$tests_keep" "${env[*]} test_cuda --gtest_filter=$filter" \
        env "${env[@]}" "$room" --gtest_filter="$filter"
      ;;
    prefill)
      env=(TAMIS_CUDA_PROBLEMS=$(((problems + 4) / 5)) TAMIS_GRAPH_REPLAYS="$replays")
      filter='CudaPrefill*:*ByPrefill*-CudaUnread.*'
      part prefill "$tests_keep" "${env[*]} test_cuda --gtest_filter=$filter" \
        env "${env[@]}" "$room" --gtest_filter="$filter"
      ;;
    prefilled)  # not where a test speaks of what only the decode kernel does
      env=(TAMIS_CUDA_ENGINE=prefill TAMIS_CUDA_PROBLEMS="$problems" TAMIS_GRAPH_REPLAYS=$((replays / 10)))
      filter='CudaCapacity.*:CudaStale.*:CudaGraph.*:CudaMarks.*:CudaTwoSets.*'
      part prefilled "$tests_keep" "${env[*]} test_cuda --gtest_filter=$filter" \
        env "${env[@]}" "$room" --gtest_filter="$filter"
      ;;
    unread)
      part unread "$tests_keep" "test_cuda --gtest_filter=CudaUnread.*" "$room" --gtest_filter='CudaUnread.*'
      ;;
    short)  # but what no ring is needed for, and what has short rings anyway
      filter='-CudaUnread.*:CudaIndex.*:CudaRing.*:*ShortRings*:CudaPrefill*:*ByPrefill*'
      env=(TAMIS_CUDA_RING=short TAMIS_CUDA_PROBLEMS=$((problems / 2)) TAMIS_GRAPH_REPLAYS=$((replays / 10)))
      part short "$tests_keep" "${env[*]} test_cuda --gtest_filter=$filter" \
        env "${env[@]}" "$room" --gtest_filter="$filter"
      ;;
    cases)
      if [ ! -x "$build/bin/tamis" ]; then
        skip cases "no command in the build"
        return
      fi
      part cases '^FAILED|passed' "tests/cases/check_cases.py --tamis tamis --backend cuda --skip-waiting" \
        python3 "$root/tests/cases/check_cases.py" --tamis "$build/bin/tamis" --backend cuda --skip-waiting
      ;;
    examples)
      if [ ! -x "$examples/decode" ] || [ ! -x "$examples/two_sets" ]; then
        skip examples "examples/cuda_decode is not built"
        return
      fi
      part examples '^(step|round) |steps on two sets|^no device' "decode && two_sets" \
        run_examples "$examples/decode" "$examples/two_sets"
      ;;
    memcheck | racecheck | initcheck | synccheck)
      sanitizer=$(find_sanitizer)
      if [ -z "$sanitizer" ]; then
        skip "$1" "no compute-sanitizer"
        return
      fi
      options=() filter=$reduced binary=$room set="reduced set"
      if [ "$1" = racecheck ] && [ -z "$race_room" ]; then set+=" without the prefill kernel"; fi
      if [ "$1" = initcheck ]; then
        poison=0  # poisoned memory counts as written
        # Tests fetch whole buffers, parts that nobody writes among them; what kernels read is what counts.
        options=(--check-api-memory-access no)
        # This one hands over memory that nobody wrote, on purpose.
        filter+='-CudaStale.NeverScheduled'
      elif [ "$1" = racecheck ] && [ -z "$race_room" ]; then
        filter+='-CudaPrefill*:*ByPrefill*'
      elif [ "$1" = racecheck ]; then
        # Up to minutes each there, and smaller ones run the same kernels.
        filter+='-CudaPrefillStep.RowsOfReusedSlotsKeepTheirBytes:CudaPrefillStep.OneScheduleServesManyRuns'
        filter+=':CudaPrefillStep.TwoStreamsSideBySide:CudaPrefillStep.ReplaysOverOtherBatches:CudaPrefillBits.*'
        filter+=':CudaPrefillValues.AValueThatIsNotFinite:CudaPrefillValues.EveryRowAgain'
        for name in 'page_*' '*window_sink' qblock_16 heads_g8_hi_hq 'table_*' softcap; do
          filter+=":CudaCases.HasItsAnswerByPrefill/$name"
        done
        binary=$race_room set="reduced set, -DTAMIS_RACECHECK=ON"
      fi
      env=(TAMIS_CUDA_PROBLEMS="${TAMIS_SANITIZED_PROBLEMS:-4}" TAMIS_GRAPH_REPLAYS=10 TAMIS_CUDA_POISON="$poison")
      part "$1" "$tests_keep|ERROR SUMMARY|RACECHECK SUMMARY" \
        "${env[*]} compute-sanitizer --tool $1${options[*]:+ ${options[*]}} --error-exitcode 9 test_cuda ($set)" \
        env "${env[@]}" "$sanitizer" --tool "$1" "${options[@]}" --error-exitcode 9 "$binary" --gtest_filter="$filter"
      ;;
    *)
      echo "device_tests.sh: no such part: $1" >&2
      exit 2
      ;;
  esac
}

if [ ! -x "$room" ]; then
  echo "device_tests.sh: $room is not built (-DTAMIS_CUDA=ON -DTAMIS_TESTS=ON)" >&2
  exit 2
fi
if ! nvidia-smi -L 2>/dev/null | grep -q '^GPU'; then
  echo "SKIPPED (no device)"
  exit 3
fi
jobs=${TAMIS_DEVICE_JOBS:-1}
heading
for name in "${parts[@]}"; do
  rm -f "$full/$name.section"
  while [ "$(jobs -rp | wc -l)" -ge "$jobs" ]; do wait -n || true; done
  run_part "$name" &
done
wait
failed=() skipped=()
for name in "${parts[@]}"; do
  [ -e "$full/$name.section" ] || exit 2  # no such part, as it has said
  case $(sed -n 2p "$full/$name.section") in
    *FAILED*) failed+=("$name") ;;
    *SKIPPED*) skipped+=("$name") ;;
  esac
done
echo "failed: ${failed[*]:-none}; skipped: ${skipped[*]:-none}"
[ ${#failed[@]} = 0 ] || exit 1
[ ${#skipped[@]} = 0 ] || exit 3
