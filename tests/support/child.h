#pragma once
// Forked children of a test program, and a system that starts no threads.

#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

#include "core/asan.h"

namespace mixtape::test {

inline bool is_child = false;
#if MIXTAPE_ASAN
// Memory that only a thread of the parent refers to would count as a leak of the child.
extern "C" [[gnu::used]] inline int __lsan_is_turned_off() { return is_child; }
#endif

// The wait status of a forked child that exits with 0 if f() is true, 1 if not: 0 if all is well. A
// child that hangs is ended by SIGALRM.
template <class F>
int status_of_child(F f) {
  std::fflush(nullptr);  // or the child would print it again
  const pid_t child = fork();
  if (child == 0) {
    is_child = true;
    alarm(20);
    std::exit(f() ? EXIT_SUCCESS : EXIT_FAILURE);
  }
  int status = -1;
  waitpid(child, &status, 0);
  return status;
}

// While one is alive, the system refuses every new thread, for want of memory for its stack.
struct NoNewThreads {
  pthread_attr_t before, impossible;
  NoNewThreads() {
    pthread_getattr_default_np(&before);
    pthread_attr_init(&impossible);
    pthread_attr_setstacksize(&impossible, size_t{1} << 48);
    pthread_setattr_default_np(&impossible);
  }
  ~NoNewThreads() { pthread_setattr_default_np(&before); }
};

}  // namespace mixtape::test
