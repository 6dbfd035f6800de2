// A worker for end-to-end tests: reads commands from standard input, one a line, and answers each
// with a line on standard output: "ok ..." or "error CODE REASON message {details}".
//
//   connect [socket=] [runtime_dir=] [name=] [quiesce=none|synchronize|guard|callback] [uuid=]
//           [reservation=] [driver=host]    ok worker=N device=UUID kind=KIND granularity=BYTES
//   close
//   alloc TAG SIZE [SEED] [timeout=MS]      ok ID ADDRESS SIZE; waits for memory that long
//   fill ID SEED                            inside the guard of its tag, waits 2 s for it
//   check ID SEED, checkzero ID             likewise; error DATA_LOSS DIFFERENT at the first byte
//   forget ID                               work does not compare it any more
//   address ID, segments                    ok ADDRESS; ok ID=TAG:SIZE...
//   free ID, freeany ID                     in this or in another thread
//   sleep LEVEL [TAG...] [timeout=MS]       ok device=BYTES copied=BYTES discarded=BYTES
//   sleep_policies TAG=keep|offload|discard... [force] [timeout=MS]
//   wake [TAG...] [reservation=] [timeout=MS]
//   usage                                   ok total= free= available= TAG=segments,resident,
//                                           offloaded,discarded...
//   report LIVE RESERVED
//   work [THREADS], stop_work, iterations   guarded loops that read all memory; ok COUNT, or
//                                           DATA_LOSS if filled memory was found different
//   guard_begin [TAG...] [timeout=MS], guard_end
//   quiesce none|synchronize|guard|callback
//   sleep_endpoint [TEXT]
//   on_pause accept|refuse|none [MS]        callbacks that take that long
//   callbacks                               ok paused=N resumed=N
//   raw SOCKET KIND [after_hello]           a bad frame on a connection of its own (raw_frames.h)
//   hold SOCKET SIZE                        allocates on a connection of its own, ends that, and
//                                           keeps the descriptors (raw_frames.h)
//   fork                                    ok REASON that a forked child gets
//   fork_continue                           the child goes on with the commands: ok PID
//   bg COMMAND, wait                        runs it beside the others; its answer
//   nofile N                                this process may have descriptors below N, -1: all that
//                                           its hard limit allows
//   pid                                     ok PID
//   exit [CODE]                             without closing; end of input does the same
//   exit_freeing                            frees all segments in an exit handler
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <iostream>
#include <string>

#include "tests/worker/test_worker.h"

namespace {

// Never destroyed: a session in use at exit is part of what is tested.
torpor::TestWorker& Worker() {
  static auto* const worker = new torpor::TestWorker();
  return *worker;
}

}  // namespace

int main() {
  for (std::string line; std::getline(std::cin, line);) {
    if (line.rfind("exit_freeing", 0) == 0) {
      std::atexit([] { Worker().FreeAll(); });
      std::cout << "ok" << std::endl;
      return 0;
    }
    if (line.rfind("exit", 0) == 0) {
      std::cout << "ok" << std::endl;
      return std::atoi(line.c_str() + 4);
    }
    if (line == "fork_continue") {
      const pid_t child = ::fork();
      if (child != 0) {
        int status = 0;
        ::waitpid(child, &status, 0);
        ::_exit(WIFEXITED(status) ? WEXITSTATUS(status) : 1);
      }
      line = "pid";
    }
    std::cout << Worker().Do(line) << std::endl;
  }
  return 0;
}
