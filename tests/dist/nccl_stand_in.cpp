// A stand-in for libnccl.so.2, for machines without GPUs: the same functions for emulated devices.
// It moves bytes through files, writes down each call, and fails as it is told:
//   STAND_IN_LOG      a file for the calls; a number is appended for each rank
//   STAND_IN_FAIL     "ncclSend 3": the third call of that function is an error
//   STAND_IN_SILENT   "2": sends get lost from the second group on
//   STAND_IN_VERSION  instead of 21900
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "dist/nccl.h"

using namespace mixtape::dist::nccl;

namespace mixtape::dist::nccl {

// A send or a receive of a group.
struct Move {
  bool sends;
  void* data;
  size_t bytes;
  int rank;
  Stream stream;
};

struct Communicator {
  std::filesystem::path folder;
  int rank, size;
  std::map<int, int> sent, received;  // messages so far, by rank
  std::vector<Move> waiting;          // receives
  int polls = 0, groups = 0;
  bool has_met = false;
  Result state = InProgress;
  std::shared_ptr<std::atomic<bool>> aborted = std::make_shared<std::atomic<bool>>(false);

  std::filesystem::path message(int from, int to, int number) const {
    return folder /
           (std::to_string(from) + "-" + std::to_string(to) + "-" + std::to_string(number));
  }
};

}  // namespace mixtape::dist::nccl

namespace {

constexpr Result system_error = Result(2), invalid_argument = Result(4), invalid_usage = Result(5),
                 remote_error = Result(6);

// Gives work to a stream of the emulator, or does it at once.
using InStream = void (*)(Stream, void (*)(void*), void*);
InStream in_stream = nullptr;
void queue(Stream stream, std::function<void()> work) {
  if (!in_stream) return work();
  in_stream(
      stream,
      [](void* own) {
        const std::unique_ptr<std::function<void()>> f(static_cast<std::function<void()>*>(own));
        (*f)();
      },
      new std::function<void()>(std::move(work)));
}

int rank_of_log = -1;
std::string before_log;  // calls before the rank was known
Result called(const char* function, const std::string& with = "") {
  const char* const log = std::getenv("STAND_IN_LOG");
  const std::string line = std::string(function) + (with.empty() ? "" : " ") + with + "\n";
  if (log && rank_of_log < 0) before_log += line;
  if (log && rank_of_log >= 0) {
    const std::unique_ptr<FILE, int (*)(FILE*)> file(
        std::fopen((log + std::to_string(rank_of_log)).c_str(), "a"), std::fclose);
    std::fputs((before_log + line).c_str(), file.get());
    before_log.clear();
  }
  static std::map<std::string, int> calls;
  const std::string this_one = std::string(function) + " " + std::to_string(++calls[function]);
  const char* const fails = std::getenv("STAND_IN_FAIL");
  return fails && this_one == fails ? system_error : Success;
}

void write_file(const std::filesystem::path& name, const void* data, size_t bytes) {
  const std::filesystem::path part = name.string() + ".part";
  FILE* const file = std::fopen(part.c_str(), "w");
  if (!file) return;  // the others have ended
  if (bytes) std::fwrite(data, 1, bytes, file);
  std::fclose(file);
  std::error_code ignored;
  std::filesystem::rename(part, name, ignored);
}

// False if the message has another length.
bool take_file(const std::filesystem::path& name, void* data, size_t bytes) {
  std::error_code ignored;
  const bool fits = std::filesystem::file_size(name, ignored) == bytes;
  FILE* const file = std::fopen(name.c_str(), "r");
  const bool whole = file && fits && std::fread(data, 1, bytes, file) == bytes;
  if (file) std::fclose(file);
  std::filesystem::remove(name, ignored);
  return whole;
}

thread_local int depth = 0;
thread_local std::vector<std::pair<Comm, Move>> group;

Result end_group() {
  for (auto& [comm, op] : group) {
    if (!op.sends) {
      comm->waiting.push_back(op);
      continue;
    }
    const char* const silent = std::getenv("STAND_IN_SILENT");
    const auto to = comm->message(comm->rank, op.rank, comm->sent[op.rank]++);
    if (silent && comm->groups + 1 >= std::atoi(silent)) continue;
    queue(op.stream, [to, op = op] { write_file(to, op.data, op.bytes); });
  }
  if (!group.empty()) {
    Comm comm = group.front().first;
    comm->state = InProgress;
    comm->polls = 0;
    ++comm->groups;
  }
  group.clear();
  return InProgress;
}

// Without the emulator's streams: takes what has come. With them: queues that.
void move_on(Comm comm) {
  if (!comm->has_met) {
    for (int r = 0; r < comm->size; ++r)
      if (!std::filesystem::exists(comm->folder / std::to_string(r))) return;
    comm->has_met = true;
  }
  if (++comm->polls < 3) return;
  std::vector<Move> left;
  for (const Move& op : comm->waiting) {
    const auto from = comm->message(op.rank, comm->rank, comm->received[op.rank]);
    if (!in_stream && !std::filesystem::exists(from)) {
      left.push_back(op);
      continue;
    }
    ++comm->received[op.rank];
    queue(op.stream, [=, aborted = comm->aborted] {
      while (!std::filesystem::exists(from) && !*aborted)
        std::this_thread::sleep_for(std::chrono::microseconds(50));
      if (!take_file(from, op.data, op.bytes) && !*aborted) std::abort();
    });
  }
  comm->waiting = std::move(left);
  if (comm->waiting.empty()) comm->state = Success;
}

Result add(bool sends, void* data, size_t count, DataType type, int rank, Comm comm,
           Stream stream) {
  if (type != Uint8 || rank < 0 || rank >= comm->size || rank == comm->rank)
    return invalid_argument;
  if (comm->state != Success) return invalid_usage;  // it has not been waited for
  group.push_back({comm, {sends, data, count, rank, stream}});
  return depth > 0 ? Success : end_group();
}

Result destroy(Comm comm) {
  std::error_code ignored;
  std::filesystem::remove(comm->folder / (std::to_string(comm->rank) + ".part"), ignored);
  write_file(comm->folder / ("ended" + std::to_string(comm->rank)), nullptr, 0);
  int ended = 0;
  for (int r = 0; r < comm->size; ++r)
    ended += std::filesystem::exists(comm->folder / ("ended" + std::to_string(r)));
  if (ended == comm->size) std::filesystem::remove_all(comm->folder, ignored);
  delete comm;
  return Success;
}

}  // namespace

