# Runs the program until a kernel stops it or it ends, and says where. Every command that can fail stands behind the
# check that there still is a process: an error would end this script.
set pagination off
set confirm off
set width 0
set print thread-events off
set cuda break_on_launch none
# Signals that a program may use as it likes.
handle SIGPIPE SIGUSR1 SIGUSR2 SIGALRM nostop noprint pass
run
if $_thread == 0
  if $_isvoid($_exitcode)
    quit 1
  end
  quit $_exitcode
end
echo faultlab: stopped\n
bt 40
info cuda kernels
echo faultlab: host thread 1\n
thread 1
bt 40
