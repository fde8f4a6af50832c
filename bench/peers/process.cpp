#include "bench/peers/process.h"

#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <memory>

#include "core/check.h"

namespace mixtape::peers {
namespace {

// The process, at both ends of a socket; it ends when it reads no more.
class Process {
 public:
  explicit Process(const std::string& command) : command_(command) {
    std::array<int, 2> ends{};
    check(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) == 0, "no socket for {}",
          command);
    child_ = fork();
    if (child_ == 0) {
      dup2(ends[1], STDIN_FILENO);
      dup2(ends[1], STDOUT_FILENO);
      execl("/bin/sh", "sh", "-c", command.c_str(), nullptr);
      _exit(127);
    }
    close(ends[1]);
    check(child_ > 0, "no process for {}", command);
    stream_ = fdopen(ends[0], "r+");
  }
  Process(const Process&) = delete;
  ~Process() {
    std::fclose(stream_);
    waitpid(child_, nullptr, 0);
  }

  std::string read() {
    std::string line;
    int c = 0;
    while ((c = std::fgetc(stream_)) != EOF && c != '\n') line += char(c);
    check(c == '\n', "no answer from {}", command_);
    return line;
  }
  double time(int64_t count) {
    std::fprintf(stream_, "%lld\n", static_cast<long long>(count));
    std::fflush(stream_);
    const std::string line = read();
    char* end = nullptr;
    const double seconds = std::strtod(line.c_str(), &end);
    check(end != line.c_str() && *end == '\0', "not seconds from {}: {}", command_, line);
    return seconds;
  }

 private:
  std::string command_;
  pid_t child_;
  std::FILE* stream_;
};

}  // namespace

bench::Task process(const std::string& command) {
  const auto child = std::make_shared<Process>("exec " + command);
  bench::Task task([=] { child->time(1); }, child->read());
  task.timed = [=](int64_t count) { return child->time(count); };
  return task;
}

}  // namespace mixtape::peers
