#!/usr/bin/env bash
# Everything that needs a GPU, in parts that can be chosen, each with its own time limit.
#
#   scripts/gpu_check.sh OUT [--wheels DIR] [--against DIR] [PART[=SECONDS] ...]
#
# OUT gets one log and one result a part, and a summary. --wheels installs the wheels of a folder (the package itself,
# best from `make bench-wheel`, and what the machine lacks, SGLang for instance) into a temporary folder first; without
# the option, the environment is used as it is. Parts, in the order in which they run when none is named:
#   tests       pytest -m gpu
#   memcheck    compute-sanitizer's memory checker over tests/gpu/test_hostile.py
#   racecheck   its shared memory checker over the same
#   launch      benches/launch.py, the whole grid
#   verify      benches/launch.py in target verify
#   extend      benches/launch.py in draft extend
#   sweep       benches/sweep.py: compiles and stalls
#   memory      benches/memory.py: a million calls
# Further parts, run only by name:
#   quick       benches/launch.py, the quick grid
#   against     benches/launch.py, the quick grid, against the unpacked qsa_group in the folder of --against
#   together    benches/together.py: joined plans
#   tune        benches/tune.py: tilings
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

parts=() against=
while [ $# -gt 0 ]; do
  case $1 in
    --wheels)
      site=${SITE:-$(mktemp -d)}
      "$python" -m pip install -q --no-index --no-deps --no-compile --no-cache-dir --upgrade --target "$site" \
        "$2"/*.whl || exit 1
      export PYTHONPATH=$site${PYTHONPATH:+:$PYTHONPATH}
      shift
      ;;
    --against)
      against=$2
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

# launch NAME SECONDS [options]: the launch bench, which starts no further grid point after so many seconds.
launch() {
  local name=$1 seconds=$2
  shift 2
  "$python" benches/launch.py --seconds "$seconds" --json "$out/$name.json" "$@"
}

part() {
  case $1 in
    tests) "$python" -m pytest -q -p no:cacheprovider -m gpu --durations=8 --ignore=tests/sglang tests ;;
    memcheck | racecheck) sanitizer "$1" ;;
    launch) launch launch "$(($2 - 30))" --plot "$out/launch.png" ;;
    verify) launch verify "$(($2 - 20))" --plot "$out/verify.png" --mode target_verify ;;
    extend) launch extend "$(($2 - 20))" --plot "$out/extend.png" --mode draft_extend ;;
    sweep) "$python" benches/sweep.py --json "$out/sweep.json" ;;
    memory) "$python" benches/memory.py --json "$out/memory.json" ;;
    quick) launch quick "$(($2 - 20))" --plot "$out/quick.png" --grid quick ;;
    against)
      [ -n "$against" ] || { echo "no folder is given: --against DIR"; return 2; }
      launch against "$(($2 - 20))" --grid quick --against "$against"
      ;;
    together) "$python" benches/together.py --json "$out/together.json" ;;
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
  export -f part sanitizer launch
  export out python against
  timeout -k 5 "$seconds" bash -c 'set -o pipefail; part "$0" "$1"' "$name" "$seconds" 2>&1 | tee "$out/$name.log"
  code=${PIPESTATUS[0]}
  case $code in 0) state=ok ;; 77) state=skipped ;; 124 | 137) state="out of time" ;; *) state="failed ($code)" ;; esac
  case $code in 0 | 77) ;; *) failed=1 ;; esac
  echo "$name: $state, $(($(date +%s) - begin)) s" | tee -a "$out/summary.txt"
done
echo "=== summary"
cat "$out/summary.txt"
exit $failed
