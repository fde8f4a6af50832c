#include "dist/peers.h"

#include "dist/engine.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <fstream>

namespace mixtape::dist {

struct Peers::Lock {
  pthread_mutex_t mutex;
  std::atomic<bool> has_ended;  // set by a process that has seen it
};
static_assert(std::atomic<bool>::is_always_lock_free);

// The scope of process ids: the boot of the machine and the namespace of ids.
std::string Peers::machine() {
  std::string boot;
  std::getline(std::ifstream("/proc/sys/kernel/random/boot_id") >> std::ws, boot);
  char numbers[64] = "";
  if (boot.empty() || readlink("/proc/self/ns/pid", numbers, sizeof numbers - 1) < 0) return "";
  return boot + " " + numbers;
}

std::string Engine::machine() const { return Peers::machine(); }

Peers::Lock* Peers::map(int file) {
  void* const memory =
      file < 0 ? MAP_FAILED
               : mmap(nullptr, sizeof(Lock), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  return memory == MAP_FAILED ? nullptr : static_cast<Lock*>(memory);
}

Peers::Peers() : file_(memfd_create("mixtape_rank", MFD_CLOEXEC)) {
  if (file_ < 0 || ftruncate(file_, sizeof(Lock)) != 0 || !(own_ = map(file_))) return;
  pthread_mutexattr_t attributes;
  pthread_mutexattr_init(&attributes);
  pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
  pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
  pthread_mutex_init(&own_->mutex, &attributes);
  pthread_mutexattr_destroy(&attributes);
  pthread_mutex_lock(&own_->mutex);
}

std::string Peers::introduction() const {
  return fmt::format("{} /proc/{}/fd/{}", own_ ? machine() : "", getpid(), file_);
}

void Peers::watch(const std::vector<std::string>& introductions, int rank) {
  const auto place = [&](size_t r) {
    return introductions[r].substr(0, introductions[r].rfind(' '));
  };
  const std::string here = place(size_t(rank));
  if (here.empty()) return;  // unknown
  for (size_t r = 0; r < introductions.size(); ++r) {
    if (int(r) == rank || place(r) != here) continue;
    const int file = open(&introductions[r][here.size() + 1], O_RDWR | O_CLOEXEC);
    Lock* const lock = map(file);
    if (file >= 0) close(file);
    if (!lock) continue;
    ranks_.push_back(int(r));
    locks_.push_back(lock);
  }
}

Peers::~Peers() {
  for (Lock* const lock : locks_) munmap(lock, sizeof(Lock));
  // On another thread than the one that made it, the lock stays in that thread's list.
  if (own_ && pthread_mutex_unlock(&own_->mutex) == 0) munmap(own_, sizeof(Lock));
  if (file_ >= 0) close(file_);
}

std::vector<int> Peers::ended() const {
  std::vector<int> ranks;
  for (size_t i = 0; i < locks_.size(); ++i) {
    Lock& lock = *locks_[i];
    if (!lock.has_ended) {
      const int code = pthread_mutex_trylock(&lock.mutex);
      if (code == EBUSY) continue;
      lock.has_ended = true;  // others that try meanwhile find it busy
      if (code == 0 || code == EOWNERDEAD) pthread_mutex_unlock(&lock.mutex);
    }
    ranks.push_back(ranks_[i]);
  }
  return ranks;
}

}  // namespace mixtape::dist