extern "C" {

void stand_in_streams(InStream f) { in_stream = f; }

Result ncclGetVersion(int* version) {
  const char* const other = std::getenv("STAND_IN_VERSION");
  *version = other ? std::atoi(other) : 21900;
  return called("ncclGetVersion");
}
const char* ncclGetErrorString(Result code) {
  return code == system_error   ? "unhandled system error"
         : code == remote_error ? "remote process exited or there was a network error"
                                : "invalid argument or usage";
}
const char* ncclGetLastError(Comm) { return "the stand-in was told to fail"; }

Result ncclGetUniqueId(UniqueId* id) {
  std::string folder = (std::filesystem::temp_directory_path() / "nccl-stand-in-XXXXXX").string();
  if (!mkdtemp(folder.data()) || folder.size() >= sizeof id->bytes) return system_error;
  std::memset(id, 0, sizeof *id);
  std::memcpy(id->bytes, folder.data(), folder.size());
  return called("ncclGetUniqueId");
}
Result ncclCommInitRankConfig(Comm* comm, int size, UniqueId id, int rank, Config* config) {
  if (config->size != sizeof(Config) || config->magic != 0xcafebeef || config->blocking != 0)
    return invalid_argument;
  rank_of_log = rank;
  *comm = new Communicator{id.bytes, rank, size, {}, {}, {}};
  write_file((*comm)->folder / std::to_string(rank), nullptr, 0);
  if (const Result r = called("ncclCommInitRankConfig"); r != Success) return r;
  return InProgress;
}
Result ncclCommGetAsyncError(Comm comm, Result* state) {
  if (const char* const fails = std::getenv("STAND_IN_FAIL");
      fails && !std::strcmp(fails, "remote") && comm->groups == 2)
    comm->state = remote_error;
  if (comm->state == InProgress) move_on(comm);
  *state = comm->state;
  return Success;
}
Result ncclCommFinalize(Comm) { return called("ncclCommFinalize"); }
Result ncclCommDestroy(Comm comm) {
  called("ncclCommDestroy");
  return destroy(comm);
}
Result ncclCommAbort(Comm comm) {
  called("ncclCommAbort");
  *comm->aborted = true;
  return destroy(comm);
}
Result ncclGroupStart() {
  ++depth;
  return called("ncclGroupStart");
}
Result ncclGroupEnd() {
  if (const Result r = called("ncclGroupEnd"); r != Success) return r;
  return --depth > 0 ? Success : end_group();
}
Result ncclSend(const void* data, size_t count, DataType type, int rank, Comm comm, Stream stream) {
  const Result r = called("ncclSend", std::to_string(count) + " to " + std::to_string(rank));
  return r != Success ? r : add(true, const_cast<void*>(data), count, type, rank, comm, stream);
}
Result ncclRecv(void* data, size_t count, DataType type, int rank, Comm comm, Stream stream) {
  const Result r = called("ncclRecv", std::to_string(count) + " from " + std::to_string(rank));
  return r != Success ? r : add(false, data, count, type, rank, comm, stream);
}

}  // extern "C"
