"""A capture that forks to a second stream and joins again; the fault is on the branch."""

import fakecuda as cuda

main, side, fork, join = cuda.Stream(), cuda.Stream(), cuda.Event(), cuda.Event()
cuda.launch("warm_up")
cuda.synchronize()
with cuda.Graph(main) as graph:
    cuda.launch("trunk")
    fork.record(main)
    side.wait(fork)
    cuda.launch("branch", stream=side)
    cuda.launch("branch_fault_illegal", microseconds=2000, stream=side)  # FAULT
    cuda.launch("branch", stream=side)
    join.record(side)
    main.wait(join)
    cuda.launch("joined")
graph.replay()  # REPLAY
main.synchronize()  # SURFACE
