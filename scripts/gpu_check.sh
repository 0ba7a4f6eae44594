#!/usr/bin/env bash
# Everything that needs a GPU, in parts that can be chosen, each with its own time limit.
#
#   scripts/gpu_check.sh OUT [--wheels DIR] [PART[=SECONDS] ...]
#
# OUT gets one log and one result a part, and a summary. --wheels installs the wheels of a folder (the package itself,
# and what the machine lacks, SGLang for instance) into a temporary folder first; without it, the environment is used as
# it is. Parts, in the order in which they run when none is named:
#   tests       pytest -m gpu
#   memcheck    compute-sanitizer's memory checker over the tests with hostile inputs
#   racecheck   its shared memory checker over the same
#   launch      benches/launch.py, the whole grid (quick: the sparse grid)
#   verify      benches/launch.py in target verify
#   extend      benches/launch.py in draft extend
#   sweep       benches/sweep.py: compiles and stalls
#   memory      benches/memory.py: a million calls
# Further parts, run only by name: quick, tune.
set -uo pipefail

usage() { sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "$0"; exit 2; }
[ $# -ge 1 ] || usage
case $1 in -*) usage ;; esac
cd "$(dirname "$0")/.." || exit 1
out=$1
shift
mkdir -p "$out"
python=${PYTHON:-python3}
export PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1

parts=()
while [ $# -gt 0 ]; do
  case $1 in
    --wheels)
      site=${SITE:-$(mktemp -d)}
      "$python" -m pip install -q --no-index --no-deps --no-compile --no-cache-dir --upgrade --target "$site" \
        "$2"/*.whl || exit 1
      export PYTHONPATH=$site${PYTHONPATH:+:$PYTHONPATH}
      shift
      ;;
    *) parts+=("$1") ;;
  esac
  shift
done
[ ${#parts[@]} -gt 0 ] || parts=(tests memcheck racecheck launch verify extend sweep memory)

sanitizer() {
  local found
  found=$(command -v compute-sanitizer || ls /usr/local/cuda*/bin/compute-sanitizer 2>/dev/null | head -1)
  [ -n "$found" ] || { echo "compute-sanitizer is not installed"; return 77; }
  # Without torch's caching allocator every tensor is an allocation of its own, so that a byte past it is an error.
  QSA_GROUP_SANITIZER=1 PYTORCH_NO_CUDA_MEMORY_CACHING=1 "$found" --tool "$1" --error-exitcode 9 \
    --report-api-errors no --print-limit 20 ${SANITIZER_ARGS:-} \
    "$python" -m pytest -q -x -p no:cacheprovider tests/gpu/test_hostile.py
}

part() {
  case $1 in
    tests) "$python" -m pytest -q -p no:cacheprovider -m gpu --durations=8 tests ;;
    memcheck | racecheck) sanitizer "$1" ;;
    quick) "$python" benches/launch.py --grid quick --json "$out/quick.json" --plot "$out/quick.png" ;;
    launch)
      "$python" benches/launch.py --seconds "$(($2 - 30))" --json "$out/launch.json" --plot "$out/launch.png"
      ;;
    verify)
      "$python" benches/launch.py --mode target_verify --seconds "$(($2 - 20))" --json "$out/verify.json" \
        --plot "$out/verify.png"
      ;;
    extend)
      "$python" benches/launch.py --mode draft_extend --seconds "$(($2 - 20))" --json "$out/extend.json" \
        --plot "$out/extend.png"
      ;;
    sweep) "$python" benches/sweep.py --json "$out/sweep.json" ;;
    memory) "$python" benches/memory.py --json "$out/memory.json" ;;
    tune) "$python" benches/tune.py --seconds "$(($2 - 30))" --json "$out/tune.json" ;;
    *) echo "no part $1" && return 2 ;;
  esac
}

limit() {
  case $1 in
    tests) echo 240 ;;
    memcheck | racecheck) echo 150 ;;
    launch) echo 360 ;;
    quick | verify | extend | sweep) echo 100 ;;
    *) echo 150 ;;
  esac
}

: >"$out/summary.txt"
failed=0
for entry in "${parts[@]}"; do
  name=${entry%%=*}
  seconds=$(limit "$name")
  case $entry in *=*) seconds=${entry#*=} ;; esac
  echo "=== $name (at most $seconds s)"
  begin=$(date +%s)
  # A shell of its own, so that the limit ends the whole part; the log is kept whatever happens.
  export -f part sanitizer
  export out python
  timeout -k 5 "$seconds" bash -c 'set -o pipefail; part "$0" "$1"' "$name" "$seconds" 2>&1 | tee "$out/$name.log"
  code=${PIPESTATUS[0]}
  case $code in 0) state=ok ;; 77) state=skipped ;; 124 | 137) state="out of time" ;; *) state="failed ($code)" ;; esac
  case $code in 0 | 77) ;; *) failed=1 ;; esac
  echo "$name: $state, $(($(date +%s) - begin)) s" | tee -a "$out/summary.txt"
done
echo "=== summary"
cat "$out/summary.txt"
exit $failed
