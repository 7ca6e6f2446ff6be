# nsys_run.sh NSYS PROGRAM ARGS…: the program under Nsight Systems, ending with the program's own exit status, whatever
# becomes of the report. FAULTLAB_NSYS_CAPTURE_RANGE=cudaProfilerApi collects only between the program's cudaProfilerStart
# and cudaProfilerStop (torch.cuda.profiler.start, stop).
nsys=$1
shift
range=
if [ -n "${FAULTLAB_NSYS_CAPTURE_RANGE-}" ]; then
  range="--capture-range=$FAULTLAB_NSYS_CAPTURE_RANGE --capture-range-end=stop"
fi
# Nothing is sampled: that needs perf events, which containers seldom get. Kernel records are fetched ten times a
# second, because those that are still on the GPU when the context dies are lost.
"$nsys" profile --trace=cuda,nvtx --sample=none --cpuctxsw=none --cuda-flush-interval=100 --force-overwrite=true \
  --output=report $range sh -c '"$@"; code=$?; echo "$code" > nsys.exit; exit "$code"' sh "$@"
code=$?
if [ -s nsys.exit ]; then
  code=$(cat nsys.exit)
fi
exit "$code"
